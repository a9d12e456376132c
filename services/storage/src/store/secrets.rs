//! Secrets in the variables of a store, which its errors must not contain.

use std::{fs, path::Path, sync::Arc};

use object_store::Error;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;

/// Shorter values are not redacted, in characters. They are no secrets, and occur in texts by chance.
const MIN_CHARS: usize = 4;
/// Shorter lines of a value are not redacted, in characters.
const MIN_LINE_CHARS: usize = 8;
/// Maximum size of a file of credentials whose contents are redacted, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Characters that are not encoded in a query.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Variables, without their prefix, whose values are shown in errors: names, places, times and switches. All others are secret.
const PUBLIC: &[&str] = &[
    "ACCESS_KEY_ID",
    "ACCOUNT_NAME",
    "ALLOW_HTTP",
    "ALLOW_INVALID_CERTIFICATES",
    "APPLICATION_CREDENTIALS",
    "AUTHORITY_HOST",
    "AUTHORITY_ID",
    "BASE_URL",
    "BUCKET",
    "BUCKET_NAME",
    "CHECKSUM_ALGORITHM",
    "CLIENT_ID",
    "CONDITIONAL_PUT",
    "CONNECT_TIMEOUT",
    "CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "CONTAINER_NAME",
    "COPY_IF_NOT_EXISTS",
    "DEFAULT_CONTENT_TYPE",
    "DEFAULT_REGION",
    "DISABLE_TAGGING",
    "ENDPOINT",
    "ENDPOINT_URL",
    "ENDPOINT_URL_S3",
    "ENDPOINT_URL_STS",
    "FABRIC_CLUSTER_IDENTIFIER",
    "FABRIC_TOKEN_SERVICE_URL",
    "FABRIC_WORKLOAD_HOST",
    "FEDERATED_TOKEN_FILE",
    "HTTP1_ONLY",
    "HTTP2_KEEP_ALIVE_INTERVAL",
    "HTTP2_KEEP_ALIVE_TIMEOUT",
    "HTTP2_KEEP_ALIVE_WHILE_IDLE",
    "HTTP2_MAX_FRAME_SIZE",
    "HTTP2_ONLY",
    "IDENTITY_ENDPOINT",
    "IMDSV1_FALLBACK",
    "METADATA_ENDPOINT",
    "MSI_ENDPOINT",
    "MSI_RESOURCE_ID",
    "OBJECT_ID",
    "POOL_IDLE_TIMEOUT",
    "POOL_MAX_IDLE_PER_HOST",
    "PROXY_EXCLUDES",
    "RANDOMIZE_ADDRESSES",
    "REGION",
    "REQUEST_PAYER",
    "ROLE_ARN",
    "ROLE_SESSION_NAME",
    "S3_EXPRESS",
    "SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT_PATH",
    "SKIP_SIGNATURE",
    "SSE_BUCKET_KEY_ENABLED",
    "TENANT_ID",
    "TIMEOUT",
    "UNSIGNED_PAYLOAD",
    "USER_AGENT",
    "USE_AZURE_CLI",
    "USE_EMULATOR",
    "USE_FABRIC_ENDPOINT",
    "VIRTUAL_HOSTED_STYLE_REQUEST",
];
/// Variables, without their prefix, with the path of a file that contains secrets.
const SECRET_FILES: &[&str] = &[
    "APPLICATION_CREDENTIALS",
    "CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "FEDERATED_TOKEN_FILE",
    "SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT_PATH",
    "WEB_IDENTITY_TOKEN_FILE",
];
/// Fields of JSON documents whose values are shown in errors.
const PUBLIC_FIELDS: &[&str] =
    &["client_email", "gcs_base_url", "project_id", "quota_project_id", "token_uri"];

/// Texts that are replaced in errors of a store by the name of the variable that contains them. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    /// Each text with the name of its variable; the longest first.
    texts: Arc<[(String, String)]>,
}

impl Secrets {
    /// Secrets of the variables that configure a store, and of the files that they name. Blocks.
    pub(super) fn of(variables: &[(&str, &str)]) -> Self {
        let mut texts = Vec::new();
        for (name, value) in variables {
            let short = short(name);
            if SECRET_FILES.contains(&short.as_str()) {
                if let Some(contents) = read_file(value) {
                    add(&mut texts, name, &contents);
                }
            } else if !PUBLIC.contains(&short.as_str()) {
                add(&mut texts, name, value);
            }
        }
        texts.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup_by(|(a, _), (b, _)| a == b);
        Self { texts: texts.into() }
    }

    /// True if there is nothing to replace.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Replaces each secret in `text` by the name of its variable.
    pub(super) fn redact(&self, text: &str) -> String {
        let (mut redacted, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(next) = rest.chars().next() {
            match self.texts.iter().find(|(secret, _)| rest.starts_with(secret.as_str())) {
                Some((secret, name)) => {
                    redacted.push_str(&format!("(value of {name})"));
                    rest = &rest[secret.len()..];
                }
                None => {
                    redacted.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        redacted
    }

    /// Replaces each secret in an error. Its kind stays the same.
    pub(super) fn redact_error(&self, error: Error) -> Error {
        let shown = error.to_string();
        if self.redact(&shown) == shown {
            return error;
        }
        let text = |text: &dyn std::fmt::Display| self.redact(&text.to_string());
        match error {
            Error::Generic { store, source } => Error::Generic { store, source: text(&source).into() },
            Error::NotFound { path, source } => {
                Error::NotFound { path: text(&path), source: text(&source).into() }
            }
            Error::NotSupported { source } => Error::NotSupported { source: text(&source).into() },
            Error::AlreadyExists { path, source } => {
                Error::AlreadyExists { path: text(&path), source: text(&source).into() }
            }
            Error::Precondition { path, source } => {
                Error::Precondition { path: text(&path), source: text(&source).into() }
            }
            Error::NotModified { path, source } => {
                Error::NotModified { path: text(&path), source: text(&source).into() }
            }
            Error::PermissionDenied { path, source } => {
                Error::PermissionDenied { path: text(&path), source: text(&source).into() }
            }
            Error::Unauthenticated { path, source } => {
                Error::Unauthenticated { path: text(&path), source: text(&source).into() }
            }
            Error::NotImplemented { operation, implementer } => {
                Error::NotImplemented { operation: text(&operation), implementer: text(&implementer) }
            }
            other => Error::Generic { store: "object store", source: text(&other).into() },
        }
    }
}

/// The name of a variable without the prefix of its store, in capital letters.
pub(super) fn short(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    let prefixes = ["AWS_", "GOOGLE_", "AZURE_STORAGE_", "AZURE_"];
    prefixes.into_iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name).to_owned()
}

/// Reads a small text file; `None` if it is missing, too large or no text.
pub(super) fn read_file(path: impl AsRef<Path>) -> Option<String> {
    let found = fs::metadata(&path).ok()?;
    let is_small = found.is_file() && found.len() <= MAX_FILE_BYTES;
    if is_small { fs::read_to_string(path).ok() } else { None }
}

/// Adds the forms in which errors can contain `value`: as it is, a line of it, a text in the JSON document or the signature in the query
/// that it is.
fn add(texts: &mut Vec<(String, String)>, name: &str, value: &str) {
    add_forms(texts, name, value);
    for line in value.lines().filter(|line| line.trim().chars().count() >= MIN_LINE_CHARS) {
        add_forms(texts, name, line);
    }
    if let Ok(document) = serde_json::from_str::<Value>(value) {
        add_fields(texts, name, &document);
    }
    for signature in value.split(['?', '&']).filter_map(|part| part.strip_prefix("sig=")) {
        add_forms(texts, name, signature);
        add_forms(texts, name, &percent_decode_str(signature).decode_utf8_lossy());
    }
}

fn add_fields(texts: &mut Vec<(String, String)>, name: &str, document: &Value) {
    match document {
        Value::String(text) => {
            add_forms(texts, name, text);
            for line in text.lines().filter(|line| line.trim().chars().count() >= MIN_LINE_CHARS) {
                add_forms(texts, name, line);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_fields(texts, name, item)),
        Value::Object(fields) => {
            let secret = fields.iter().filter(|(field, _)| !PUBLIC_FIELDS.contains(&field.as_str()));
            secret.for_each(|(_, value)| add_fields(texts, name, value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Adds a text, and the forms that it has in URLs and in quotes.
fn add_forms(texts: &mut Vec<(String, String)>, name: &str, text: &str) {
    let (quoted, json) = (format!("{text:?}"), Value::from(text).to_string());
    let encoded = utf8_percent_encode(text, UNRESERVED).to_string();
    let url = url::Url::parse(text).map(String::from).unwrap_or_default();
    let inside = |quoted: &str| quoted[1..quoted.len() - 1].to_owned();
    let forms = [text.to_owned(), text.trim().to_owned(), inside(&quoted), inside(&json), encoded, url];
    let long = forms.into_iter().filter(|form| form.chars().count() >= MIN_CHARS);
    texts.extend(long.map(|form| (form, name.to_owned())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_replaced_in_each_form_and_settings_stay() {
        let account = r#"{"private_key": "first-line\nsecond-line", "client_email": "me@example", "type": {"deep": ["t0p-secret"]}}"#;
        let secrets = Secrets::of(&[
            ("AWS_SECRET_ACCESS_KEY", "a/secret key+\"quoted\""),
            ("AWS_SESSION_TOKEN", "a/secret"),
            ("AWS_SERVER_SIDE_ENCRYPTION", "mistaken"),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:80/hidden"),
            ("AZURE_STORAGE_SAS_KEY", "?sv=2024&sig=abc%2Fdef&se=1"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", account),
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ACCESS_KEY_ID", "AKIA1234"),
            ("AWS_SSE_KMS_KEY_ID", "abc"),
        ]);
        for (text, expected) in [
            ("x a/secret key+\"quoted\" y", "x (value of AWS_SECRET_ACCESS_KEY) y"),
            ("?k=a%2Fsecret%20key%2B%22quoted%22", "?k=(value of AWS_SECRET_ACCESS_KEY)"),
            (r#""a/secret key+\"quoted\"""#, r#""(value of AWS_SECRET_ACCESS_KEY)""#),
            ("a/secret", "(value of AWS_SESSION_TOKEN)"),
            ("type: mistaken.", "type: (value of AWS_SERVER_SIDE_ENCRYPTION)."),
            ("GET http://127.0.0.1/hidden", "GET (value of AWS_CONTAINER_CREDENTIALS_FULL_URI)"),
            ("abc/def, abc%2Fdef", "(value of AZURE_STORAGE_SAS_KEY), (value of AZURE_STORAGE_SAS_KEY)"),
            (
                "`t0p-secret`, second-line",
                "`(value of GOOGLE_SERVICE_ACCOUNT_KEY)`, (value of GOOGLE_SERVICE_ACCOUNT_KEY)",
            ),
            ("me@example, eu-central-1, AKIA1234, abc", "me@example, eu-central-1, AKIA1234, abc"),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
        assert!(Secrets::of(&[("AWS_REGION", "eu-central-1"), ("AWS_ALLOW_HTTP", "true")]).is_empty());
    }

    #[test]
    fn the_contents_of_a_file_of_credentials_are_secret_but_not_its_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), r#"{"refresh_token": "hidden-token"}"#).unwrap();
        let path = file.path().to_str().unwrap();
        let secrets = Secrets::of(&[("GOOGLE_APPLICATION_CREDENTIALS", path)]);
        let shown = secrets.redact(&format!("{path}: unknown variant `hidden-token`"));
        assert_eq!(shown, format!("{path}: unknown variant `(value of GOOGLE_APPLICATION_CREDENTIALS)`"));
    }

    #[test]
    fn an_error_keeps_its_kind() {
        let secrets = Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "hidden")]);
        let source = || "a hidden reason".into();
        let denied = Error::PermissionDenied { path: "hidden/x".to_owned(), source: source() };
        let redacted = secrets.redact_error(denied);
        assert!(matches!(redacted, Error::PermissionDenied { .. }));
        assert!(!format!("{redacted} {redacted:?}").contains("hidden"), "{redacted:?}");
        let missing = secrets.redact_error(Error::NotFound { path: "x".to_owned(), source: source() });
        assert!(matches!(missing, Error::NotFound { .. }) && !missing.to_string().contains("hidden"));
    }
}
