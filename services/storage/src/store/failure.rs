//! Failures of stores: which of them another attempt can change, and a short description of each.

use std::{error::Error as _, io};

use super::retries::NOTHING_ANSWERS;

/// Kind of a failure, by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The store refuses access.
    Denied,
    /// There is no such store, bucket, folder or file, or its path cannot be one.
    Missing,
    /// The store does not support the request.
    Unsupported,
    /// Another attempt may succeed.
    Temporary,
}

/// Error of the operating system about a file system that can only be read. It remains until the file system is mounted in another way.
const READ_ONLY: i32 = 30;
/// Errors of the operating system about a path that another attempt has as well: not a folder, too long, too many symbolic links.
const WRONG_PATHS: [i32; 3] = [20, 36, 40];

/// Errors about a file with a token that a caller exchanges for credentials. The file is missing or can't be read.
const UNREADABLE_TOKENS: [&str; 3] =
    ["Failed to read token file", "Failed to read EKS token file", "Error reading federated token file"];

impl Failure {
    pub(crate) fn of(error: &object_store::Error) -> Self {
        match error {
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                Self::Denied
            }
            object_store::Error::NotFound { .. } => Self::Missing,
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
                Self::Unsupported
            }
            // Errors of local files have no variant of their own. Errors of networks are not meant here.
            object_store::Error::Generic { store: "local" | "LocalFileSystem", .. } => Self::of_local(error),
            error => Self::of_text(&error.to_string()),
        }
    }

    fn of_local(error: &object_store::Error) -> Self {
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                match error.raw_os_error() {
                    _ if error.kind() == io::ErrorKind::PermissionDenied => return Self::Denied,
                    Some(READ_ONLY) => return Self::Denied,
                    Some(code) if WRONG_PATHS.contains(&code) => return Self::Missing,
                    _ => {}
                }
            }
            cause = error.source();
        }
        // A folder that contains a link to itself.
        if error.to_string().contains("File system loop found") { Self::Missing } else { Self::Temporary }
    }

    /// The types that hold the status of a response are private to `object_store`, but their text is not.
    fn of_text(text: &str) -> Self {
        let has_status = |codes: &[&str]| {
            codes.iter().any(|code| {
                text.contains(&format!("status code: {code} "))
                    || text.contains(&format!("answered with status {code}"))
            })
        };
        // Without a region, or with a wrong one, Amazon redirects.
        let is_redirect = text.contains("Received redirect without LOCATION");
        let is_expired = ["<Code>ExpiredToken", "<Code>InvalidToken"].iter().any(|code| text.contains(code));
        let has_no_token = UNREADABLE_TOKENS.iter().any(|begin| text.contains(begin));
        if is_redirect || is_expired || has_no_token || has_status(&["401", "403"]) {
            return Self::Denied;
        }
        if has_status(&["404", "410"]) || text.contains(NOTHING_ANSWERS) {
            return Self::Missing;
        }
        let has_no_ranges = text.contains("Received non-partial response when range requested");
        if has_no_ranges || has_status(&["405", "501", "505"]) {
            return Self::Unsupported;
        }
        Self::Temporary
    }
}

/// Cause of an error of a store: its text, in which the XML documents of responses are replaced by their codes and messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Described(String);

/// Describes an error in one line.
pub(crate) fn describe(error: &object_store::Error) -> Described {
    let mut text = error.to_string();
    for (start, end) in
        [("<?xml", "</Error>"), ("<Error", "</Error>"), ("<!DOCTYPE", "</html>"), ("<html", "</html>")]
    {
        while let Some(from) = text.find(start)
            && let Some(length) = text[from..].find(end)
        {
            let document = &text[from..from + length];
            let part = |name: &str| {
                let rest = document.split_once(&format!("<{name}>"))?.1;
                rest.split_once(&format!("</{name}>")).map(|(part, _)| part.trim().to_owned())
            };
            let parts: Vec<String> = ["Code", "Message"].into_iter().filter_map(part).collect();
            let short = if parts.is_empty() { "(a web page)".to_owned() } else { parts.join(": ") };
            text.replace_range(from..from + length + end.len(), &short);
        }
    }
    // A response without a body, such as one to HEAD, has no further text.
    text.truncate(text.trim_end_matches([' ', ':']).len());
    Described(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn only_what_another_attempt_can_change_is_temporary() {
        let status =
            |status: &str| Failure::of(&generic(&format!("Server returned non-2xx status code: {status}: ")));
        for temporary in
            ["500 Internal Server Error", "503 Slow Down", "429 Too Many Requests", "400 Bad Request"]
        {
            assert_eq!(status(temporary), Failure::Temporary, "{temporary}");
        }
        assert_eq!(status("404 Not Found"), Failure::Missing);
        assert_eq!(status("403 Forbidden"), Failure::Denied);
        assert_eq!(status("400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"), Failure::Denied);
        assert_eq!(status("405 Method Not Allowed"), Failure::Unsupported);
        let of = |text: &str| Failure::of(&generic(text));
        assert_eq!(of("Received non-partial response when range requested"), Failure::Unsupported);
        assert_eq!(of("the store answered with status 501"), Failure::Unsupported);
        assert_eq!(of("Received redirect without LOCATION, this normally indicates"), Failure::Denied);
        assert_eq!(of("Failed to read token file '/t': No such file or directory"), Failure::Denied);
        assert_eq!(of("connection refused"), Failure::Temporary);
        assert_eq!(of("HTTP error: no store answers at a:9: Connection refused"), Failure::Missing);
        let local = |code: i32| {
            let source = Box::new(io::Error::from_raw_os_error(code));
            Failure::of(&object_store::Error::Generic { store: "local", source })
        };
        assert_eq!(
            [13, 30, 40, 36, 5].map(local),
            [Failure::Denied, Failure::Denied, Failure::Missing, Failure::Missing, Failure::Temporary]
        );
    }

    #[test]
    fn a_document_of_a_store_becomes_its_code_and_message() {
        let xml = "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>It does not exist</Message>\
                   <RequestId>7</RequestId></Error>";
        let text = describe(&generic(&format!("status code: 404 Not Found: {xml}, again {xml}"))).to_string();
        assert!(
            text.ends_with(
                "404 Not Found: NoSuchBucket: It does not exist, again NoSuchBucket: It does not exist"
            ),
            "{text}"
        );
        assert!(describe(&generic("<html><body>no</body></html>")).to_string().ends_with("(a web page)"));
        let refused = describe(&generic("Server returned non-2xx status code: 403 Forbidden: ")).to_string();
        assert!(refused.ends_with("403 Forbidden"), "{refused}");
        assert!(describe(&generic("<Error>cut")).to_string().ends_with("<Error>cut"));
    }
}
