//! Web server of one file, with support for HEAD, range requests and If-Match. It can answer with errors.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub(crate) struct Server {
    address: std::net::SocketAddr,
    served: Arc<Served>,
}

struct Served {
    file: Mutex<Vec<u8>>,
    /// Statuses of the next responses. Later requests are answered with the file.
    errors: Mutex<VecDeque<&'static str>>,
    requests: AtomicUsize,
    is_silent: AtomicBool,
    /// Status of responses without an end.
    endless: Mutex<Option<&'static str>>,
    /// Number of bytes that clients accepted of them.
    endless_bytes: AtomicU64,
}

impl Server {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub(crate) fn replace(&self, bytes: Vec<u8>) {
        *self.served.file.lock() = bytes;
    }

    /// Answers the next requests with these statuses.
    pub(crate) fn fail(&self, statuses: impl IntoIterator<Item = &'static str>) {
        self.served.errors.lock().extend(statuses);
    }

    /// Accepts all further requests and answers none of them.
    pub(crate) fn hang(&self) {
        self.served.is_silent.store(true, Ordering::SeqCst);
    }

    /// Answers all further GET requests with this status, the headers of the file and a body without an end.
    pub(crate) fn send_endlessly(&self, status: &'static str) {
        *self.served.endless.lock() = Some(status);
    }

    /// Number of bytes of such bodies that clients accepted.
    pub(crate) fn endless_bytes(&self) -> u64 {
        self.served.endless_bytes.load(Ordering::SeqCst)
    }

    /// Number of requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.served.requests.load(Ordering::SeqCst)
    }
}

pub(crate) async fn serve(bytes: Vec<u8>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = Arc::new(Served {
        file: Mutex::new(bytes),
        errors: Mutex::default(),
        requests: AtomicUsize::new(0),
        is_silent: AtomicBool::new(false),
        endless: Mutex::default(),
        endless_bytes: AtomicU64::new(0),
    });
    let server = Server { address, served: Arc::clone(&served) };
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(connection, Arc::clone(&served)));
        }
    });
    server
}

/// Answers one request per connection.
async fn answer(mut connection: TcpStream, served: Arc<Served>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if connection.read_buf(&mut request).await.unwrap() == 0 {
            return;
        }
    }
    served.requests.fetch_add(1, Ordering::SeqCst);
    if served.is_silent.load(Ordering::SeqCst) {
        return std::future::pending().await;
    }
    let endless = *served.endless.lock();
    if let Some(status) = endless.filter(|_| request.starts_with(b"GET")) {
        let response = respond(&String::from_utf8(request).unwrap(), &served.file.lock());
        let head = String::from_utf8_lossy(&response).split_once("\r\n\r\n").unwrap().0.to_owned();
        let headers = head.split_once("\r\n").unwrap().1;
        let head = format!("HTTP/1.1 {status}\r\n{headers}\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.write_all(head.as_bytes()).await.unwrap();
        let chunk = [b"10000\r\n", &[b'x'; 0x10000][..], b"\r\n"].concat();
        // Until the client closes the connection.
        while connection.write_all(&chunk).await.is_ok() {
            served.endless_bytes.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
        return;
    }
    let error = served.errors.lock().pop_front();
    let response = match error {
        Some(status) => {
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").into_bytes()
        }
        None => respond(&String::from_utf8(request).unwrap(), &served.file.lock()),
    };
    connection.write_all(&response).await.unwrap();
}

fn respond(request: &str, file: &[u8]) -> Vec<u8> {
    let header = |name: &str| {
        let mut lines = request.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let etag = format!("\"{}\"", file.len());
    let (status, body) = if request.contains("/missing ") {
        ("404 Not Found", &[][..])
    } else if header("if-match").is_some_and(|expected| expected != etag) {
        ("412 Precondition Failed", &[][..])
    } else if let Some(range) = header("range") {
        let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        ("206 Partial Content", &file[start.parse().unwrap()..=end.parse().unwrap()])
    } else {
        ("200 OK", file)
    };
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\netag: {etag}\r\n");
    head += &format!("content-length: {}\r\n", body.len());
    if let Some(range) = header("range") {
        let range = range.strip_prefix("bytes=").unwrap();
        head += &format!("content-range: bytes {range}/{}\r\n", file.len());
    }
    let body = if request.starts_with("HEAD") { &[][..] } else { body };
    [head.as_bytes(), b"\r\n", body].concat()
}
