//! TLS certificates for gRPC and HTTP.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::Watched;
use crate::settings;

/// TLS configuration of a server, reloaded when its files change.
pub(crate) type Tls = Watched<ServerConfig>;

/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

impl Tls {
    /// Reads the files of `settings`.
    ///
    /// # Errors
    /// If a file can't be read or is malformed, or the key does not belong to the certificate.
    pub(crate) fn open(settings: &settings::Tls) -> anyhow::Result<Self> {
        let mut files = vec![settings.certificate.clone(), settings.key.clone()];
        files.extend(settings.client_ca.clone());
        Self::read(files, config)
    }
}

/// Performs TLS handshakes on accepted connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Acceptor {
    tls: Arc<Tls>,
}

impl Acceptor {
    pub(crate) fn new(tls: Arc<Tls>) -> Self {
        Self { tls }
    }

    /// Performs a handshake with the current certificates.
    ///
    /// # Errors
    /// If the handshake fails or times out.
    pub(crate) async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.tls.current());
        tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await?
    }
}

fn config(files: &[Vec<u8>]) -> anyhow::Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let clients: Arc<dyn ClientCertVerifier> = match files.get(2) {
        None => Arc::new(NoClientAuth),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority).context("the client CA")? {
                roots.add(certificate).context("the client CA")?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?
        }
    };
    let chain = certificates(&files[0]).context("the certificate")?;
    let key =
        PrivateKeyDer::from_pem_slice(&files[1]).context("the key: expected a private key in PEM form")?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    ensure!(!certificates.is_empty(), "expected certificates in PEM form, found none");
    Ok(certificates)
}
