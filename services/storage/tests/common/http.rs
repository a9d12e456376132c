//! Web server of one file, with support for HEAD, range requests and If-Match.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub(crate) struct Server {
    address: std::net::SocketAddr,
    file: Arc<Mutex<Vec<u8>>>,
}

impl Server {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub(crate) fn replace(&self, bytes: Vec<u8>) {
        *self.file.lock() = bytes;
    }
}

pub(crate) async fn serve(bytes: Vec<u8>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let file = Arc::new(Mutex::new(bytes));
    let served = Arc::clone(&file);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(connection, Arc::clone(&served)));
        }
    });
    Server { address, file }
}

/// Answers one request per connection.
async fn answer(mut connection: TcpStream, file: Arc<Mutex<Vec<u8>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if connection.read_buf(&mut request).await.unwrap() == 0 {
            return;
        }
    }
    let response = respond(&String::from_utf8(request).unwrap(), &file.lock());
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
