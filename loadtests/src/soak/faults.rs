//! A proxy for an S3 server that disturbs some of the requests at random.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// End of the head of an HTTP request. The requests of readers have no body.
const HEAD_END: &[u8] = b"\r\n\r\n";
const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n";
const MAX_DELAY: Duration = Duration::from_millis(500);
/// Time after which the connection of a request without an answer is closed.
const HANG: Duration = Duration::from_secs(20);
const CHUNK_BYTES: usize = 64 << 10;
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Disturbance of one request.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The answer is 503.
    Unavailable,
    /// The request is delayed.
    Delay(Duration),
    /// The connection is closed within the answer.
    Cut,
    /// The request has no answer.
    Hang,
}

impl Fault {
    fn any() -> Self {
        match fastrand::u8(0..10) {
            0..4 => Self::Unavailable,
            4..7 => Self::Delay(MAX_DELAY.mul_f64(fastrand::f64())),
            7..9 => Self::Cut,
            _ => Self::Hang,
        }
    }
}

/// Starts a proxy for `target` that disturbs `share` of the requests. Returns its address and the number of disturbed requests.
pub(super) async fn start(target: SocketAddr, share: f64) -> anyhow::Result<(SocketAddr, Arc<AtomicU64>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let disturbed: Arc<AtomicU64> = Arc::default();
    let counter = Arc::clone(&disturbed);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            // An error of either side ends the connection, which is what a proxy does.
            tokio::spawn(async move { forward(client, target, share, &counter).await.ok() });
        }
    });
    Ok((address, disturbed))
}

/// Forwards the requests of one connection, one after the other, until either side closes it.
async fn forward(
    mut client: TcpStream,
    target: SocketAddr,
    share: f64,
    disturbed: &AtomicU64,
) -> std::io::Result<()> {
    let mut store = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    store.set_nodelay(true)?;
    let (mut head, mut answer) = (Vec::new(), vec![0; CHUNK_BYTES]);
    let mut cut = false;
    loop {
        tokio::select! {
            length = client.read_buf(&mut head) => {
                if length? == 0 || head.len() > MAX_HEAD_BYTES {
                    return Ok(());
                }
                if !head.ends_with(HEAD_END) {
                    continue;
                }
                let fault = (fastrand::f64() < share).then(Fault::any);
                disturbed.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
                match fault {
                    Some(Fault::Unavailable) => {
                        head.clear();
                        client.write_all(UNAVAILABLE).await?;
                        continue;
                    }
                    Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
                    Some(Fault::Hang) => {
                        tokio::time::sleep(HANG).await;
                        return Ok(());
                    }
                    Some(Fault::Cut) => cut = true,
                    None => {}
                }
                store.write_all(&head).await?;
                head.clear();
            }
            length = store.read(&mut answer) => {
                let length = length?;
                if length == 0 {
                    return Ok(());
                }
                if cut {
                    return client.write_all(&answer[..length / 2]).await;
                }
                client.write_all(&answer[..length]).await?;
            }
        }
    }
}
