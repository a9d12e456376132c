//! Pages that do not match their checksums.

use std::sync::Arc;

use forebay_loader::Config;
use forebay_proto::v1::Train;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};

use crate::fixture::{counters::Counters, drain, job, loader, reader};

const READ: &str = "forebay_storage_read_bytes_total";

#[tokio::test(flavor = "multi_thread")]
async fn a_block_with_a_damaged_page_is_fetched_once_more_before_the_error() {
    let counters = Counters::from_zero().await;
    let read = async |damage: bool| {
        let mut bytes = include_bytes!("../../../storage/tests/promises/checksums.parquet").to_vec();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        let last_of_pages = bytes.len() - 8 - footer - 1;
        bytes[last_of_pages] ^= u8::from(damage);
        let store = InMemory::new();
        store.put(&Path::from("data/part-000.parquet"), bytes.into()).await.unwrap();
        let reader = reader(Arc::new(store)).await;
        let train = Train { dataset: "d".into(), batch_size: 50, ..Train::default() };
        let before = counters.get(READ);
        let sent = drain(loader(1 << 30, 2, Config::default()).batches(job(&train, &reader), 0, 0)).await;
        (sent.map(|batches| batches.len()).map_err(|error| error.to_string()), counters.get(READ) - before)
    };
    let (sent, sound_bytes) = read(false).await;
    assert_eq!(sent, Ok(2));
    let (sent, damaged_bytes) = read(true).await;
    assert!(sent.as_ref().is_err_and(|error| error.contains("checksum")), "{sent:?}");
    assert_eq!(damaged_bytes, 2 * sound_bytes);
}
