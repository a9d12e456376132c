//! The last error of a command, without secrets of URLs.

use std::env;

use forebay_storage::{shown_text, shown_url};

/// Prefix of the variables of the environment that are settings.
const PREFIX: &str = "FOREBAY_";

/// Returns the text of an error with `(not shown)` in place of the users, passwords and queries of URLs, in arguments, variables of the
/// environment and files.
pub(super) fn shown(text: &str) -> String {
    let variables = env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(PREFIX));
    let values = env::args_os().skip(1).chain(variables.map(|(_, value)| value));
    without_secrets(text, values.map(|value| value.to_string_lossy().into_owned()))
}

/// Returns a text with the shown form of each of the `values` that it contains, and of other URLs. A URL with white space is recognized only if it
/// is one of `values`. Otherwise, a URL in a text ends at white space.
fn without_secrets(text: &str, values: impl Iterator<Item = String>) -> String {
    let mut shown = text.to_owned();
    for value in values {
        // As in --http=URL.
        let after = value.split_once('=').map_or("", |(_, after)| after);
        for value in [value.as_str(), after] {
            let clean = shown_url(value);
            if clean != value {
                shown = shown.replace(value, &clean);
            }
        }
    }
    shown_text(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_contains_a_secret_of_a_url() {
        for (text, value, expected) in [
            ("can't read https://u:SECRET@h/c", "https://u:SECRET@h/c", "can't read https://(not shown)@h/c"),
            (
                "can't read https://u:SEC RET@h/c: no file",
                "https://u:SEC RET@h/c",
                "can't read https://(not shown)@h/c: no file",
            ),
            ("'http://h/?SEC RET' for", "--http=http://h/?SEC RET", "'http://h/?(not shown)' for"),
            ("in a file: 'grpc://u:SECRET@h'", "serve", "in a file: 'grpc://(not shown)@h'"),
            ("--dataset x: expected NAME=URL", "x", "--dataset x: expected NAME=URL"),
        ] {
            assert_eq!(without_secrets(text, std::iter::once(value.to_owned())), expected);
        }
    }
}
