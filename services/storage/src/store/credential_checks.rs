//! Checks of the variables that configure an object store, before it is built.
//!
//! `object_store` puts some values into the URLs and headers of its requests, and panics if one can't contain them. It repeats URLs in its
//! errors, with a user, a password and a query.

use http::Uri;
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
/// Variables, without their prefix, and fields of a service account with a URL to which a path is appended.
const BASE_URLS: &[&str] = &[
    "AUTHORITY_HOST",
    "AZURITE_BLOB_STORAGE_URL",
    "BASE_URL",
    "ENDPOINT",
    "ENDPOINT_URL",
    "ENDPOINT_URL_S3",
    "ENDPOINT_URL_STS",
    "GCS_BASE_URL",
    "METADATA_ENDPOINT",
];
/// Variables, without their prefix, with the URL of a request.
const REQUEST_URLS: &[&str] =
    &["CONTAINER_CREDENTIALS_FULL_URI", "FABRIC_TOKEN_SERVICE_URL", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"];
/// Variable, without its prefix, with the path of a request.
const REQUEST_PATH: &str = "CONTAINER_CREDENTIALS_RELATIVE_URI";
/// Variables, without their prefix, with a host, with or without a port.
const HOSTS: &[&str] = &["GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"];
/// Variables, without their prefix, with a name that becomes a part of a URL, and an example.
const NAMES: &[(&str, &str)] = &[
    ("ACCOUNT_NAME", "myaccount"),
    ("AUTHORITY_ID", "contoso.onmicrosoft.com"),
    ("DEFAULT_REGION", "eu-central-1"),
    ("REGION", "eu-central-1"),
    ("TENANT_ID", "contoso.onmicrosoft.com"),
];
/// Variables, without their prefix, that are used only to get credentials.
const OF_CREDENTIALS: &[&str] = &[
    "AUTHORITY_HOST",
    "AUTHORITY_ID",
    "CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "CONTAINER_CREDENTIALS_FULL_URI",
    "CONTAINER_CREDENTIALS_RELATIVE_URI",
    "ENDPOINT_URL_STS",
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
    "GCE_METADATA_ROOT",
    "IDENTITY_ENDPOINT",
    "METADATA_ENDPOINT",
    "MSI_ENDPOINT",
    "TENANT_ID",
];
/// Variables, without their prefix, of credentials that need no request. Each group is one.
const KEYS: &[&[&str]] = &[
    &["ACCESS_KEY_ID", "SECRET_ACCESS_KEY"],
    &["ACCOUNT_KEY"],
    &["ACCESS_KEY"],
    &["MASTER_KEY"],
    &["SERVICE_ACCOUNT"],
    &["SERVICE_ACCOUNT_PATH"],
    &["SERVICE_ACCOUNT_KEY"],
];
/// Variable, without its prefix, with the URL of Azure's emulator, and the one that selects the emulator.
const EMULATOR: (&str, &str) = ("AZURITE_BLOB_STORAGE_URL", "USE_EMULATOR");
const EXPECTED_URL: &str = "expected http:// or https:// and a host, such as https://store.example:9000";

/// Checks variables that configure a store: a value that is in a URL or a header of requests can be in one, unless other credentials make it
/// unused, no other value has control
/// characters, and no URL has a user, a password or a query that is not needed. The proxy of this process may have a user and a password,
/// but not that of a caller (`is_of_caller`).
///
/// # Errors
/// The name of the first wrong variable and what was expected, without its value.
pub(super) fn check(variables: &[(&str, &str)], is_of_caller: bool) -> Result<(), String> {
    let given: Vec<String> = variables.iter().map(|(name, _)| self::short(name)).collect();
    let is_given = |name: &&str| given.iter().any(|given| given == name);
    let has_keys = KEYS.iter().any(|group| group.iter().all(is_given));
    let is_emulated = variables
        .iter()
        .any(|(name, value)| self::short(name) == EMULATOR.1 && !value.eq_ignore_ascii_case("false"));
    let is_used =
        |name: &str| !(has_keys && OF_CREDENTIALS.contains(&name)) && (name != EMULATOR.0 || is_emulated);
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
            && is_used(short)
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
        if let Some(problem) = problem(short, value).filter(|_| is_used(short)) {
            return wrong(&problem);
        }
        let account = account.as_deref().or_else(|| (short == "SERVICE_ACCOUNT_KEY").then_some(*value));
        if let Some((field, problem)) = account.and_then(problem_of_account) {
            return wrong(&format!("has a service account whose {field} {problem}"));
        }
    }
    Ok(())
}

/// Returns what is wrong with the value of a variable or field, whose name is given without its prefix, as a part of the URL of a request;
/// `None` if it can be one.
fn problem(name: &str, value: &str) -> Option<String> {
    if BASE_URLS.contains(&name) {
        return problem_of_base(value);
    }
    if REQUEST_URLS.contains(&name) {
        return problem_of_url(value);
    }
    if name == REQUEST_PATH {
        let is_path = value.starts_with('/') && is_url_of_request(&format!("http://host{value}"));
        return (!is_path).then(|| "is not the path of a URL; expected one that begins with /".to_owned());
    }
    if HOSTS.contains(&name) {
        let is_host = !value.contains('/') && is_url_of_request(&format!("http://{value}/"));
        return (!is_host).then(|| "is not a host; expected HOST or HOST:PORT without http://".to_owned());
    }
    let (_, example) = NAMES.iter().find(|(other, _)| *other == name)?;
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let wrong = value.chars().find(|c| !is_legal(*c))?;
    Some(format!(
        "contains the character {wrong:?}; expected letters, digits, '-', '_' and '.', such as {example}, without quotes and spaces"
    ))
}

fn problem_of_base(value: &str) -> Option<String> {
    let has_end = value.contains(['?', '#']);
    let end = || format!("has a query (?...) or a fragment (#...), which is not supported; {EXPECTED_URL}");
    problem_of_url(value).or_else(|| has_end.then(end))
}

fn problem_of_url(value: &str) -> Option<String> {
    let found = match value {
        "" => "is empty; unset it, or set a URL",
        value if !value.contains("://") => "is not a URL, because it has no ://",
        value if !is_url_of_request(value) => "is not a URL of HTTP",
        _ => return None,
    };
    Some(format!("{found}; {EXPECTED_URL}"))
}

/// Checks the URL of a server, without a path.
///
/// # Errors
/// A text that says why no request can be sent to the URL.
pub(super) fn check_base(url: &str) -> Result<(), String> {
    if is_url_of_request(url) {
        Ok(())
    } else {
        Err("the host contains a character that no host can contain".to_owned())
    }
}

/// True for a URL to which a request can be sent. The parsers that the client uses differ in what they accept.
fn is_url_of_request(text: &str) -> bool {
    let is_web = |url: Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    // The second parser reads the normalized form of the text, as well.
    let is_uri = |text: &str| text.parse::<Uri>().is_ok_and(|uri| uri.authority().is_some());
    is_uri(text) && Url::parse(text).is_ok_and(|url| is_uri(url.as_str()) && is_web(url))
}

/// Returns a field of the JSON document of a service account whose URL is wrong, and what is wrong with it.
fn problem_of_account(text: &str) -> Option<(String, String)> {
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return None };
    let problem = |(name, value): (&String, &Value)| {
        let problem = problem(&name.to_ascii_uppercase(), value.as_str()?)?;
        Some((name.clone(), problem))
    };
    let is_url = |name: &str| BASE_URLS.contains(&name.to_ascii_uppercase().as_str());
    fields.iter().filter(|(name, _)| is_url(name)).find_map(problem)
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
    fn what_the_given_credentials_do_not_use_may_be_malformed() {
        for (keys, unused, value) in [
            (&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"][..], "AWS_ENDPOINT_URL_STS", "sts:443"),
            (&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "AWS_METADATA_ENDPOINT", "169.254.169.254"),
            (&["AZURE_STORAGE_ACCOUNT_KEY"], "AZURE_AUTHORITY_HOST", "login.microsoftonline.com"),
            (&["AZURE_STORAGE_ACCOUNT_KEY"], "IDENTITY_ENDPOINT", "localhost:1"),
            (&["GOOGLE_SERVICE_ACCOUNT"], "GCE_METADATA_HOST", "http://host"),
        ] {
            let keys: Vec<(&str, &str)> = keys.iter().map(|name| (*name, "key")).collect();
            let with = |more: &[(&'static str, &'static str)]| check(&[&keys[..], more].concat(), false);
            assert_eq!(with(&[(unused, value)]), Ok(()), "{unused}");
            assert!(check(&[&keys[1..], &[(unused, value)]].concat(), false).is_err(), "{unused}");
            assert!(with(&[(unused, "http://user:password@host")]).is_err(), "{unused}: no user is shown");
        }
        let emulator = ("AZURITE_BLOB_STORAGE_URL", "localhost:10000");
        assert_eq!(check(&[emulator], false), Ok(()));
        assert_eq!(check(&[emulator, ("AZURE_STORAGE_USE_EMULATOR", "false")], false), Ok(()));
        assert!(check(&[emulator, ("AZURE_STORAGE_USE_EMULATOR", "true")], false).is_err());
    }

    #[test]
    fn what_no_url_can_contain_is_refused_by_the_name_of_the_variable() {
        let endpoints = [
            "",
            " ",
            "localhost:9000",
            "minio:9000",
            "s3.amazonaws.com",
            "http://",
            "http://host:99999",
            "http://{bucket}.host",
            "http://h\u{f6}st",
            "http://host name",
            " http://host",
            "http://host ",
            "http:/host",
            "ftp://host",
            "\"http://host\"",
            "http://[::zz]",
            "http://host/?k=hidden",
            "http://host/#hidden",
        ];
        for name in [
            "AWS_ENDPOINT",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_ENDPOINT_URL_STS",
            "AWS_Endpoint",
            "AWS_METADATA_ENDPOINT",
            "AZURE_STORAGE_ENDPOINT",
            "AZURE_ENDPOINT",
            "AZURE_AUTHORITY_HOST",
            "GOOGLE_BASE_URL",
        ] {
            for value in endpoints {
                let error = refused(name, value).unwrap_or_else(|| panic!("{name}={value:?} is accepted"));
                assert!(error.starts_with(name) && error.contains("http://"), "{error}");
                assert!(!error.contains("hidden"), "{error}");
            }
            for value in ["http://host:9000", "https://host/path/", "http://[::1]:9000", "HTTPS://HOST"] {
                assert_eq!(refused(name, value), None, "{name}={value}");
            }
        }
        for (name, value, expected) in [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "localhost:1", "http://"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "v2/creds", "begins with /"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/a b", "begins with /"),
            ("AZURE_MSI_ENDPOINT", "localhost:1", "http://"),
            ("IDENTITY_ENDPOINT", "localhost:1", "http://"),
            ("AZURE_FABRIC_TOKEN_SERVICE_URL", "localhost:1", "http://"),
            ("GCE_METADATA_HOST", "http://host", "without http://"),
            ("GCE_METADATA_HOST", "a b", "without http://"),
            ("AWS_REGION", "\"eu-central-1\"", "such as eu-central-1"),
            ("AWS_REGION", "eu-central-1 ", "such as eu-central-1"),
            ("AWS_DEFAULT_REGION", "eu central", "such as eu-central-1"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "\"account\"", "such as myaccount"),
            ("AZURE_TENANT_ID", "'tenant'", "such as contoso"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", r#"{"gcs_base_url": "localhost:1"}"#, "gcs_base_url"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", r#"{"gcs_base_url": ""}"#, "gcs_base_url"),
        ] {
            let error = refused(name, value).unwrap_or_else(|| panic!("{name}={value:?} is accepted"));
            assert!(error.starts_with(name) && error.contains(expected), "{error}");
        }
        for (name, value) in [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/creds?id=1"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/a?b"),
            ("IDENTITY_ENDPOINT", "http://169.254.169.254/msi/token"),
            ("GCE_METADATA_HOST", "169.254.169.254:80"),
            ("AWS_REGION", "eu-central-1"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1"),
            ("AWS_PROXY_URL", "proxy:3128"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", r#"{"gcs_base_url": "http://127.0.0.1:4443"}"#),
        ] {
            assert_eq!(refused(name, value), None, "{name}");
        }
    }

    #[test]
    fn a_service_account_file_with_a_malformed_url_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, r#"{"private_key": "hidden", "gcs_base_url": "localhost:1"}"#).unwrap();
        for name in ["GOOGLE_SERVICE_ACCOUNT", "SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"] {
            let error = refused(name, path).unwrap();
            assert!(error.starts_with(name) && error.contains("gcs_base_url"), "{error}");
            assert!(!error.contains("hidden"), "{error}");
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
