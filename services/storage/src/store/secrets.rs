//! Secrets in the variables of a store, which its errors must not contain.

use std::{fs, ops::Range, path::Path, sync::Arc};

use object_store::Error;
use serde_json::Value;

use super::{
    secret::{MIN_CHARS, Secret},
    sent::Sent,
    shown_url::user_of,
    unescaped::Unescaped,
};

/// Begin of the text in place of a secret. The name of its variable follows.
const NAMED: &str = "(value of ";
/// Shorter lines of a value are not redacted, in characters.
const MIN_LINE_CHARS: usize = 8;
/// Maximum size of a file of credentials whose contents are redacted, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Variables, without their prefix, whose values are shown in errors: names, places, times and switches. All others are secret.
const PUBLIC: &[&str] = &[
    "ACCESS_KEY_ID",
    "ACCOUNT_NAME",
    "ALLOW_HTTP",
    "ALLOW_INVALID_CERTIFICATES",
    "APPLICATION_CREDENTIALS",
    "AUTHORITY_HOST",
    "AUTHORITY_ID",
    "AZURITE_BLOB_STORAGE_URL",
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
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
    "GCE_METADATA_ROOT",
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
/// Variable, without its prefix, with a URL of which only the user and the password are secret.
const PROXY: &str = "PROXY_URL";
/// Variables, without their prefix, with the path of a file that contains secrets.
const SECRET_FILES: &[&str] = &[
    "APPLICATION_CREDENTIALS",
    "CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "FEDERATED_TOKEN_FILE",
    "SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT_PATH",
    "WEB_IDENTITY_TOKEN_FILE",
];
/// Fields of JSON documents whose texts are shown in errors: names, places and kinds. All other fields are secret.
const PUBLIC_FIELDS: &[&str] = &[
    "account",
    "audience",
    "auth_provider_x509_cert_url",
    "auth_uri",
    "client_email",
    "client_id",
    "client_x509_cert_url",
    "gcs_base_url",
    "project_id",
    "quota_project_id",
    "service_account_impersonation_url",
    "subject_token_type",
    "token_info_url",
    "token_uri",
    "token_url",
    "type",
    "universe_domain",
];

/// Texts that are replaced in errors of a store by the name of the variable that contains them. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    secrets: Arc<[Secret]>,
    /// Secrets that requests to the store contained.
    sent: Sent,
}

impl Secrets {
    /// Secrets of the variables that configure a store, and of the files that they name, with those that are `sent` to it. Blocks.
    pub(super) fn with_sent(variables: &[(&str, &str)], sent: Sent) -> Self {
        Self { sent, ..Self::of(variables) }
    }

    /// Secrets of the variables that configure a store, and of the files that they name. Blocks.
    pub(super) fn of(variables: &[(&str, &str)]) -> Self {
        let mut texts = Vec::new();
        for (name, value) in variables {
            let short = short(name);
            if SECRET_FILES.contains(&short.as_str()) {
                if let Some(contents) = read_file(value) {
                    add(&mut texts, name, &contents);
                }
            } else if short == PROXY {
                add_user(&mut texts, name, value);
            } else if !PUBLIC.contains(&short.as_str()) {
                add(&mut texts, name, value);
            }
        }
        texts.sort_by(|(a, _), (b, _)| a.cmp(b));
        texts.dedup_by(|(a, _), (b, _)| a == b);
        let secrets = texts.into_iter().map(|(text, name)| Secret::new(name, text));
        Self { secrets: secrets.collect(), sent: Sent::default() }
    }

    /// True if there is nothing to replace.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Replaces each secret in `text` by the name of its variable, however its characters are escaped and wrapped.
    pub(super) fn redact(&self, text: &str) -> String {
        let sent = self.sent.secrets();
        let secrets: Vec<&Secret> = self.secrets.iter().chain(sent.iter().map(AsRef::as_ref)).collect();
        // A character before a secret can look like the begin of an escape, so that the secret is found only as it is.
        let mut found = found(&secrets, &Unescaped::verbatim(text), |secret| &secret.verbatim);
        found.extend(self::found(&secrets, &Unescaped::of(text), |secret| &secret.unescaped));
        for (place, _) in &mut found {
            // A secret that is no text after its escapes can begin or end inside of a character.
            *place = text.floor_char_boundary(place.start)..text.ceil_char_boundary(place.end);
        }
        // Of those at the same place, the longest.
        found.sort_by_key(|(place, _)| (place.start, std::cmp::Reverse(place.end)));
        let (mut redacted, mut end) = (String::with_capacity(text.len()), 0);
        for (place, secret) in found {
            if place.start >= end {
                redacted.push_str(&text[end..place.start]);
                redacted.push_str(&format!("{NAMED}{})", secret.name));
            }
            end = end.max(place.end);
        }
        redacted.push_str(&text[end..]);
        without_received(&redacted)
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

/// Returns the places of secrets in a text. If several secrets begin at one place, only the longest is returned, and of those the first.
/// Places can overlap. `form` selects the form of the secrets that is searched.
fn found<'a>(
    secrets: &[&'a Secret],
    text: &Unescaped,
    form: fn(&Secret) -> &[u8],
) -> Vec<(Range<usize>, &'a Secret)> {
    let longest = |at: usize| {
        let fits = |secret: &&&'a Secret| {
            let form = form(secret);
            form.len() >= MIN_CHARS
                && text.bytes[at..].starts_with(form)
                && (!secret.is_word || text.is_word(at, at + form.len()))
        };
        let secret = *secrets.iter().rev().filter(fits).max_by_key(|secret| form(secret).len())?;
        Some((text.place(at, at + form(secret).len()), secret))
    };
    (0..text.bytes.len()).filter_map(longest).collect()
}

/// Returns the text without the values that a parser of JSON repeats in its errors: a malformed answer of a token service can have a credential there.
/// The name in place of a secret stays.
fn without_received(text: &str) -> String {
    const BEGINS: [&str; 2] = ["invalid type: string \"", "invalid value: string \""];
    const END: &str = "\", expected";
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) =
        BEGINS.iter().filter_map(|begin| rest.find(begin).map(|at| at + begin.len())).min()
    {
        let end = rest[start..].find(END).map_or(rest.len(), |length| start + length);
        let value = &rest[start..end];
        shown.push_str(&rest[..start]);
        shown.push_str(if value.starts_with(NAMED) && value.ends_with(')') { value } else { "(not shown)" });
        rest = &rest[end..];
    }
    shown + rest
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

/// Adds the parts of `value` that errors can contain: the whole value, its lines, the secret fields if it is a JSON document, and the signature
/// if it is a URL or a query.
fn add(texts: &mut Vec<(String, String)>, name: &str, value: &str) {
    match serde_json::from_str::<Value>(value) {
        // Lines of a document have public fields, too.
        Ok(document @ (Value::Object(_) | Value::Array(_))) => {
            add_text(texts, name, value);
            add_fields(texts, name, &document);
        }
        Ok(Value::String(text)) => {
            add_lines(texts, name, value);
            add_lines(texts, name, &text);
        }
        Ok(Value::Null | Value::Bool(_) | Value::Number(_)) | Err(_) => add_lines(texts, name, value),
    }
    for signature in value.split(['?', '&']).filter_map(|part| part.strip_prefix("sig=")) {
        add_text(texts, name, signature);
    }
}

/// Adds a text and its lines.
fn add_lines(texts: &mut Vec<(String, String)>, name: &str, text: &str) {
    add_text(texts, name, text);
    for line in text.lines().filter(|line| line.trim().chars().count() >= MIN_LINE_CHARS) {
        add_text(texts, name, line);
    }
}

fn add_fields(texts: &mut Vec<(String, String)>, name: &str, document: &Value) {
    match document {
        Value::String(text) => add_lines(texts, name, text),
        Value::Array(items) => items.iter().for_each(|item| add_fields(texts, name, item)),
        Value::Object(fields) => {
            let is_public = |field: &str, value: &Value| value.is_string() && PUBLIC_FIELDS.contains(&field);
            let secret = fields.iter().filter(|(field, value)| !is_public(field, value));
            secret.for_each(|(_, value)| add_fields(texts, name, value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Adds the user and the password of a URL, together and alone.
fn add_user(texts: &mut Vec<(String, String)>, name: &str, url: &str) {
    // The scheme can be missing.
    let user = user_of(url).or_else(|| url.rsplit_once('@').map(|(user, _)| user));
    let Some(user) = user else { return };
    add_text(texts, name, user);
    if let Some((user, password)) = user.split_once(':') {
        add_text(texts, name, user);
        add_text(texts, name, password);
    }
}

/// Adds a text and, if it is a URL, its normalized form. Escaped forms are found without being added.
fn add_text(texts: &mut Vec<(String, String)>, name: &str, text: &str) {
    let text = text.trim();
    let url = url::Url::parse(text).map(String::from).unwrap_or_default();
    let forms = [text.to_owned(), url].into_iter().filter(|form| Secret::is_redacted(form));
    texts.extend(forms.map(|form| (form, name.to_owned())));
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
    fn a_value_that_a_parser_repeats_is_not_shown() {
        let text = "token: invalid type: string \"tok\\\"en\", expected struct Answer; invalid value: string \"other\", expected a number";
        let shown = "token: invalid type: string \"(not shown)\", expected struct Answer; invalid value: string \"(not shown)\", \
                     expected a number";
        let secrets = Secrets::of(&[]);
        assert_eq!(secrets.redact(text), shown);
        assert_eq!(secrets.redact(shown), shown);
        assert_eq!(secrets.redact("invalid type: string \"cut"), "invalid type: string \"(not shown)");
    }

    #[test]
    fn a_secret_is_replaced_however_a_store_has_escaped_it() {
        let secrets = Secrets::of(&[
            ("AWS_SESSION_TOKEN", "token/x+y=="),
            ("AZURE_STORAGE_SAS_KEY", "sv=2021&sig=sign%2Bature%3D"),
            ("AWS_SECRET_ACCESS_KEY", "pass w\u{f6}rd\\n1"),
        ]);
        for text in [
            "token/x+y==",
            "token\\/x+y==",
            "token\\/x\\u002by\\u003D\\u003d",
            "token&#x2F;x&#43;y==",
            "token&sol;x&plus;y&equals;=",
            "token%2fx%2by%3d%3d",
            "token%252Fx%252By%253D%253D",
            "token/\n   x+y=\n=",
            "tok\\nen/x+y\\r\\n==",
        ] {
            assert_eq!(secrets.redact(&format!("<a {text}>")), "<a (value of AWS_SESSION_TOKEN)>", "{text}");
        }
        for text in
            ["sign%2Bature%3D", "sign%2bature%3d", "sign+ature=", "sign%252Bature%253D", "sign&#43;ature="]
        {
            let shown = secrets.redact(&format!("sv=2021&amp;se=1&amp;sig={text}&amp;x"));
            assert_eq!(shown, "sv=2021&amp;se=1&amp;sig=(value of AZURE_STORAGE_SAS_KEY)&amp;x", "{text}");
        }
        for text in
            ["pass w\u{f6}rd\\n1", "pass%20w%C3%B6rd%5Cn1", "pass w\\u00f6rd\\\\n1", "pass w&#246;rd&bsol;n1"]
        {
            assert_eq!(secrets.redact(text), "(value of AWS_SECRET_ACCESS_KEY)", "{text}");
        }
        // The backslash and the first letter of the secret are no escape.
        let secrets = Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "n0-secret")]);
        assert_eq!(secrets.redact("C:\\n0-secret"), "C:\\(value of AWS_SECRET_ACCESS_KEY)");
        assert_eq!(secrets.redact("\u{f6}%C3%B6\\"), "\u{f6}%C3%B6\\");
        let secrets = Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "%B6abcdefg")]);
        assert_eq!(secrets.redact("a \u{f6}abcdefg"), "a (value of AWS_SECRET_ACCESS_KEY)");
        // White space precedes a short secret with an encoded character.
        let secrets = Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "\u{f6}abcd")]);
        assert_eq!(secrets.redact("a \\u00f6abcd b"), "a (value of AWS_SECRET_ACCESS_KEY) b");
        // Secrets overlap.
        let secrets =
            Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "abcdefgh"), ("AWS_SESSION_TOKEN", "ghijklmn")]);
        assert_eq!(secrets.redact("<abcdefghijklmn>"), "<(value of AWS_SECRET_ACCESS_KEY)>");
    }

    #[test]
    fn public_fields_of_a_service_account_and_short_or_known_values_do_not_hide_other_texts() {
        let account = r#"{
  "type": "service_account",
  "project_id": "proj-1",
  "private_key_id": "abcdef123456",
  "private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvSECRET\n-----END PRIVATE KEY-----\n",
  "client_email": "a@proj-1.iam.gserviceaccount.com",
  "client_id": "123456",
  "auth_uri": "https://accounts.google.com/o/oauth2/auth",
  "token_uri": "https://oauth2.googleapis.com/token",
  "universe_domain": "googleapis.com",
  "other": "unknown-field"
}"#;
        let secrets = Secrets::of(&[("GOOGLE_SERVICE_ACCOUNT_KEY", account)]);
        let public =
            "https://storage.googleapis.com/service_account/123456 https://accounts.google.com/o/oauth2/auth";
        assert_eq!(secrets.redact(public), public);
        for text in ["MIIEvSECRET", "abcdef123456", "unknown-field", account] {
            assert_eq!(secrets.redact(text), "(value of GOOGLE_SERVICE_ACCOUNT_KEY)");
        }

        let known = [("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")];
        assert!(Secrets::of(&known).is_empty());
        let secrets = Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "minio")]);
        for (text, expected) in [
            ("http://minio-1:9/minio_data/minios", "http://minio-1:9/minio_data/minios"),
            ("key=minio&x", "key=(value of AWS_SECRET_ACCESS_KEY)&x"),
            (
                "%2Fminio%2f 'minio'",
                "%2F(value of AWS_SECRET_ACCESS_KEY)%2f '(value of AWS_SECRET_ACCESS_KEY)'",
            ),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
    }

    #[test]
    fn of_a_proxy_only_the_user_and_the_password_are_secret() {
        assert!(Secrets::of(&[("AWS_PROXY_URL", "http://127.0.0.1:9")]).is_empty());
        let secrets = Secrets::of(&[("AWS_PROXY_URL", "http://someuser:p%40ss/word@proxy:3128")]);
        for (text, expected) in [
            ("http://proxy:3128/x", "http://proxy:3128/x"),
            ("http://someuser:p%40ss/word@proxy:3128", "http://(value of AWS_PROXY_URL)@proxy:3128"),
            ("wrong password p@ss%2Fword", "wrong password (value of AWS_PROXY_URL)"),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
        let secrets = Secrets::of(&[("AWS_PROXY_URL", "hidden-token@proxy:3128")]);
        assert_eq!(secrets.redact("hidden-token@proxy"), "(value of AWS_PROXY_URL)@proxy");
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
    fn a_secret_that_was_sent_is_replaced_and_one_of_a_variable_keeps_its_name() {
        let sent = Sent::default();
        let secrets = Secrets::with_sent(&[("AWS_SESSION_TOKEN", "static-token")], sent.clone());
        for token in ["static-token", "token/abc=", "test"] {
            let mut request = object_store::client::HttpRequest::new(Vec::new().into());
            request.headers_mut().insert("x-amz-security-token", token.parse().unwrap());
            sent.note_request(&request);
        }
        for (text, expected) in [
            ("a token token%2Fabc%3D", "a token (value of x-amz-security-token)"),
            ("static-token", "(value of AWS_SESSION_TOKEN)"),
            ("a test", "a test"),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
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
