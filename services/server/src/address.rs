//! Listen addresses.

use std::{
    fmt, io,
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// A TCP address, spelled `HOST:PORT`, or a Unix socket, spelled `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// TCP address; port 0 selects a free port.
    Tcp(SocketAddr),
    /// Path of a Unix socket, for trainers on the same host.
    Unix(PathBuf),
}

impl Address {
    /// URL for gRPC clients.
    pub fn url(&self) -> String {
        match self {
            Self::Tcp(address) => format!("http://{address}"),
            Self::Unix(_) => self.to_string(),
        }
    }

    /// Location for Flight clients, such as `grpc://127.0.0.1:8815`.
    pub(crate) fn location(&self, tls: bool) -> String {
        match self {
            Self::Tcp(address) if tls => format!("grpc+tls://{address}"),
            Self::Tcp(address) => format!("grpc://{address}"),
            Self::Unix(path) => format!("grpc+unix://{}", path.display()),
        }
    }

    /// True if only this machine can reach the address.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Binds the address. Replaces a stale Unix socket.
    pub(crate) async fn bind(&self) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => listen(*address).map(Listener::Tcp),
            Self::Unix(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path)?;
                let file = file_id(path)?;
                Ok(Listener::Unix(listener, Socket { path: path.clone(), file }))
            }
        }
    }
}

/// Number of connections that wait to be accepted. With the 1,024 of `TcpListener::bind`, a burst of connections makes others
/// wait for a second, after which their SYN is sent again. Linux limits the number to `net.core.somaxconn`, 4,096 by default.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As with `TcpListener::bind`, a restart need not wait for connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Removes a Unix socket without a listener; other files are kept.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
        }
        Err(_) => return Ok(()),
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens on the socket")),
        Err(_) => std::fs::remove_file(path),
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(format!("'{text}': expected unix:/path, an absolute one")),
            };
        }
        let found = text.to_socket_addrs();
        let mut found = found.map_err(|error| format!("expected HOST:PORT or unix:/path: {error}"))?;
        found.next().map(Self::Tcp).ok_or_else(|| "the name has no address".to_owned())
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Address of the host of a client: one IPv6 host usually has a whole /64 network.
pub(crate) fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// The client of a connection, as the operating system reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Address and port of a TCP client.
    Address(SocketAddr),
    /// User id of the process at the other end of a Unix socket; `None` if the operating system does not report it.
    User(Option<u32>),
}

impl Peer {
    /// Address of the client; `None` for a Unix socket.
    pub(crate) fn address(self) -> Option<IpAddr> {
        self.socket_address().map(|address| address.ip())
    }

    /// Address and port of the client; `None` for a Unix socket.
    pub(crate) fn socket_address(self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::User(_) => None,
        }
    }
}

/// A bound [`Address`].
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Socket),
}

/// File of a Unix socket, which is removed when the listener is dropped.
pub(crate) struct Socket {
    path: PathBuf,
    file: (u64, u64),
}

/// Device and number of a file.
fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If the socket was deleted in the meantime, another server may have bound the path.
        if file_id(&self.path).is_ok_and(|file| file == self.file) {
            // If this fails, the next server that binds the path removes it.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A connection to a [`Listener`].
pub(crate) type Stream = Either<TcpStream, UnixStream>;

impl Listener {
    /// Where it listens, with the port that was taken.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, socket) => Ok(Address::Unix(socket.path.clone())),
        }
    }

    /// Accepts a connection of a client.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Either::Left(stream), Peer::Address(peer)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().ok().map(|process| process.uid());
                Ok((Either::Right(stream), Peer::User(user)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
