//! Accepted connections, limited in number, with optional TLS.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{StreamExt, stream, stream::BoxStream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::{
    Address,
    address::{Listener, Stream},
    auth::Acceptor,
};

/// Time within which a new connection must send its first bytes.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections that a listener accepts.
pub(crate) struct Connections {
    accepted: BoxStream<'static, Connection>,
    address: Address,
}

impl Connections {
    /// Accepts at most `max` concurrent connections; further ones wait in the kernel's queue. With `tls`, TCP connections use TLS,
    /// and handshakes run concurrently.
    pub(crate) fn new(listener: Listener, max: usize, tls: Option<Acceptor>) -> io::Result<Self> {
        let address = listener.address()?;
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(max));
        let accepted = stream::unfold((listener, places), async |(listener, places)| {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some(((accept(&listener).await, place), (listener, places)))
        });
        let secured = accepted.map(move |(stream, place)| secure(stream, place, tls.clone()));
        let accepted = secured.buffer_unordered(max).filter_map(std::future::ready).boxed();
        Ok(Self { accepted, address })
    }

    /// Listen address.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Converts to a stream, which never ends.
    pub(crate) fn into_stream(self) -> impl futures::Stream<Item = io::Result<Connection>> {
        self.accepted.map(Ok)
    }
}

async fn accept(listener: &Listener) -> Stream {
    loop {
        match listener.accept().await {
            Ok(stream) => return stream,
            Err(error) => {
                // Without a pause, a lack of file descriptors would make this loop spin.
                tracing::debug!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn secure(stream: Stream, place: OwnedSemaphorePermit, tls: Option<Acceptor>) -> Option<Connection> {
    let stream = match (stream, tls) {
        (Either::Left(stream), Some(tls)) => match tls.accept(stream).await {
            Ok(stream) => Either::Right(Box::new(stream)),
            Err(error) => {
                metrics::counter!("forebay_tls_errors_total").increment(1);
                tracing::debug!(%error, "TLS handshake failed");
                return None;
            }
        },
        // File permissions control access to a Unix socket.
        (stream, _) => Either::Left(stream),
    };
    let silence = Some(Box::pin(tokio::time::sleep(SILENCE_TIMEOUT)));
    Some(Connection { stream, silence, _place: place })
}

/// A connection and its permit. It is closed if its first bytes do not arrive in time, so that idle connections do not use up the
/// limit.
pub(crate) struct Connection {
    /// Timer that runs until the first bytes arrive.
    silence: Option<Pin<Box<Sleep>>>,
    stream: Either<Stream, Box<TlsStream<TcpStream>>>,
    _place: OwnedSemaphorePermit,
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some(silence) = &mut self.silence else { return read };
        if read.is_pending() {
            return silence.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        self.silence = None;
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
