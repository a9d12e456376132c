//! Calls of the good clients and of the attackers.

use std::{net::SocketAddr, ops::Range, sync::Arc};

use anyhow::Context;
use arrow_array::{Int64Array, RecordBatch};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Sends a GET request on a new connection. Returns the status after the whole answer was received.
pub(super) async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> anyhow::Result<u16> {
    let answer = answer(address, path, token).await?;
    let status = std::str::from_utf8(answer.get(9..12).context("the answer is too short")?)?;
    Ok(status.parse()?)
}

/// Sends a GET request on a new connection. Returns the JSON of the answer.
pub(super) async fn get_json(
    address: SocketAddr,
    path: &str,
    token: &str,
) -> anyhow::Result<serde_json::Value> {
    let answer = String::from_utf8(answer(address, path, Some(token)).await?)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the answer has no complete head")?;
    Ok(serde_json::from_str(body)?)
}

async fn answer(address: SocketAddr, path: &str, token: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Keys of consecutive users.
pub(super) fn keys(range: Range<i64>) -> anyhow::Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from_iter_values(range)) as _)])?)
}
