//! Text in quotes, as plan hashes contain it.
//!
//! Plan hashes of version 1 contain filters and column names in the form that Rust 1.95 gives them with `{:?}`. That form
//! may change with the toolchain, and plan hashes may not: stored states are compared with them.

mod table;

use std::fmt::Write;

use table::ESCAPED;

/// `text` in double quotes, with quotes, backslashes and code points of the frozen table escaped.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for char in text.chars() {
        match char {
            '\0' => out.push_str("\\0"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '"' | '\\' => out.extend(['\\', char]),
            _ if is_escaped(char) => {
                write!(out, "\\u{{{:x}}}", u32::from(char)).expect("writing to a string does not fail");
            }
            _ => out.push(char),
        }
    }
    out.push('"');
    out
}

/// The [`quoted`] forms of `texts` in brackets, separated by a comma and a space.
pub(crate) fn quoted_list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
}

fn is_escaped(char: char) -> bool {
    let code = u32::from(char);
    let after = ESCAPED.partition_point(|(first, _)| *first <= code);
    after > 0 && code <= ESCAPED[after - 1].1
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    #[test]
    fn quotes_and_backslashes_are_escaped_and_plain_text_is_not() {
        assert_eq!(quoted("a > 'b' \u{e9}"), "\"a > 'b' \u{e9}\"");
        assert_eq!(quoted("\"\\\n\r\t\0"), r#""\"\\\n\r\t\0""#);
        assert_eq!(quoted("e\u{301}\u{200b}\u{7f}"), r#""e\u{301}\u{200b}\u{7f}""#);
        assert_eq!(quoted_list(["a", "b\""]), r#"["a", "b\""]"#);
        assert_eq!(quoted_list([]), "[]");
    }

    #[test]
    fn the_quoted_form_of_every_code_point_is_frozen() {
        let all: String = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
        assert_eq!(xxh3_64(quoted(&all).as_bytes()), GOLDEN);
    }

    const GOLDEN: u64 = 0x8739_0a8f_6770_a4aa;
}
