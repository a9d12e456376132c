//! The example in docs/how-to/rust.md is the example that this test runs.

#[path = "../../examples/train.rs"]
mod example;

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_example_runs_and_receives_every_row() {
    let page = include_str!("../../../../docs/how-to/rust.md");
    assert!(
        page.contains(include_str!("../../examples/train.rs")),
        "docs/how-to/rust.md differs from examples/train.rs"
    );
    let folder = tempfile::TempDir::new().unwrap();
    let server = crate::common::server(folder.path(), "cache").await;
    assert_eq!(example::train(&[server.grpc().url()]).await.unwrap(), 60_175);
}
