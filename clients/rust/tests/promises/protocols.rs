//! Ports at which something else than the expected server answers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use forebay_client::{Client, Config, Connection, Error, proto::v1::Lookup};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    common::{server, train},
    training::secured,
};

/// Listens on a port whose server answers anything with `answer`. Returns the address.
async fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = [0; 64];
                if stream.read(&mut received).await.is_ok() {
                    stream.write_all(answer).await.ok();
                    // Until the client has read it.
                    while stream.read(&mut received).await.is_ok_and(|bytes| bytes > 0) {}
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_another_protocol_is_an_error_at_once_that_says_what_answers() {
    let folder = TempDir::new().unwrap();
    let (tls, with_tls) = secured(&folder).await;
    let plain = server(folder.path(), "plain").await;
    let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
    let (tls_port, plain_port) = (port(&tls.grpc().to_string()), port(&plain.grpc().to_string()));
    let http_port = port(&plain.http().to_string());
    let web = answering(b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Length: 0\r\n\r\n").await;
    let ssh = answering(b"SSH-2.0-OpenSSH_9.6\r\n").await;
    let patient = |config: &Config| Config { retry_deadline: Duration::from_secs(300), ..config.clone() };
    for (url, config, expected) in [
        (
            format!("grpc://127.0.0.1:{http_port}"),
            Config::default(),
            "answers with HTTP status 403 Forbidden",
        ),
        (format!("grpc://127.0.0.1:{tls_port}"), Config::default(), "a server with TLS answers at"),
        (format!("grpc+tls://localhost:{plain_port}"), with_tls.clone(), "answers at"),
        (format!("grpc+tls://localhost:{http_port}"), with_tls.clone(), "answers at"),
        (format!("grpc://{web}"), Config::default(), "an HTTP/1 server answers at"),
        (format!("grpc+tls://localhost:{}", web.port()), with_tls.clone(), "an HTTP/1 server answers at"),
        (format!("grpc://{ssh}"), Config::default(), "a server of another protocol answers at"),
    ] {
        let client = Client::new([url.clone()], patient(&config)).unwrap();
        let planned = client.plan(&train(1)).await.err().unwrap();
        let lookup = Lookup { dataset: "lineitem".into(), ..Lookup::default() };
        let looked_up = client.lookup(&lookup).await.err().unwrap();
        let listed = client.datasets().await.err().unwrap();
        let acted = client.action("refresh", b"{}").await.err().unwrap();
        let one = match Connection::open(&url, Arc::new(config)).await {
            Ok(connection) => connection.plan(&train(1)).await.err().unwrap(),
            Err(error) => error,
        };
        for error in [planned, looked_up, listed, acted, one] {
            assert!(matches!(error, Error::Protocol(_)), "{url}: {error:?}");
            let words = error.to_string();
            assert!(words.contains(expected) && words.contains(&url), "{words}");
            assert!(words.contains("8815") || words.contains("use grpc"), "{words}");
        }
    }
}
