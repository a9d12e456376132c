//! Checks of the variables that configure an object store, before it is built.
//!
//! `object_store` puts some values into the headers of its requests, and panics if a header can't contain them. It repeats URLs in its
//! errors, with a user and a password.

use serde_json::Value;
use url::Url;

use super::secrets::{read_file, short};

/// Variables, without their prefix, whose values are texts of several lines.
const OF_SEVERAL_LINES: &[&str] = &["SERVICE_ACCOUNT_KEY", "PROXY_CA_CERTIFICATE"];
/// Variables, without their prefix, whose values are in headers of requests.
const IN_HEADERS: &[&str] = &[
    "ACCESS_KEY_ID",
    "ACCOUNT_NAME",
    "DEFAULT_CONTENT_TYPE",
    "DEFAULT_REGION",
    "FABRIC_CLUSTER_IDENTIFIER",
    "FABRIC_SESSION_TOKEN",
    "FABRIC_WORKLOAD_HOST",
    "IDENTITY_HEADER",
    "REGION",
    "SESSION_TOKEN",
    "SSE_CUSTOMER_KEY_BASE64",
    "SSE_KMS_KEY_ID",
    "TOKEN",
    "USER_AGENT",
];
/// Variables, without their prefix, with the path of a file whose contents are in a header of requests.
const FILES_IN_HEADERS: &[&str] = &["CONTAINER_AUTHORIZATION_TOKEN_FILE"];
/// Variables, without their prefix, with the path of a file with the service account.
const ACCOUNT_FILES: &[&str] = &["APPLICATION_CREDENTIALS", "SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH"];
/// Parts of the names of variables, and of the fields of a service account, whose values are URLs or hosts.
const URLS: &[&str] = &["ENDPOINT", "HOST", "PROXY_URL", "URI", "URL"];

/// Checks variables that configure a store: a value that is in a header can be in one, no other value has control characters, and no
/// URL has a user or a password. The proxy of this process may have some, but not that of a caller (`is_of_caller`).
///
/// # Errors
/// The name of the first wrong variable and what was expected, without its value.
pub(super) fn check(variables: &[(&str, &str)], is_of_caller: bool) -> Result<(), String> {
    for (name, value) in variables {
        let short = short(name);
        let short = short.as_str();
        let place = if name.starts_with("AWS_") { " in the environment or the AWS profile" } else { "" };
        let wrong = |detail: &str| Err(format!("{name}{place} {detail}"));
        if !OF_SEVERAL_LINES.contains(&short) && value.contains(char::is_control) {
            return wrong("contains a control character, such as a newline; remove it");
        }
        if IN_HEADERS.contains(&short) && !value.is_ascii() {
            return wrong("contains a character that is not ASCII, but a header of requests is made of it");
        }
        if FILES_IN_HEADERS.contains(&short)
            && let Some(text) = read_file(value)
            && !text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        {
            return wrong(&format!(
                "names the file {value}, which contains a control character, such as a newline at its end, or one that is not \
                 ASCII; a header of requests is made of it, so that it must contain the token alone"
            ));
        }
        let is_checked = is_url(short) && (is_of_caller || !short.contains("PROXY"));
        let account = if ACCOUNT_FILES.contains(&short) { read_file(value) } else { None };
        if is_checked && has_user(value) || account_has_user(account.as_deref().unwrap_or(value)) {
            return wrong("contains a URL with a user or a password, which is not supported; remove them");
        }
    }
    Ok(())
}

fn is_url(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    URLS.iter().any(|part| name.contains(part))
}

/// True for the JSON document of a service account in which a URL has a user or a password.
fn account_has_user(text: &str) -> bool {
    if !text.trim_start().starts_with('{') {
        return false;
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return false };
    fields.iter().any(|(name, value)| is_url(name) && value.as_str().is_some_and(has_user))
}

/// True if a URL has a user or a password, also if it is malformed otherwise.
fn has_user(text: &str) -> bool {
    let parsed = Url::parse(text.trim());
    if parsed.is_ok_and(|url| !url.username().is_empty() || url.password().is_some()) {
        return true;
    }
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, value: &str) -> Option<String> {
        check(&[(name, value)], true).err()
    }

    #[test]
    fn what_no_header_can_contain_is_refused_by_the_name_of_the_variable() {
        for (name, value) in [
            ("AWS_SECRET_ACCESS_KEY", "hidden\n"),
            ("AWS_SESSION_TOKEN", "hid\nden"),
            ("AWS_ACCESS_KEY_ID", "hidden\r"),
            ("AWS_ACCESS_KEY_ID", "hidden\u{e9}"),
            ("AWS_Session_Token", "hidden\u{e9}"),
            ("AWS_REGION", "hidden\u{7f}"),
            ("AZURE_STORAGE_TOKEN", "hidden\n"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "hidden\u{e9}"),
            ("AZURE_FABRIC_SESSION_TOKEN", "hidden\t"),
            ("IDENTITY_HEADER", "hidden\n"),
            ("GOOGLE_BASE_URL", "hidden\n"),
        ] {
            let error = refused(name, value).unwrap_or_else(|| panic!("{name}={value:?} is accepted"));
            assert!(error.starts_with(name) && !error.contains("hid"), "{error}");
        }
        for (name, value) in [
            ("AWS_SECRET_ACCESS_KEY", "pass w\u{f6}rd/+="),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "{\n\t\"private_key\": \"a\"\n}\n"),
            ("AWS_PROXY_CA_CERTIFICATE", "-----BEGIN\nA\n"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/home/\u{e9}/token"),
        ] {
            assert_eq!(refused(name, value), None, "{name}");
        }
    }

    #[test]
    fn a_token_file_that_no_header_can_contain_is_refused_by_its_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        for (contents, is_refused) in [("Bearer hidden", false), ("hidden\n", true), ("hidden\u{e9}", true)] {
            std::fs::write(path, contents).unwrap();
            let error = refused("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", path);
            assert_eq!(error.is_some(), is_refused, "{contents:?}");
            assert!(error.is_none_or(|error| error.contains(path) && !error.contains("hidden")));
        }
        assert_eq!(refused("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/missing"), None, "the store names it");
    }

    #[test]
    fn a_user_in_a_url_is_refused_by_the_name_of_the_variable() {
        let account = r#"{"gcs_base_url": "http://user:hidden@host"}"#;
        for (name, value) in [
            ("AWS_ENDPOINT", "http://user:hidden@host:9000"),
            ("AWS_ENDPOINT_URL_S3", "https://hidden@host"),
            ("AWS_ENDPOINT_URL", "http:/user:hidden@host"),
            ("AWS_ENDPOINT_URL", "http:\\\\user:hidden@host"),
            ("AWS_ENDPOINT", "user:hidden@host:9000"),
            ("AWS_ENDPOINT", "http://user:hidden@host:no-port"),
            ("AWS_PROXY_URL", "http://user:hidden@proxy:3128"),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://hidden@127.0.0.1/x"),
            ("AZURE_STORAGE_ENDPOINT", "https://user:hidden@host"),
            ("AZURE_AUTHORITY_HOST", "https://user:hidden@host"),
            ("GOOGLE_BASE_URL", "https://user:hidden@host"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", account),
        ] {
            let error = refused(name, value).unwrap_or_else(|| panic!("{name}={value} is accepted"));
            assert!(error.starts_with(name) && !error.contains("hidden"), "{error}");
        }
        for (name, value) in [
            ("AWS_ENDPOINT", "http://host:9000/path@1"),
            ("AWS_SECRET_ACCESS_KEY", "a://b@c"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", r#"{"client_email": "a@b", "token_uri": "https://host/token"}"#),
        ] {
            assert_eq!(refused(name, value), None, "{name}");
        }
        assert_eq!(check(&[("AWS_PROXY_URL", "http://user:hidden@proxy:3128")], false), Ok(()));
    }
}
