//! The protocol that a server speaks, by the first bytes that it sends.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::Error;

/// Number of the first bytes that are kept. The first frame of HTTP/2 and a record of TLS begin with fewer.
const KEPT_BYTES: usize = 16;
/// Number of bytes that tell the protocols apart.
const DECISIVE_BYTES: usize = 4;
/// Type of the first frame of a server with HTTP/2: its settings.
const SETTINGS_FRAME: u8 = 4;

/// The first bytes that a server has sent over a connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

impl FirstBytes {
    /// Returns `stream`, whose first bytes are kept in place of those of an earlier connection.
    pub(super) fn of(&self, stream: TcpStream) -> Observed {
        Observed { stream, kept: self.clone(), has_begun: false, is_complete: false }
    }

    /// Returns the error about a server at `url` that speaks another protocol than gRPC with or without TLS; `None` if it may be a
    /// gRPC server, or has sent too little.
    pub(super) fn mismatch(&self, url: &str, uses_tls: bool) -> Option<Error> {
        let bytes = self.0.lock();
        let is_http2 = matches!(bytes[..], [0, _, _, SETTINGS_FRAME, ..]);
        let is_tls = matches!(bytes[..], [20..=23, 3, ..]);
        if bytes.len() < DECISIVE_BYTES || (if uses_tls { is_tls } else { is_http2 }) {
            return None;
        }
        let web =
            "use the address of its setting `grpc`, by default with port 8815, not the one of the dashboard";
        let (what, advice) = match () {
            () if bytes.starts_with(b"HTTP") => ("an HTTP/1 server", web),
            () if is_tls => ("a server with TLS", "use grpc+tls:// if it is a Forebay server"),
            () if is_http2 => ("a server without TLS", "use grpc:// if it is a Forebay server"),
            () => ("a server of another protocol", web),
        };
        let expected = if uses_tls { "gRPC with TLS" } else { "gRPC without TLS" };
        Some(Error::Protocol(format!("{what} answers at {url}, expected {expected}; {advice}")))
    }

    fn push(&self, bytes: &[u8]) -> bool {
        let mut kept = self.0.lock();
        let room = KEPT_BYTES.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        kept.len() >= KEPT_BYTES
    }
}

/// A connection whose first bytes are kept.
pub(super) struct Observed {
    stream: TcpStream,
    kept: FirstBytes,
    /// True after the first byte. Until then, the kept bytes are those of an earlier connection, whose calls may be about to ask for them.
    has_begun: bool,
    is_complete: bool,
}

impl Observed {
    fn keep(&mut self, bytes: &[u8]) {
        if self.is_complete || bytes.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.kept.0.lock().clear();
        }
        self.is_complete = self.kept.push(bytes);
    }

    /// Returns the outcome of a write. After a failed one, keeps what the server has sent before it closed the connection, because HTTP/2
    /// reads nothing more.
    fn written<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if !self.is_complete && matches!(outcome, Poll::Ready(Err(_))) {
            let mut bytes = [0; KEPT_BYTES];
            let stream = self.stream.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
            // The copy does not block, as the stream itself.
            if let Ok(read) = stream.and_then(|mut stream| stream.read(&mut bytes)) {
                self.keep(&bytes[..read]);
            }
        }
        outcome
    }
}

impl AsyncRead for Observed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.keep(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Observed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.written(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.written(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.written(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mismatch(bytes: &[u8], uses_tls: bool) -> Option<String> {
        let first = FirstBytes::default();
        for byte in bytes {
            first.push(&[*byte]);
        }
        first.mismatch("grpc://a:1", uses_tls).map(|error| error.to_string())
    }

    #[test]
    fn the_first_bytes_of_a_server_say_which_protocol_it_speaks() {
        let settings = b"\0\0\x12\x04\0\0\0\0\0\0\x03";
        let (hello, alert) = (b"\x16\x03\x03\0\x7a", b"\x15\x03\x03\0\x02");
        for (bytes, uses_tls) in
            [(&settings[..], false), (hello, true), (alert, true), (b"", false), (b"HT", true)]
        {
            assert_eq!(mismatch(bytes, uses_tls), None, "{bytes:?}");
        }
        for (bytes, uses_tls, expected) in [
            (
                &b"HTTP/1.1 400 Bad Request"[..],
                false,
                "an HTTP/1 server answers at grpc://a:1, expected gRPC without TLS",
            ),
            (
                b"HTTP/1.1 400 Bad Request",
                true,
                "an HTTP/1 server answers at grpc://a:1, expected gRPC with TLS",
            ),
            (
                alert,
                false,
                "a server with TLS answers at grpc://a:1, expected gRPC without TLS; use grpc+tls://",
            ),
            (
                settings,
                true,
                "a server without TLS answers at grpc://a:1, expected gRPC with TLS; use grpc://",
            ),
            (b"SSH-2.0", false, "a server of another protocol answers"),
        ] {
            let message = mismatch(bytes, uses_tls).unwrap_or_default();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
