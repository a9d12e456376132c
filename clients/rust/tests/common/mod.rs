//! A real server, and a proxy that injects faults.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.
#![allow(dead_code)] // Each test file uses some of them.

pub(crate) mod front;

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay::{Server, Settings};
use forebay_client::proto::v1::Train;
use forebay_sample_data::lineitem;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

/// Returns settings of a server of `lineitem` at scale 0.01, with files in `folder` and a cache in its subfolder `cache`.
pub(crate) fn settings(folder: &Path, cache: &str) -> Settings {
    let data = lineitem::at(&folder.join("data"), 0.01).unwrap();
    let mut settings = Settings { cache_dir: folder.join(cache), ..Settings::default() };
    settings.grpc = "127.0.0.1:0".parse().unwrap();
    settings.http = "127.0.0.1:0".parse().unwrap();
    settings.grace_period = std::time::Duration::ZERO;
    settings.cache_disk = Some("0B".parse().unwrap());
    settings.state = Some(folder.join("state").display().to_string());
    settings.add_datasets(&[format!("lineitem={}", data.display())]).unwrap();
    settings
}

/// Starts a server with [`settings`].
pub(crate) async fn server(folder: &Path, cache: &str) -> Server {
    Server::start(settings(folder, cache)).await.unwrap()
}

/// Returns the answer of a server to a request over HTTP, with its head.
pub(crate) async fn http_get(server: &Server, path: &str) -> String {
    let mut connection = TcpStream::connect(server.http().to_string()).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Stops a server. Returns a socket at its address, which refuses connections as long as the socket lives. Without it, another
/// program could get the port.
pub(crate) async fn stopped(server: Server) -> TcpSocket {
    let address: SocketAddr = server.grpc().to_string().parse().unwrap();
    let held = async {
        loop {
            let socket = TcpSocket::new_v4().unwrap();
            // Connections of the server may still be open.
            socket.set_reuseaddr(true).unwrap();
            match socket.bind(address) {
                Ok(()) => return socket,
                // The server still listens, or another program has been faster.
                Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let held = tokio::time::timeout(Duration::from_secs(60), held);
    let (held, ()) = tokio::join!(held, server.drain());
    held.expect("the port is free again")
}

/// Starts a server at the address of an earlier one, which `held` keeps. Waits while another program has the port.
pub(crate) async fn restarted(settings: Settings, held: TcpSocket) -> Server {
    let mut held = Some(held);
    let started = async {
        loop {
            match Server::start(settings.clone()).await {
                Ok(server) => return server,
                Err(error) => {
                    assert!(format!("{error:?}").contains("Address already in use"), "{error:?}");
                    // Linux lets a server listen at the port of such a socket. Other systems may not.
                    drop(held.take());
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), started).await.expect("the port is free again")
}

/// Returns a socket whose address refuses connections as long as the socket lives, because it does not listen.
pub(crate) fn refusing() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

/// Returns a request for `epochs` epochs of `lineitem`.
pub(crate) fn train(epochs: u64) -> Train {
    Train { dataset: "lineitem".into(), batch_size: 1000, epochs: Some(epochs), ..Train::default() }
}

/// A fault in the bytes that a server sends.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// Cuts each connection after this number of bytes.
    Cut(u64),
    /// Flips a bit of the byte at this offset, counted over all connections.
    Flip(u64),
    /// Flips a bit of the byte at this offset of each connection.
    FlipEach(u64),
    /// Sends nothing on a connection after this number of bytes, and keeps it open.
    Stall(u64),
    /// Sends nothing on a connection for this time.
    Late(Duration),
}

/// A TCP proxy in front of a server. Dropping it stops it.
pub(crate) struct Proxy {
    /// URL of the proxy.
    pub(crate) url: String,
    /// Number of accepted connections.
    pub(crate) connections: Arc<AtomicU64>,
    /// Number of closed connections.
    pub(crate) closed: Arc<AtomicU64>,
    /// Number of bytes that the server has sent.
    pub(crate) sent: Arc<AtomicU64>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts a proxy that injects `fault` into the responses of `server`.
    pub(crate) async fn before(server: &Server, fault: Fault) -> Self {
        let to: SocketAddr = server.grpc().to_string().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let [connections, closed, sent]: [Arc<AtomicU64>; 3] = Default::default();
        let (counted, over, total) = (Arc::clone(&connections), Arc::clone(&closed), Arc::clone(&sent));
        let accepting = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                // Without a server, the connection is closed.
                let Ok(far) = TcpStream::connect(to).await else { continue };
                let (passing, over) = (pass(near, far, fault, Arc::clone(&total)), Arc::clone(&over));
                tokio::spawn(async move {
                    passing.await;
                    over.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { url, connections, closed, sent, _accepting: AbortOnDropHandle::new(accepting) }
    }
}

async fn pass(near: TcpStream, far: TcpStream, fault: Fault, sent: Arc<AtomicU64>) {
    let (mut from_near, mut to_near) = near.into_split();
    let (mut from_far, mut to_far) = far.into_split();
    let requests = AbortOnDropHandle::new(tokio::spawn(async move {
        drop(tokio::io::copy(&mut from_near, &mut to_far).await);
    }));
    let (mut passed, mut buffer) = (0, vec![0; 64 << 10]);
    if let Fault::Late(time) = fault {
        tokio::time::sleep(time).await;
    }
    while let Ok(mut read @ 1..) = from_far.read(&mut buffer).await {
        let offset = sent.fetch_add(read as u64, Ordering::Relaxed);
        match fault {
            Fault::Cut(after) => read = read.min((after - passed) as usize),
            Fault::Flip(at) if (offset..offset + read as u64).contains(&at) => {
                buffer[(at - offset) as usize] ^= 1;
            }
            Fault::FlipEach(at) if (passed..passed + read as u64).contains(&at) => {
                buffer[(at - passed) as usize] ^= 1;
            }
            Fault::Stall(after) if passed + read as u64 > after => {
                drop(to_near.write_all(&buffer[..(after - passed) as usize]).await);
                // Until the client closes the connection.
                drop(requests.await);
                return;
            }
            _ => {}
        }
        passed += read as u64;
        let over = matches!(fault, Fault::Cut(after) if passed >= after);
        if to_near.write_all(&buffer[..read]).await.is_err() || over {
            break;
        }
    }
    drop(requests);
}
