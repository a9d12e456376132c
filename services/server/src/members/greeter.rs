//! The client of the action `hello`, with which a server asks another one for its name and state.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use arrow_flight::{Action, flight_service_client::FlightServiceClient};
use forebay_proto::v1::HelloResult;
use prost::Message;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tonic::{
    Code, Request,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity},
};

use super::{host_port, settings::check_zone, source::Address};
use crate::Settings;

/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum length of the version and of the id of the state in an answer, in bytes.
const MAX_FIELD_BYTES: usize = 256;

/// Files with the credentials that this server uses as a client of the others.
pub(super) struct Greeter {
    timeout: Duration,
    token: Option<PathBuf>,
    /// Files for TLS; `None` if connections are not encrypted.
    tls: Option<TlsFiles>,
}

struct TlsFiles {
    ca: Option<PathBuf>,
    /// Certificate and key of this server; `None` if clients do not need a certificate.
    identity: Option<(PathBuf, PathBuf)>,
}

/// The credentials of one round of calls.
#[derive(Clone)]
pub(super) struct Credentials {
    timeout: Duration,
    token: Option<MetadataValue<Ascii>>,
    tls: Option<ClientTlsConfig>,
}

impl Greeter {
    /// Creates a client that connects to other servers as clients connect to this server: with TLS if this server has a certificate, and
    /// with this certificate if clients need one.
    pub(super) fn new(settings: &Settings) -> Self {
        let tls = settings.tls.as_ref().map(|tls| TlsFiles {
            ca: settings.membership.ca.clone(),
            identity: tls.client_ca.is_some().then(|| (tls.certificate.clone(), tls.key.clone())),
        });
        Self { timeout: settings.membership.hello_timeout, token: settings.membership.token.clone(), tls }
    }

    /// Reads the files, whose contents may have changed.
    ///
    /// # Errors
    /// If a file can't be read, or the token is malformed.
    pub(super) async fn credentials(&self) -> anyhow::Result<Credentials> {
        let token = match &self.token {
            Some(path) => Some(bearer(path).await.context("--membership-token")?),
            None => None,
        };
        let tls = match &self.tls {
            Some(files) => Some(files.config().await?),
            None => None,
        };
        Ok(Credentials { timeout: self.timeout, token, tls })
    }
}

impl TlsFiles {
    async fn config(&self) -> anyhow::Result<ClientTlsConfig> {
        let mut config = match &self.ca {
            Some(path) => {
                let pem = read(path).await.context("--membership-ca")?;
                check_pem(&pem).with_context(|| path.display().to_string()).context("--membership-ca")?;
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
            }
            None => ClientTlsConfig::new().with_webpki_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            let (chain, private) = (read(certificate).await?, read(key).await?);
            check_pem(&chain).with_context(|| certificate.display().to_string())?;
            PrivateKeyDer::from_pem_slice(&private)
                .ok()
                .with_context(|| format!("{}: expected a private key in PEM form", key.display()))?;
            config = config.identity(Identity::from_pem(chain, private));
        }
        Ok(config)
    }
}

async fn read(path: &PathBuf) -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(path).await.with_context(|| format!("can't read {}", path.display()))
}

/// Checks that a file has certificates. Without one, the calls of all other servers would fail.
fn check_pem(pem: &[u8]) -> anyhow::Result<()> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    ensure!(!certificates.is_empty(), "expected certificates in PEM form, found none");
    Ok(())
}

async fn bearer(path: &PathBuf) -> anyhow::Result<MetadataValue<Ascii>> {
    let token = String::from_utf8(read(path).await?).ok();
    let header = token.map(|token| format!("Bearer {}", token.trim()));
    let header =
        header.filter(|header| header.len() > "Bearer ".len()).and_then(|header| header.parse().ok());
    let mut header: MetadataValue<Ascii> = header
        .with_context(|| format!("{}: expected one token, visible ASCII characters", path.display()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Name of a server, and the number of its process.
pub(super) type Running = (String, u64);

impl Credentials {
    /// Calls `hello` on the server at `address`. Clients connect to the name in its answer. Unless it is `known` that the same process
    /// answers there, `hello` is called there, too.
    ///
    /// # Errors
    /// If the server does not answer in time or rejects the call, if its answer is malformed, or if its name leads to no server or to
    /// another one.
    pub(super) async fn greet(
        &self,
        address: &Address,
        known: Option<&Running>,
    ) -> anyhow::Result<HelloResult> {
        let answer = self.answer(address).await?;
        let is_known =
            known.is_some_and(|(name, instance)| *name == answer.name && *instance == answer.instance);
        if !is_known && answer.name != address.text {
            self.confirm(&answer.name, answer.instance).await?;
        }
        Ok(answer)
    }

    /// Checks that process `instance` of a server answers at the server's name.
    ///
    /// # Errors
    /// If no server or another process answers there.
    pub(super) async fn confirm(&self, name: &str, instance: u64) -> anyhow::Result<()> {
        let answer = self.answer(&Address::parse(name)?).await.with_context(|| {
            format!("the name of the server is '{name}' (--advertise), but no call reaches it there")
        })?;
        ensure!(
            answer.instance == instance,
            "the name of the server is '{name}' (--advertise), but another server answers there, which says that its name is '{}'",
            answer.name
        );
        Ok(())
    }

    async fn answer(&self, address: &Address) -> anyhow::Result<HelloResult> {
        let greeting = tokio::time::timeout(self.timeout, self.call(address)).await;
        let answer = greeting.with_context(|| format!("no answer within {:?}", self.timeout))??;
        checked(answer)
    }

    async fn call(&self, address: &Address) -> anyhow::Result<HelloResult> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", address.text))?
            .connect_timeout(self.timeout)
            .tcp_nodelay(true);
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.clone().domain_name(&address.host))?;
        }
        let channel = endpoint.connect().await?;
        let mut client = FlightServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        let mut request = Request::new(Action::new("hello", Vec::new()));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let result = client
            .do_action(request)
            .await
            .map_err(|status| said(&status))?
            .into_inner()
            .message()
            .await
            .map_err(|status| said(&status))?;
        let body = result.context("the answer is empty, expected a HelloResult")?.body;
        // Newer servers may add fields, which are ignored.
        HelloResult::decode(body).context("malformed answer, expected a HelloResult")
    }
}

/// A call that a server has answered with an error: the code and the message of its status.
#[derive(Debug)]
pub(super) struct Rejection {
    code: Code,
    message: String,
}

impl Rejection {
    /// True if the server does not accept the credentials of the call.
    pub(super) fn is_of_credentials(&self) -> bool {
        matches!(self.code, Code::Unauthenticated | Code::PermissionDenied)
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", forebay_proto::code_name(self.code), self.message)
    }
}

impl std::error::Error for Rejection {}

/// Returns an error with the code and the message of a status, without its metadata.
fn said(status: &tonic::Status) -> anyhow::Error {
    Rejection { code: status.code(), message: status.message().to_owned() }.into()
}

/// Checks the answer of a server, because its name is sent to clients.
fn checked(hello: HelloResult) -> anyhow::Result<HelloResult> {
    host_port::split(&hello.name).context("the name of the server")?;
    if !hello.zone.is_empty() {
        check_zone(&hello.zone).context("the zone of the server")?;
    }
    for (what, field) in [("version", &hello.version), ("state", &hello.state)] {
        let is_legal =
            (1..=MAX_FIELD_BYTES).contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            is_legal,
            "the {what} of the server: expected 1 to {MAX_FIELD_BYTES} visible ASCII characters"
        );
    }
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_answers_are_rejected() {
        let hello = || HelloResult {
            name: "a:1".into(),
            version: "1.0".into(),
            state: "s".into(),
            zone: String::new(),
            draining: false,
            instance: 1,
        };
        checked(hello()).unwrap();
        for (answer, expected) in [
            (HelloResult { name: "a".into(), ..hello() }, "expected HOST:PORT"),
            (HelloResult { name: "a:1/?x".into(), ..hello() }, "a port from 1"),
            (HelloResult { zone: "a\nb".into(), ..hello() }, "the zone of the server"),
            (HelloResult { state: String::new(), ..hello() }, "the state of the server"),
            (HelloResult { version: "x".repeat(300), ..hello() }, "the version of the server"),
        ] {
            let error = format!("{:#}", checked(answer).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn a_token_is_read_again_and_malformed_ones_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let settings = crate::MembershipSettings { token: Some(path.clone()), ..Default::default() };
        let greeter = Greeter::new(&Settings { membership: settings, ..Settings::default() });
        let token = async || {
            let read = greeter.credentials().await.map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>(read.token.unwrap().to_str().unwrap().to_owned())
        };
        assert!(token().await.unwrap_err().contains("can't read"));
        for (contents, expected) in [("first\n", "Bearer first"), ("second", "Bearer second")] {
            std::fs::write(&path, contents).unwrap();
            assert_eq!(token().await.unwrap(), expected);
        }
        for contents in [&b""[..], b"  \n", b"a\x00b", b"\xff"] {
            std::fs::write(&path, contents).unwrap();
            assert!(token().await.unwrap_err().contains("expected one token"), "{contents:?}");
        }
    }

    #[tokio::test]
    async fn empty_and_incomplete_certificates_are_rejected_so_that_the_previous_ones_remain() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        let (pem, key) = (certificate.pem(), key.serialize_pem());
        let settings = crate::Settings {
            tls: Some(crate::settings::Tls {
                certificate: path("certificate"),
                key: path("key"),
                client_ca: Some(path("ca")),
            }),
            membership: crate::MembershipSettings { ca: Some(path("ca")), ..Default::default() },
            ..Settings::default()
        };
        let greeter = Greeter::new(&settings);
        let files = [("ca", pem.as_str()), ("certificate", pem.as_str()), ("key", key.as_str())];
        files.iter().for_each(|(name, contents)| std::fs::write(path(name), contents).unwrap());
        greeter.credentials().await.unwrap();
        for (name, contents) in files {
            for part in ["", &contents[..contents.len() / 2]] {
                std::fs::write(path(name), part).unwrap();
                let error = format!("{:#}", greeter.credentials().await.err().unwrap());
                assert!(error.contains(&path(name).display().to_string()), "{error}");
            }
            std::fs::write(path(name), contents).unwrap();
        }
        greeter.credentials().await.unwrap();
    }

    #[test]
    fn a_rejection_is_found_among_the_reasons_of_an_error() {
        let status = tonic::Status::unauthenticated("the token is unknown");
        let error = said(&status).context("no call reaches it there");
        assert!(error.downcast_ref::<Rejection>().unwrap().is_of_credentials());
        let text = format!("{error:#}");
        assert_eq!(text, "no call reaches it there: UNAUTHENTICATED: the token is unknown");
        let unavailable = said(&tonic::Status::unavailable("x"));
        assert!(!unavailable.downcast_ref::<Rejection>().unwrap().is_of_credentials());
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_an_error_after_the_timeout() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::parse(&silent.local_addr().unwrap().to_string()).unwrap();
        let credentials = Credentials { timeout: Duration::from_millis(50), token: None, tls: None };
        let error = credentials.greet(&address, None).await.unwrap_err().to_string();
        assert!(error.contains("no answer within 50ms"), "{error}");
    }
}
