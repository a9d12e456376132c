//! TLS settings of the transport.

use std::path::Path;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::{Error, Tls};

/// Reads the files of `tls`.
pub(super) fn tls_config(tls: &Tls) -> Result<ClientTlsConfig, Error> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| Error::Request(format!("can't read {}: {error}", path.display())))
    };
    let mut config = match &tls.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        (None, None) => {}
        _ => return Err(Error::Request("tls: expected both certificate and key, or neither".into())),
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}
