//! HTTP clients of stores. They accept the same options as the clients of `object_store`. They share lookups of host names,
//! and their default user agent is Forebay.

use std::{
    fmt::Display,
    str::FromStr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use object_store::{
    ClientConfigKey as Key, ClientOptions,
    client::{HttpClient, HttpConnector},
};
use reqwest::{Certificate, ClientBuilder, NoProxy, Proxy};

use super::names::{Names, Resolver};

/// Lookups of host names, shared by all clients of the process, which also share the resolver of the system.
static NAMES: LazyLock<Names> = LazyLock::new(Names::default);

/// Connector whose clients share the running lookups of host names.
#[derive(Debug)]
pub(crate) struct NamedConnector;

impl HttpConnector for NamedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = builder(options)?.build().map_err(|error| invalid(&error))?;
        Ok(HttpClient::new(client))
    }
}

/// Method of `ClientBuilder` that sets a time.
type SetTime = fn(ClientBuilder, Duration) -> ClientBuilder;

/// Applies all options that have a key, as `object_store` does. The options without one, certificates and headers, are not supported,
/// because the server never sets them.
fn builder(options: &ClientOptions) -> object_store::Result<ClientBuilder> {
    let text = |key: Key| options.get_config_value(&key);
    let duration = |key: Key| {
        let parse =
            |text: String| humantime::parse_duration(&text).map_err(|error| wrong(key, &text, &error));
        text(key).map(parse).transpose()
    };
    let is_set = |key: Key| match text(key).unwrap_or_default().to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        other => Err(wrong(key, other, &"expected true or false")),
    };

    let agent = text(Key::UserAgent).unwrap_or_else(|| concat!("forebay/", env!("CARGO_PKG_VERSION")).into());
    // Without compression, the length of a response is that of the object.
    let mut builder = ClientBuilder::new().user_agent(agent).no_gzip().no_brotli().no_zstd().no_deflate();
    if let Some(url) = text(Key::ProxyUrl) {
        let excluded = text(Key::ProxyExcludes).and_then(|hosts| NoProxy::from_string(&hosts));
        builder = builder.proxy(Proxy::all(url).map_err(|error| invalid(&error))?.no_proxy(excluded));
        if let Some(certificate) = text(Key::ProxyCaCertificate) {
            let certificate =
                Certificate::from_pem(certificate.as_bytes()).map_err(|error| invalid(&error))?;
            builder = builder.add_root_certificate(certificate);
        }
    }
    let times: [(Key, SetTime); 5] = [
        (Key::Timeout, ClientBuilder::timeout),
        (Key::ConnectTimeout, ClientBuilder::connect_timeout),
        (Key::PoolIdleTimeout, |builder, time| builder.pool_idle_timeout(time)),
        (Key::Http2KeepAliveInterval, |builder, time| builder.http2_keep_alive_interval(time)),
        (Key::Http2KeepAliveTimeout, ClientBuilder::http2_keep_alive_timeout),
    ];
    for (key, set) in times {
        if let Some(time) = duration(key)? {
            builder = set(builder, time);
        }
    }
    if let Some(connections) = parsed(options, Key::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(connections);
    }
    if let Some(bytes) = parsed(options, Key::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(Some(bytes));
    }
    if is_set(Key::Http2KeepAliveWhileIdle)? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if is_set(Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if is_set(Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    if is_set(Key::AllowInvalidCertificates)? {
        builder = builder.danger_accept_invalid_certs(true);
    }
    let resolver = Resolver { names: &NAMES, randomizes: is_set(Key::RandomizeAddresses)? };
    Ok(builder.https_only(!is_set(Key::AllowHttp)?).dns_resolver(Arc::new(resolver)))
}

fn parsed<T: FromStr<Err: Display>>(options: &ClientOptions, key: Key) -> object_store::Result<Option<T>> {
    let text = options.get_config_value(&key);
    text.map(|text| text.parse().map_err(|error| wrong(key, &text, &error))).transpose()
}

/// Error for an option with an invalid value.
fn wrong(key: Key, value: &str, reason: &dyn Display) -> object_store::Error {
    error(format!("invalid value '{value}' of the store client option '{}': {reason}", key.as_ref()))
}

/// Error for options from which `reqwest` can't build a client.
fn invalid(reason: &reqwest::Error) -> object_store::Error {
    error(format!("the options of the store's client are invalid: {reason}"))
}

fn error(message: String) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP", source: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: Key, value: &str) -> Result<String, String> {
        let options = ClientOptions::new().with_config(key, value);
        builder(&options).map(|builder| format!("{builder:?}")).map_err(|error| error.to_string())
    }

    #[test]
    fn options_change_the_client() {
        let default = format!("{:?}", builder(&ClientOptions::new()).expect("the default options are valid"));
        for (key, value, shown) in [
            (Key::AllowInvalidCertificates, "true", "danger_accept_invalid_certs: true"),
            (Key::ConnectTimeout, "1 s", "connect_timeout: 1s"),
            (Key::Http2Only, "yes", "http2_prior_knowledge: true"),
            (Key::ProxyUrl, "http://proxy:3128", "proxy:3128"),
            (Key::Timeout, "7 s", " timeout: 7s"),
            (Key::UserAgent, "mine/1", "mine/1"),
        ] {
            let changed = with(key, value).expect("the option is valid");
            assert!(changed.contains(shown) && !default.contains(shown), "{key:?}: {changed}");
        }
        assert!(default.contains("http1_only: true"), "{default}");
        assert!(!with(Key::Http1Only, "false").expect("the option is valid").contains("http1_only"));
    }

    #[tokio::test]
    async fn requests_without_encryption_are_refused_unless_they_are_allowed() {
        // The address refuses connections, because no socket listens at it.
        let refusing = tokio::net::TcpSocket::new_v4().expect("a socket");
        refusing.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let url = format!("http://{}", refusing.local_addr().expect("it is bound"));
        for (value, reason) in [("false", "BadScheme"), ("true", "error sending request")] {
            let options = ClientOptions::new().with_config(Key::AllowHttp, value);
            let client =
                builder(&options).and_then(|builder| builder.build().map_err(|error| invalid(&error)));
            let error = client.expect("the options are valid").get(&url).send().await.expect_err("no server");
            let reasons = format!("{error} {:?}", std::error::Error::source(&error));
            assert!(reasons.contains(reason), "{value}: {reasons}");
        }
    }

    #[test]
    fn an_invalid_option_is_named_with_its_value() {
        for key in [
            Key::AllowHttp,
            Key::AllowInvalidCertificates,
            Key::ConnectTimeout,
            Key::Http1Only,
            Key::Http2KeepAliveInterval,
            Key::Http2KeepAliveTimeout,
            Key::Http2KeepAliveWhileIdle,
            Key::Http2MaxFrameSize,
            Key::Http2Only,
            Key::PoolIdleTimeout,
            Key::PoolMaxIdlePerHost,
            Key::RandomizeAddresses,
            Key::Timeout,
        ] {
            let error = with(key, "perhaps").expect_err("neither a number nor a time nor true nor false");
            assert!(error.contains(&format!("'{}'", key.as_ref())) && error.contains("'perhaps'"), "{error}");
        }
    }
}
