//! Texts for a terminal or a log.

/// Returns a text whose control characters, except line breaks, and changes of the writing direction are escaped. Names of files and
/// columns could otherwise change what a terminal shows.
pub(crate) fn printable(text: &str) -> String {
    let is_escaped = |c: char| {
        let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || (c.is_control() && c != '\n')
    };
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { printable.extend(c.escape_default()) } else { printable.push(c) }
    }
    printable
}

/// Describes an error and its causes in one line. A cause that an earlier part already contains is left out.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_errors_and_summaries_cannot_change_what_a_terminal_shows() {
        let shown = printable("\u{1b}[31mred\r\u{9b}x\u{202e}abc é\nnext");
        assert_eq!(shown, "\\u{1b}[31mred\\r\\u{9b}x\\u{202e}abc é\nnext");
    }
}
