//! Web server of one file, with support for HEAD, range requests and If-Match. It can answer with errors.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
