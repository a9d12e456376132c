//! Files of hand-made pages.

use std::{io::Write, sync::Arc};

use bytes::Bytes;
use parquet::{
    basic::{Compression, Encoding, GzipLevel},
    column::{
        page::{CompressedPage, Page, PageWriter},
        writer::ColumnCloseResult,
    },
    file::{
        metadata::ColumnChunkMetaData,
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite},
    },
    schema::parser::parse_message_type,
};

/// Encoded page.
pub(crate) struct RawPage {
    page: Page,
    /// Uncompressed size in bytes that the header claims.
    claimed_bytes: usize,
}

/// Returns a dictionary page of `count` values, compressed with gzip.
pub(crate) fn dictionary(count: u32, values: &[u8]) -> RawPage {
    RawPage { page: dictionary_page(count, gzip(values)), claimed_bytes: values.len() }
}

/// Returns a dictionary page of `count` values that is not compressed, and whose header claims `claimed_bytes`.
pub(crate) fn stored_dictionary(count: u32, values: &[u8], claimed_bytes: usize) -> RawPage {
    RawPage { page: dictionary_page(count, values.to_vec().into()), claimed_bytes }
}

fn dictionary_page(count: u32, buf: Bytes) -> Page {
    Page::DictionaryPage { buf, num_values: count, encoding: Encoding::PLAIN, is_sorted: false }
}

/// Returns a data page of `count` values, compressed with gzip.
pub(crate) fn data(count: u32, encoding: Encoding, values: &[u8]) -> RawPage {
    compressed_data(count, encoding, gzip(values), values.len())
}

/// Returns a data page of compressed bytes whose header claims `claimed_bytes` after decompression.
pub(crate) fn compressed_data(count: u32, encoding: Encoding, buf: Bytes, claimed_bytes: usize) -> RawPage {
    let page = Page::DataPage {
        buf,
        num_values: count,
        encoding,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    RawPage { page, claimed_bytes }
}

/// Returns a data page of one row with a list of `count` values, compressed with gzip.
pub(crate) fn list(count: u32, encoding: Encoding, values: &[u8]) -> RawPage {
    data(count, encoding, &with_levels(count, values))
}

/// Returns a data page of one row with a list of `count` dictionary indices, which is not compressed.
pub(crate) fn stored_list(count: u32, indices: &[u8]) -> RawPage {
    let bytes = with_levels(count, indices);
    let claimed_bytes = bytes.len();
    compressed_data(count, Encoding::RLE_DICTIONARY, bytes.into(), claimed_bytes)
}

/// Prepends the levels of one list of `count` values: a new row and its other values, which are all present.
fn with_levels(count: u32, values: &[u8]) -> Vec<u8> {
    let repetition = [run(1, 0), run(count - 1, 1)].concat();
    let definition = run(count, 1);
    [plain(&repetition), plain(&definition), values.to_vec()].concat()
}

/// Run of `count` equal values of one byte, for levels and dictionary indices.
pub(crate) fn run(count: u32, value: u8) -> Vec<u8> {
    [varint(count << 1), vec![value]].concat()
}

/// Plain encoding of a byte array.
pub(crate) fn plain(value: &[u8]) -> Vec<u8> {
    [&u32::try_from(value.len()).unwrap().to_le_bytes()[..], value].concat()
}

fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub(crate) fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap().into()
}

/// Returns an LZ4 frame of blocks of 4 MiB of zeros.
pub(crate) fn lz4_frame(blocks: usize) -> Bytes {
    // One literal, which is repeated, and 5 literals at the end.
    let repeated = (4 << 20) - 6 - (4 + 15);
    let mut block = vec![0x1f, 0, 1, 0];
    block.resize(block.len() + repeated / 255, 255);
    block.push((repeated % 255) as u8);
    block.extend([0x50, 0, 0, 0, 0, 0]);

    // Version 01 with independent blocks of at most 4 MiB, and the checksum of these two bytes.
    let mut frame = [&0x184D_2204_u32.to_le_bytes()[..], &[0x60, 0x70, 0x73]].concat();
    for _ in 0..blocks {
        frame.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        frame.extend(&block);
    }
    frame.extend([0; 4]);
    frame.into()
}

/// Returns a file of one row group with one row. `columns` holds the pages of each leaf column.
pub(crate) fn file(message: &str, codec: Compression, columns: Vec<Vec<RawPage>>) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(message).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let descriptor = writer.schema_descr().clone();
    let mut group = writer.next_row_group().unwrap();
    for (leaf, pages) in columns.into_iter().enumerate() {
        let mut sink = TrackedWrite::new(Vec::new());
        let (mut values, mut data_offset, mut has_dictionary) = (0, None, false);
        for RawPage { page, claimed_bytes } in pages {
            let is_data = page.is_data_page();
            let page = CompressedPage::new(page, claimed_bytes);
            let written = SerializedPageWriter::new(&mut sink).write_page(page).unwrap();
            has_dictionary |= !is_data;
            if is_data {
                values += written.num_values;
                data_offset = data_offset.or(Some(written.offset));
            }
        }
        let bytes = Bytes::from(sink.into_inner().unwrap());
        let length = i64::try_from(bytes.len()).unwrap();
        let metadata = ColumnChunkMetaData::builder(descriptor.column(leaf))
            .set_compression(codec)
            .set_num_values(values.into())
            .set_total_compressed_size(length)
            .set_total_uncompressed_size(length)
            .set_data_page_offset(i64::try_from(data_offset.unwrap()).unwrap())
            .set_dictionary_page_offset(has_dictionary.then_some(0))
            .build()
            .unwrap();
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: 1,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        group.append_column(&bytes, close).unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// Codec of the pages of this module.
pub(crate) fn gzipped() -> Compression {
    Compression::GZIP(GzipLevel::default())
}
