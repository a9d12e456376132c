//! Accepted connections, a bounded number of them at a time, with TLS where it is wanted.

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
    door::Acceptor,
};

/// How long a connection may say nothing at first.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nobody is accepted after that has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections that a listener accepts.
pub(crate) struct Connections {
    accepted: BoxStream<'static, Connection>,
    address: Address,
}

impl Connections {
    /// Those of `listener`, at most `max` at a time; more wait in the kernel's queue. With `tls`, TCP connections speak
    /// TLS; those that fail to are dropped, and hold up no other.
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

    /// Where they come in.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// As a stream that never ends.
    pub(crate) fn into_stream(self) -> impl futures::Stream<Item = io::Result<Connection>> {
        self.accepted.map(Ok)
    }
}

async fn accept(listener: &Listener) -> Stream {
    loop {
        match listener.accept().await {
            Ok(stream) => return stream,
            Err(error) => {
                // Out of file descriptors, say. Without a pause, accepting spins.
                tracing::debug!(%error, "a connection was not accepted");
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
                tracing::debug!(%error, "a connection did not agree on keys");
                return None;
            }
        },
        // Who may open a Unix socket is for its file to say.
        (stream, _) => Either::Left(stream),
    };
    let silence = Some(Box::pin(tokio::time::sleep(SILENCE_TIMEOUT)));
    Some(Connection { stream, silence, _place: place })
}

/// A connection, and its place among those that are open. It is closed when it says nothing at first, so that places go to
/// those who want something.
pub(crate) struct Connection {
    /// Runs until the first bytes come.
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
