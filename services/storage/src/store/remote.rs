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
        credentials::Credentials,
        retries::RetryingConnector,
    },
};

/// Wait before the first retry of a request.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum wait between two retries of a request. Bounds the time until a store that has recovered is used again.
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Opens a store. Its settings are those in the environment, or those that a caller has `given`.
pub(crate) fn remote(
    url: &Url,
    config: &Config,
    answers: &Answers,
    given: Option<&Credentials>,
) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    let timeout = format!("{} ms", config.request_timeout.as_millis());
    let retry = RetryConfig {
        // A wait is random, and at most `base` times as long as the one before it. With the default base of 2, waits
        // would stay near the first one on average, and an outage would cause a request every few hundred milliseconds.
        backoff: BackoffConfig { init_backoff: FIRST_BACKOFF, max_backoff: MAX_BACKOFF, base: 3.0 },
        max_retries: config.max_retries,
        retry_timeout: config.retry_timeout,
    };
    let inner = RetryingConnector::new(config.concurrent_requests, given.is_some());
    let connector = AnsweringConnector { inner, answers: answers.clone() };
    // The timeout is set by key, because a whole `ClientOptions` would replace the options from the environment.
    let key = ClientConfigKey::Timeout;
    let wrong = |detail: String| object_store::Error::NotSupported { source: detail.into() };
    match url.scheme() {
        "s3" | "s3a" => {
            let builder = match given {
                Some(given) => {
                    Ok(given.configure(AmazonS3Builder::new(), "AWS_", AmazonS3Builder::with_config))
                }
                None => aws_profile::apply(AmazonS3Builder::from_env(), |name| std::env::var(name).ok()),
            };
            let builder = builder.map_err(wrong)?.with_url(url.as_str()).with_retry(retry);
            let value = |key: AmazonS3ConfigKey| builder.get_config_value(&key);
            let allows_http = value(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
            check_encrypted(value(AmazonS3ConfigKey::Endpoint), allows_http, "AWS_ALLOW_HTTP")
                .map_err(wrong)?;
            let builder = builder.with_config(AmazonS3ConfigKey::Client(key), timeout);
            Ok(Arc::new(builder.with_http_connector(connector).build()?))
        }
        "gs" => {
            let builder = match given {
                Some(given) => google(given).map_err(wrong)?,
                None => GoogleCloudStorageBuilder::from_env(),
            };
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let builder = builder.with_config(GoogleConfigKey::Client(key), timeout);
            Ok(Arc::new(builder.with_http_connector(connector).build()?))
        }
        "az" | "azure" | "adl" | "abfs" | "abfss" => {
            let builder = match given {
                Some(given) => azure(given).map_err(wrong)?,
                None => MicrosoftAzureBuilder::from_env(),
            };
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let value = |key: AzureConfigKey| builder.get_config_value(&key);
            let is_emulator = value(AzureConfigKey::UseEmulator).as_deref() == Some("true");
            let allows_http = value(AzureConfigKey::Client(ClientConfigKey::AllowHttp));
            let endpoint = value(AzureConfigKey::Endpoint).filter(|_| !is_emulator);
            check_encrypted(endpoint, allows_http, "AZURE_ALLOW_HTTP").map_err(wrong)?;
            let builder = builder.with_config(AzureConfigKey::Client(key), timeout);
            Ok(Arc::new(builder.with_http_connector(connector).build()?))
        }
        "http" | "https" => {
            let base = &url[..url::Position::BeforePath];
            let builder = HttpBuilder::new().with_url(base).with_retry(retry);
            let builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            let builder = builder.with_config(key, timeout).with_http_connector(connector);
            Ok(Arc::new(builder.build()?))
        }
        scheme => Err(object_store::Error::NotSupported {
            source: format!("unknown scheme {scheme}; expected a path, file, s3, gs, az, http or https")
                .into(),
        }),
    }
}

/// Returns the settings of a caller for Google Cloud Storage.
///
/// # Errors
/// The caller has no credentials, but the user that this process belongs to has some, which would be used for it.
fn google(given: &Credentials) -> Result<GoogleCloudStorageBuilder, String> {
    let set = GoogleCloudStorageBuilder::with_config;
    let builder = given.configure(GoogleCloudStorageBuilder::new(), "GOOGLE_", set);
    let of_caller = [
        GoogleConfigKey::ServiceAccount,
        GoogleConfigKey::ServiceAccountKey,
        GoogleConfigKey::ApplicationCredentials,
    ];
    let has_credentials = of_caller.iter().any(|key| builder.get_config_value(key).is_some());
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let usual = home.map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    match usual.filter(|usual| !has_credentials && usual.exists()) {
        Some(usual) => Err(format!(
            "the caller has no credentials, but the server finds those in {}; set GOOGLE_APPLICATION_CREDENTIALS",
            usual.display()
        )),
        None => Ok(builder),
    }
}

/// Returns the settings of a caller for Azure.
///
/// # Errors
/// The caller uses the command line `az`, which this process would run with another configuration.
fn azure(given: &Credentials) -> Result<MicrosoftAzureBuilder, String> {
    let builder = given.configure(MicrosoftAzureBuilder::new(), "AZURE_", MicrosoftAzureBuilder::with_config);
    let uses_cli =
        builder.get_config_value(&AzureConfigKey::UseAzureCli).is_some_and(|value| is_true(&value));
    let differs = |name: &&str| given.get(name) != std::env::var(name).ok().as_deref();
    match ["HOME", "AZURE_CONFIG_DIR"].iter().find(|name| uses_cli && differs(name)) {
        Some(name) => Err(format!(
            "AZURE_USE_AZURE_CLI: the server has another value of {name} than the caller; pass a token in AZURE_STORAGE_TOKEN"
        )),
        None => Ok(builder),
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
            opened.map(drop).map_err(|error| error.to_string())
        };
        open("s3://bucket/x", &[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]).unwrap();
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
}
