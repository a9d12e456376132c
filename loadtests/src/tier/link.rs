//! A network link of limited rate in front of a server.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::Instant,
};

const CHUNK_BYTES: usize = 64 << 10;
/// Bytes that may be sent at once after a pause, as a time.
const BURST: Duration = Duration::from_millis(20);

/// A proxy that forwards connections to a server and limits the bytes that the server sends.
///
/// Its address stays the same while servers behind it are replaced. While there is no server, it closes new connections.
pub(super) struct Link {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    target: Mutex<Option<SocketAddr>>,
    /// Time at which the link will have sent all bytes that it has accepted.
    free_at: Mutex<Instant>,
    /// Bytes per second from the server. `None`: no limit.
    rate: Option<u64>,
    /// False while the link forwards nothing in either direction.
    is_flowing: watch::Sender<bool>,
}

impl Link {
    /// Starts a link without a server. It limits the sum of all its connections to `rate` bytes per second.
    pub(super) async fn start(rate: Option<u64>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            target: Mutex::default(),
            free_at: Mutex::new(Instant::now()),
            rate,
            is_flowing: watch::Sender::new(true),
        });
        let accepting = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&accepting);
                // An error of either side ends the connection.
                tokio::spawn(async move { state.forward(client).await.ok() });
            }
        });
        Ok(Self { address, state })
    }

    /// HOST:PORT of the link.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the server behind the link.
    pub(super) fn lead_to(&self, server: SocketAddr) {
        *self.state.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// Sets whether the link forwards bytes. While it does not, connections stay open, and new ones are accepted.
    pub(super) fn set_flowing(&self, is_flowing: bool) {
        self.state.is_flowing.send_replace(is_flowing);
    }
}

impl State {
    /// Waits while the link forwards nothing.
    async fn flow(&self) {
        self.is_flowing.subscribe().wait_for(|flows| *flows).await.expect("the state has the sender");
    }

    async fn forward(&self, client: TcpStream) -> io::Result<()> {
        self.flow().await;
        let target = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(target) = target else { return Ok(()) };
        let server = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
        // Both directions end together, as those of a connection that is reset.
        tokio::select! {
            ended = self.pump(server_in, client_out, true) => ended,
            ended = self.pump(client_in, server_out, false) => ended,
        }
    }

    async fn pump(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        is_limited: bool,
    ) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from.read(&mut chunk).await?;
            if length == 0 {
                return Ok(());
            }
            if is_limited {
                self.accept(length).await;
            }
            self.flow().await;
            to.write_all(&chunk[..length]).await?;
        }
    }

    /// Waits until the link may send `bytes`.
    async fn accept(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let sent_at = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let earliest = Instant::now().checked_sub(BURST).unwrap_or(*free_at);
            *free_at = (*free_at).max(earliest) + Duration::from_secs_f64(bytes as f64 / rate as f64);
            *free_at
        };
        tokio::time::sleep_until(sent_at).await;
    }
}
