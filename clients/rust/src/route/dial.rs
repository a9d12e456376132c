//! Connections to the addresses of a host.

use std::{net::SocketAddr, sync::Arc};

use super::{address::resolve, transport::Transport};
use crate::{Config, Error};

/// Connects to the first of `addresses` of the host of `url` that accepts a connection. Resolves them if they are empty. Also
/// returns the address; `None` for a Unix socket.
///
/// # Errors
/// [`Error::Connect`] if the name cannot be resolved, or of the last address. [`Error::Request`] if the URL is invalid.
/// [`Error::Protocol`] if a server of another protocol answers.
pub(crate) async fn dial(
    url: &str,
    addresses: &mut Vec<SocketAddr>,
    config: &Arc<Config>,
) -> Result<(Transport, Option<SocketAddr>), Error> {
    if addresses.is_empty() {
        *addresses = resolve(url, config.connect_timeout).await?;
    }
    let Some((last, others)) = addresses.split_last() else {
        return Ok((Transport::open(url, Arc::clone(config)).await?, None));
    };
    let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let limit = config.connect_timeout / count;
    let mut mismatch = None;
    for address in others {
        match Transport::open_at(url, *address, limit, Arc::clone(config)).await {
            Ok(transport) => return Ok((transport, Some(*address))),
            // It says more than that another address refuses connections.
            Err(error @ Error::Protocol(_)) => mismatch = Some(error),
            Err(_) => {}
        }
    }
    let opened = Transport::open_at(url, *last, limit, Arc::clone(config)).await;
    Ok((opened.map_err(|error| mismatch.unwrap_or(error))?, Some(*last)))
}
