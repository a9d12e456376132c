//! Clients of object stores and HTTP servers.

use std::{sync::Arc, time::Duration};

use object_store::{
    BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    http::HttpBuilder,
};
use url::Url;

use crate::{
    Config,
    store::{
        answers::{AnsweringConnector, Answers},
        aws_profile,
        credential_checks::{check, check_base},
        credentials::Credentials,
        redacting::Redacting,
        retries::RetryingConnector,
        secrets::Secrets,
        sent::{NotingConnector, Sent},
    },
};

/// Wait before the first retry of a request.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum wait between two retries of a request. Bounds the time until a store that has recovered is used again.
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Variables of the environment that Azure's client reads, in addition to those with its prefix.
const OF_AZURE: [&str; 3] = ["AZURITE_BLOB_STORAGE_URL", "IDENTITY_ENDPOINT", "IDENTITY_HEADER"];
/// Variables of the environment that Google's client reads, in addition to those with its prefix.
const OF_GOOGLE: [&str; 4] = ["GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT", "SERVICE_ACCOUNT"];

/// Opens a store. Its settings are those in the environment, or those that a caller has `given`. Neither an error of this function nor one
/// of the store contains the value of a secret variable, or a temporary credential.
///
/// # Errors
/// A description, which names the variable that is wrong.
pub(crate) fn remote(
    url: &Url,
    config: &Config,
    answers: &Answers,
    given: Option<&Credentials>,
) -> Result<Arc<dyn ObjectStore>, String> {
    let timeout = format!("{} ms", config.request_timeout.as_millis());
    let retry = RetryConfig {
        // A wait is random, and at most `base` times as long as the one before it. With the default base of 2, waits
        // would stay near the first one on average, and an outage would cause a request every few hundred milliseconds.
        backoff: BackoffConfig { init_backoff: FIRST_BACKOFF, max_backoff: MAX_BACKOFF, base: 3.0 },
        max_retries: config.max_retries,
        retry_timeout: config.retry_timeout,
    };
    let inner = RetryingConnector::new(config.concurrent_requests, given.is_some());
    let sent = Sent::default();
    let inner = NotingConnector { inner, sent: sent.clone() };
    let connector = AnsweringConnector { inner, answers: answers.clone() };
    // The timeout is set by key, because a whole `ClientOptions` would replace the options from the environment.
    let key = ClientConfigKey::Timeout;
    let is_of_caller = given.is_some();
    match url.scheme() {
        "s3" | "s3a" => {
            let (builder, used) = amazon(given)?;
            let used = used.known::<AmazonS3ConfigKey>("AWS_", &[]);
            check(&used, is_of_caller)?;
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let value = |key: AmazonS3ConfigKey| builder.get_config_value(&key);
            let allows_http = value(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
            check_encrypted(value(AmazonS3ConfigKey::Endpoint), allows_http, "AWS_ALLOW_HTTP")?;
            let is_given = |key: AmazonS3ConfigKey| value(key).is_some();
            check_keys(
                is_given(AmazonS3ConfigKey::AccessKeyId),
                is_given(AmazonS3ConfigKey::SecretAccessKey),
            )?;
            let builder = builder.with_config(AmazonS3ConfigKey::Client(key), timeout);
            redacted(builder.with_http_connector(connector).build(), &used, sent)
        }
        "gs" => {
            let (builder, used) = google(given)?;
            let used = used.known::<GoogleConfigKey>("GOOGLE_", &OF_GOOGLE);
            check(&used, is_of_caller)?;
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let builder = builder.with_config(GoogleConfigKey::Client(key), timeout);
            redacted(builder.with_http_connector(connector).build(), &used, sent)
        }
        "az" | "azure" | "adl" | "abfs" | "abfss" => {
            let (builder, used) = azure(given)?;
            let used = used.known::<AzureConfigKey>("AZURE_", &OF_AZURE);
            check(&used, is_of_caller)?;
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let value = |key: AzureConfigKey| builder.get_config_value(&key);
            let is_emulator = value(AzureConfigKey::UseEmulator).as_deref() == Some("true");
            let allows_http = value(AzureConfigKey::Client(ClientConfigKey::AllowHttp));
            let endpoint = value(AzureConfigKey::Endpoint).filter(|_| !is_emulator);
            check_encrypted(endpoint, allows_http, "AZURE_ALLOW_HTTP")?;
            let builder = builder.with_config(AzureConfigKey::Client(key), timeout);
            redacted(builder.with_http_connector(connector).build(), &used, sent)
        }
        "http" | "https" => {
            let base = &url[..url::Position::BeforePath];
            check_base(base)?;
            let builder = HttpBuilder::new().with_url(base).with_retry(retry);
            let builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            let builder = builder.with_config(key, timeout).with_http_connector(connector);
            redacted(builder.build(), &[], sent)
        }
        scheme => Err(format!("unknown scheme {scheme}; expected a path, file, s3, gs, az, http or https")),
    }
}

/// Returns the store that was built with these variables. Its errors, and an error of building it, contain no secret of the variables or of
/// requests that were `sent`.
fn redacted<S: ObjectStore>(
    built: object_store::Result<S>,
    variables: &[(&str, &str)],
    sent: Sent,
) -> Result<Arc<dyn ObjectStore>, String> {
    let secrets = Secrets::with_sent(variables, sent);
    let store = built.map_err(|error| secrets.redact(&error.to_string()))?;
    Ok(Arc::new(Redacting::new(Arc::new(store), secrets)))
}

/// Returns the settings for S3, and the variables that contain them. In this process, these are those of the environment and of the AWS
/// profile, whose settings count as variables.
///
/// # Errors
/// The selected profile is missing, or its credentials are of a kind that is not supported.
fn amazon(given: Option<&Credentials>) -> Result<(AmazonS3Builder, Credentials), String> {
    let mut used = given.cloned().unwrap_or_else(|| Credentials::of_environment("AWS_", &[]));
    let set = used.configure(AmazonS3Builder::new(), "AWS_", AmazonS3Builder::with_config);
    if given.is_some() {
        return Ok((set, used));
    }
    let builder = aws_profile::apply(set.clone(), |name| std::env::var(name).ok())?;
    for (key, name) in [
        (AmazonS3ConfigKey::AccessKeyId, "AWS_ACCESS_KEY_ID"),
        (AmazonS3ConfigKey::SecretAccessKey, "AWS_SECRET_ACCESS_KEY"),
        (AmazonS3ConfigKey::Token, "AWS_SESSION_TOKEN"),
        (AmazonS3ConfigKey::Region, "AWS_REGION"),
        (AmazonS3ConfigKey::Endpoint, "AWS_ENDPOINT_URL"),
    ] {
        let value = builder.get_config_value(&key);
        if value != set.get_config_value(&key) {
            used.add(name, value.unwrap_or_default());
        }
    }
    Ok((builder, used))
}

/// Returns the settings for Google Cloud Storage, and the variables that contain them.
///
/// # Errors
/// The caller has no credentials, but the user that this process belongs to has some, which would be used for it.
fn google(given: Option<&Credentials>) -> Result<(GoogleCloudStorageBuilder, Credentials), String> {
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let usual = home.map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    let set = GoogleCloudStorageBuilder::with_config;
    let Some(given) = given else {
        let mut used = Credentials::of_environment("GOOGLE_", &OF_GOOGLE);
        let mut builder = GoogleCloudStorageBuilder::new();
        if let Some(account) = used.get("SERVICE_ACCOUNT") {
            builder = builder.with_service_account_path(account);
        }
        let builder = used.configure(builder, "GOOGLE_", set);
        if let Some(usual) = usual.as_ref().and_then(|usual| usual.to_str())
            && used.get("GOOGLE_APPLICATION_CREDENTIALS").is_none()
        {
            // The client reads it if it exists.
            used.add("GOOGLE_APPLICATION_CREDENTIALS", usual.to_owned());
        }
        return Ok((builder, used));
    };
    let builder = given.configure(GoogleCloudStorageBuilder::new(), "GOOGLE_", set);
    let of_caller = [
        GoogleConfigKey::ServiceAccount,
        GoogleConfigKey::ServiceAccountKey,
        GoogleConfigKey::ApplicationCredentials,
    ];
    let has_credentials = of_caller.iter().any(|key| builder.get_config_value(key).is_some());
    match usual.filter(|usual| !has_credentials && usual.exists()) {
        Some(usual) => Err(format!(
            "the caller has no credentials, but the server finds those in {}; set GOOGLE_APPLICATION_CREDENTIALS",
            usual.display()
        )),
        None => Ok((builder, given.clone())),
    }
}

/// Returns the settings for Azure, and the variables that contain them.
///
/// # Errors
/// The caller uses the command line `az`, which this process would run with another configuration.
fn azure(given: Option<&Credentials>) -> Result<(MicrosoftAzureBuilder, Credentials), String> {
    let mut used = Credentials::of_environment("AZURE_", &OF_AZURE);
    let set = MicrosoftAzureBuilder::with_config;
    let Some(given) = given else {
        let mut builder = used.configure(MicrosoftAzureBuilder::new(), "AZURE_", set);
        if let Some(endpoint) = used.get("IDENTITY_ENDPOINT") {
            builder = builder.with_msi_endpoint(endpoint);
        }
        return Ok((builder, used));
    };
    let header = used.get("IDENTITY_HEADER").map(str::to_owned);
    used = given.clone();
    if let Some(header) = header {
        // The client takes it from the environment of this process in any case.
        used.add("IDENTITY_HEADER", header);
    }
    let builder = given.configure(MicrosoftAzureBuilder::new(), "AZURE_", set);
    let uses_cli =
        builder.get_config_value(&AzureConfigKey::UseAzureCli).is_some_and(|value| is_true(&value));
    let differs = |name: &&str| given.get(name) != std::env::var(name).ok().as_deref();
    match ["HOME", "AZURE_CONFIG_DIR"].iter().find(|name| uses_cli && differs(name)) {
        Some(name) => Err(format!(
            "AZURE_USE_AZURE_CLI: the server has another value of {name} than the caller; pass a token in AZURE_STORAGE_TOKEN"
        )),
        None => Ok((builder, used)),
    }
}

/// Checks that an endpoint is encrypted, unless the variable `name` of the environment allows another one.
///
/// # Errors
/// Advice on the variable to set.
fn check_encrypted(endpoint: Option<String>, allows_http: Option<String>, name: &str) -> Result<(), String> {
    let Some(endpoint) = endpoint.filter(|endpoint| endpoint.starts_with("http://")) else { return Ok(()) };
    if allows_http.is_some_and(|value| is_true(&value)) {
        return Ok(());
    }
    Err(format!(
        "the endpoint {endpoint} is not encrypted; use https, or set {name}=true to send the data in plain text"
    ))
}

/// Checks that an access key has both parts, if it has one.
///
/// # Errors
/// The name of the variable that is missing.
fn check_keys(has_id: bool, has_secret: bool) -> Result<(), String> {
    let (given, missing) = match (has_id, has_secret) {
        (true, false) => ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        (false, true) => ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        (true, true) | (false, false) => return Ok(()),
    };
    Err(format!("{given} is set, but {missing} is not; set both, or unset {given} to use other credentials"))
}

/// True for the values of variables that mean true.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_endpoint_names_the_variable_that_allows_it() {
        let check = |endpoint: &str, allows: Option<&str>| {
            check_encrypted(Some(endpoint.to_owned()), allows.map(str::to_owned), "AWS_ALLOW_HTTP")
        };
        let error = check("http://127.0.0.1:9000", None).unwrap_err();
        assert!(error.contains("http://127.0.0.1:9000") && error.contains("AWS_ALLOW_HTTP=true"), "{error}");
        assert!(check("http://127.0.0.1:9000", Some("false")).is_err());
        assert!(check("http://127.0.0.1:9000", Some("TRUE")).is_ok() && check("https://store", None).is_ok());
    }

    #[test]
    fn the_settings_of_a_caller_are_used_in_place_of_the_environment() {
        let given = |settings: &[(&str, &str)]| {
            Credentials::new(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        let open = |url: &str, settings: &[(&str, &str)]| {
            let url = Url::parse(url).unwrap();
            let opened = remote(&url, &Config::default(), &Answers::default(), Some(&given(settings)));
            opened.map(drop)
        };
        open("s3://bucket/x", &[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]).unwrap();
        open("s3://bucket/x", &[("AWS_ENDPOINT", ""), ("AWS_REGION", ""), ("AWS_ACCESS_KEY_ID", "")])
            .unwrap();
        let plain = [("AWS_ENDPOINT", "http://store.example"), ("AWS_PAGER", "")];
        let error = open("s3://bucket/x", &plain).unwrap_err();
        assert!(error.contains("http://store.example is not encrypted"), "{error}");
        let cli =
            [("AZURE_USE_AZURE_CLI", "TRUE"), ("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("HOME", "/home/other")];
        let error = open("az://container/x", &cli).unwrap_err();
        assert!(error.contains("another value of HOME"), "{error}");
        let error =
            open("gs://bucket/x", &[("GOOGLE_APPLICATION_CREDENTIALS", "/missing.json")]).unwrap_err();
        assert!(error.contains("/missing.json"), "{error}");
    }

    #[test]
    fn an_access_key_without_its_other_part_is_refused_by_the_name_of_that_one() {
        let error = check_keys(true, false).unwrap_err();
        assert!(error.contains("AWS_SECRET_ACCESS_KEY is not"), "{error}");
        let error = check_keys(false, true).unwrap_err();
        assert!(error.contains("AWS_ACCESS_KEY_ID is not"), "{error}");
        assert_eq!((check_keys(true, true), check_keys(false, false)), (Ok(()), Ok(())));
    }

    /// Builds a store with the variables of a caller, and asks it for an object. It returns the error of the first that fails.
    async fn failure(url: &str, variables: &[(&str, &str)]) -> String {
        let given =
            Credentials::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let config = Config { max_retries: 0, ..Config::default() };
        let url = Url::parse(url).unwrap();
        let store = match remote(&url, &config, &Answers::default(), Some(&given)) {
            Ok(store) => store,
            Err(error) => return error,
        };
        let missing = object_store::path::Path::from("x");
        object_store::ObjectStoreExt::get(&store, &missing).await.expect_err("there is no store").to_string()
    }

    #[tokio::test]
    async fn errors_name_the_variable_but_contain_no_secret() {
        const SECRET: &str = "TOPSECRETvalue";
        // The address refuses connections, because no socket listens at it.
        let refusing = tokio::net::TcpSocket::new_v4().unwrap();
        refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = refusing.local_addr().unwrap();
        let with_user = format!("http://user:{SECRET}@{address}");
        let (base, line) = (format!("http://{address}"), format!("{SECRET}\n"));
        let (uri, text) = (format!("{base}/{SECRET}"), format!("\"{SECRET}\""));
        let with_query = format!("{base}/?k={SECRET}");
        let no_url = format!(r#"{{"private_key": "{SECRET}", "gcs_base_url": "localhost:1"}}"#);
        let account = format!(r#"{{"private_key": "x", "gcs_base_url": "{with_user}"}}"#);
        let deep = format!(
            r#"{{"client_email": {{"a": "{SECRET}"}}, "private_key": "{SECRET}", "private_key_id": "a"}}"#
        );
        let keys = [("AWS_ACCESS_KEY_ID", "AK"), ("AWS_REGION", "x"), ("AWS_ALLOW_HTTP", "true")];
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), SECRET).unwrap();
        let token = token.path().to_str().unwrap();
        let aws = |more: &[(&'static str, &str)]| {
            let keys = keys.iter().map(|(name, value)| (*name, (*value).to_owned()));
            keys.chain(more.iter().map(|(name, value)| (*name, (*value).to_owned()))).collect::<Vec<_>>()
        };
        let of = |more: &[(&'static str, &str)]| {
            more.iter().map(|(name, value)| (*name, (*value).to_owned())).collect::<Vec<_>>()
        };
        for (url, variables, named) in [
            (
                "s3://b/x",
                aws(&[("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_ENDPOINT", &with_user)]),
                "AWS_ENDPOINT",
            ),
            (
                "s3://b/x",
                aws(&[("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_PROXY_URL", &with_user)]),
                "AWS_PROXY_URL",
            ),
            (
                "s3://b/x",
                aws(&[("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SERVER_SIDE_ENCRYPTION", SECRET)]),
                "AWS_SERVER_SIDE_ENCRYPTION",
            ),
            ("s3://b/x", aws(&[("AWS_SECRET_ACCESS_KEY", &line)]), "AWS_SECRET_ACCESS_KEY"),
            (
                "s3://b/x",
                aws(&[("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", &line)]),
                "AWS_SESSION_TOKEN",
            ),
            ("s3://b/x", aws(&[("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_ENDPOINT", &base)]), "127.0.0.1"),
            (
                "s3://b/x",
                of(&[
                    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &uri),
                    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token),
                    ("AWS_REGION", "x"),
                ]),
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ),
            ("gs://b/x", of(&[("GOOGLE_SERVICE_ACCOUNT_KEY", &text)]), "GOOGLE_SERVICE_ACCOUNT_KEY"),
            ("gs://b/x", of(&[("GOOGLE_SERVICE_ACCOUNT_KEY", &account)]), "GOOGLE_SERVICE_ACCOUNT_KEY"),
            ("gs://b/x", of(&[("GOOGLE_SERVICE_ACCOUNT_KEY", &deep)]), "service account"),
            ("gs://b/x", of(&[("GOOGLE_APPLICATION_CREDENTIALS", token)]), "GCS"),
            (
                "az://c/x",
                of(&[("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("AZURE_STORAGE_TOKEN", &line)]),
                "AZURE_STORAGE_TOKEN",
            ),
            (
                "s3://b/x",
                aws(&[("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_ENDPOINT", &with_query)]),
                "AWS_ENDPOINT",
            ),
            ("s3://b/x", of(&[("AWS_ENDPOINT", "localhost:9000")]), "AWS_ENDPOINT"),
            ("s3://b/x", of(&[("AWS_REGION", "\"eu-central-1\"")]), "AWS_REGION"),
            ("s3://b/x", of(&[("AWS_METADATA_ENDPOINT", "localhost:1")]), "AWS_METADATA_ENDPOINT"),
            ("s3://b/x", of(&[("AWS_ACCESS_KEY_ID", "AK")]), "AWS_SECRET_ACCESS_KEY"),
            ("s3://b/x", aws(&[("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_PROXY_URL", "::")]), ""),
            (
                "az://c/x",
                of(&[("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("AZURE_STORAGE_ENDPOINT", "localhost:1")]),
                "AZURE_STORAGE_ENDPOINT",
            ),
            ("gs://b/x", of(&[("GOOGLE_SERVICE_ACCOUNT_KEY", &no_url)]), "gcs_base_url"),
            ("https://{bucket}.host/x", of(&[]), "host"),
        ] {
            let variables: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let error = failure(url, &variables).await;
            assert!(error.contains(named) && !error.contains(SECRET), "{named}: {error}");
        }
    }
}
