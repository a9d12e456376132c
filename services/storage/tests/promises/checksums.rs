//! A page that does not match the checksum in its header is refused.
//!
//! `checksums.parquet` was written by pyarrow 26, because parquet-rs writes no page checksums:
//!
//! ```python
//! table = pa.table({"x": pa.array(range(100), pa.int32()), "s": [f"word {i % 5}" for i in range(100)]})
//! pq.write_table(table, "checksums.parquet", row_group_size=50, use_dictionary=["s"], compression="snappy",
//!                write_page_checksum=True, store_schema=False, write_statistics=False)
//! ```

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use arrow_array::RecordBatch;
use bytes::Bytes;
use forebay_storage::Error;
use parquet::file::metadata::ParquetMetaDataReader;

use crate::common::{Fixture, batch, integers, strings};

const FILE: &[u8] = include_bytes!("checksums.parquet");

async fn read(bytes: &[u8]) -> Result<RecordBatch, Error> {
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", bytes);
    fixture.read().await
}

#[tokio::test]
async fn pages_that_match_their_checksums_are_read() {
    let words: Vec<String> = (0..100).map(|row| format!("word {}", row % 5)).collect();
    let expected = batch([("x", integers(0..100)), ("s", strings(words.iter().map(String::as_str)))]);
    assert_eq!(read(FILE).await.unwrap(), expected);
}

#[tokio::test]
async fn a_damaged_page_is_an_error_that_names_its_column_and_says_checksum() {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from_static(FILE)).unwrap();
    for (index, group) in metadata.row_groups().iter().enumerate() {
        for chunk in group.columns() {
            let (start, length) = chunk.byte_range();
            let mut bytes = FILE.to_vec();
            // The last byte of the last page is a value, so that only the checksum can tell that it is damaged.
            bytes[(start + length) as usize - 1] ^= 1;
            let error = read(&bytes).await.unwrap_err();
            assert!(error.is_damaged_page(), "{error}");
            let text = error.to_string();
            let place =
                format!("a.parquet is corrupt (row group {index}, column {})", chunk.column_path().string());
            assert!(text.contains(&place) && text.contains("checksum"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_damaged_page_is_refused_before_the_first_row_of_its_block() {
    let mut bytes = FILE.to_vec();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from_static(FILE)).unwrap();
    let (start, length) = metadata.row_group(1).column(0).byte_range();
    bytes[(start + length) as usize - 1] ^= 1;

    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &bytes);
    let snapshot = fixture.take().await.unwrap();
    assert_eq!(snapshot.blocks().len(), 1, "both row groups are one block");
    let encoded = fixture.reader(&snapshot).fetch(0, &[0]).await.unwrap();
    let outcomes: Vec<_> = encoded.decode(10).collect();
    assert!(matches!(&outcomes[..], [Err(error)] if error.is_damaged_page()), "{outcomes:?}");
}

#[tokio::test]
async fn a_file_that_is_corrupt_in_another_way_has_no_damaged_page() {
    let mut bytes = FILE.to_vec();
    *bytes.last_mut().unwrap() = b'?';
    let error = read(&bytes).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && !error.is_damaged_page(), "{error}");
}
