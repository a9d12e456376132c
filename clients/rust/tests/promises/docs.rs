//! What docs/rust-client.md shows is what runs.

#[path = "../../examples/train.rs"]
mod example;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_page_runs_and_gets_every_row() {
    let page = include_str!("../../../../docs/rust-client.md");
    assert!(page.contains(include_str!("../../examples/train.rs")), "the page shows another example");
    let folder = tempfile::TempDir::new().unwrap();
    let server = crate::common::server(folder.path(), "cache").await;
    assert_eq!(example::train(&[server.grpc().url()]).await.unwrap(), 60_175);
}
