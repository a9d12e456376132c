//! An S3 server as a child process, with the folders below a root as its buckets.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use object_store::aws::{AmazonS3, AmazonS3Builder};

use crate::process::{Process, free_port};

/// Access key and secret key of the server.
const KEY: &str = "forebay-load";
const REGION: &str = "us-east-1";

/// Selects the S3 server.
#[derive(Debug, Args)]
pub(crate) struct StoreServer {
    /// S3 server: s3s-fs, from `cargo install s3s-fs --version 0.14.1 --locked --features binary`.
    #[arg(long, default_value = "s3s-fs", value_name = "FILE")]
    s3_server: PathBuf,
}

impl StoreServer {
    /// Starts the server for the folders below `root`, and returns its address.
    pub(crate) fn start(&self, root: &Path) -> anyhow::Result<(Process, SocketAddr)> {
        let port = free_port()?;
        let mut command = Command::new(&self.s3_server);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--access-key", KEY, "--secret-key", KEY]).arg(root);
        let process = Process::other_server("the S3 server", command, port)?;
        Ok((process, SocketAddr::from(([127, 0, 0, 1], port))))
    }
}

/// Returns the environment variables of a client of the server, or of a proxy for it, at `address`.
pub(crate) fn variables(address: SocketAddr) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
    ]
}

/// Returns a client of a bucket of the server at `address`.
pub(crate) fn bucket(address: SocketAddr, name: &str) -> object_store::Result<AmazonS3> {
    AmazonS3Builder::new()
        .with_endpoint(format!("http://{address}"))
        .with_allow_http(true)
        .with_region(REGION)
        .with_access_key_id(KEY)
        .with_secret_access_key(KEY)
        .with_bucket_name(name)
        .build()
}
