//! Stored NaNs keep their sign and payload, in every type and encoding, from a file and from the disk cache.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array, Float64Array, ListArray, RecordBatch,
    StructArray,
    cast::AsArray,
    types::{Float16Type, Float32Type, Float64Type},
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use forebay_loader::{Config, DiskWrites};
use forebay_proto::v1::{Shuffle, Tensor, Train, shuffle};
use half::f16;
use parquet::{basic::Encoding, file::properties::WriterProperties};
use xxhash_rust::xxh3::xxh3_64;

use crate::fixture::{decode, drain, job, loader, open, reader, store_with};

const ROWS: usize = 700;
const AMPLE: u64 = 1 << 30;

/// Random number for a value of a column.
fn number(column: u64, row: usize) -> u64 {
    xxh3_64(&[column.to_le_bytes(), (row as u64).to_le_bytes()].concat())
}

/// Bits of a NaN with a random sign and payload, quiet or signaling; of a finite number in every fourth row.
fn bits(column: u64, row: usize, (exponent, mantissa_bits): (u64, u32)) -> u64 {
    let random = number(column, row);
    let mantissa = (1 << mantissa_bits) - 1;
    if random.is_multiple_of(4) {
        return random >> 40 & mantissa;
    }
    let sign = random >> 63 << (exponent.count_ones() + mantissa_bits);
    sign | exponent << mantissa_bits | (random >> 3 & mantissa).max(1)
}

const F16: (u64, u32) = (0x1f, 10);
const F32: (u64, u32) = (0xff, 23);
const F64: (u64, u32) = (0x7ff, 52);

fn f32s(column: u64, rows: usize) -> Float32Array {
    Float32Array::from_iter_values((0..rows).map(|row| f32::from_bits(bits(column, row, F32) as u32)))
}

fn f64s(column: u64, rows: usize) -> Float64Array {
    Float64Array::from_iter_values((0..rows).map(|row| f64::from_bits(bits(column, row, F64))))
}

fn nulls(column: u64) -> NullBuffer {
    (0..ROWS).map(|row| !number(column, row).is_multiple_of(5)).collect()
}

fn rows() -> RecordBatch {
    let f16s = (0..ROWS).map(|row| f16::from_bits(bits(1, row, F16) as u16));
    let with_nulls = Float64Array::new(f64s(4, ROWS).values().clone(), Some(nulls(5)));
    let offsets = OffsetBuffer::<i32>::from_lengths((0..ROWS).map(|row| number(6, row) as usize % 4));
    let items = f32s(7, offsets[ROWS] as usize);
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let list = ListArray::new(Arc::clone(&item), offsets, Arc::new(items), Some(nulls(8)));
    let vector = FixedSizeListArray::new(item, 2, Arc::new(f32s(9, 2 * ROWS)), None);
    let fields: Fields =
        vec![Field::new("a", DataType::Float64, true), Field::new("l", list.data_type().clone(), true)]
            .into();
    let nested: Vec<ArrayRef> = vec![Arc::new(f64s(10, ROWS)), Arc::new(list.clone())];
    let structs = StructArray::new(fields, nested, Some(nulls(11)));
    RecordBatch::try_from_iter([
        ("half", Arc::new(Float16Array::from_iter_values(f16s)) as ArrayRef),
        ("single", Arc::new(f32s(2, ROWS))),
        ("double", Arc::new(f64s(3, ROWS))),
        ("maybe", Arc::new(with_nulls)),
        ("list", Arc::new(list)),
        ("vector", Arc::new(vector)),
        ("struct", Arc::new(structs)),
    ])
    .unwrap()
}

/// Bits of all values of an array, with the lengths of lists; `None` for a null.
fn bits_of(array: &dyn Array) -> Vec<Option<u64>> {
    let mut found = Vec::new();
    for row in 0..array.len() {
        if array.is_null(row) {
            found.push(None);
            continue;
        }
        match array.data_type() {
            DataType::Float16 => {
                found.push(Some(array.as_primitive::<Float16Type>().value(row).to_bits().into()));
            }
            DataType::Float32 => {
                found.push(Some(array.as_primitive::<Float32Type>().value(row).to_bits().into()));
            }
            DataType::Float64 => found.push(Some(array.as_primitive::<Float64Type>().value(row).to_bits())),
            DataType::List(_) => {
                let items = array.as_list::<i32>().value(row);
                found.push(Some(items.len() as u64));
                found.extend(bits_of(&items));
            }
            DataType::FixedSizeList(..) => found.extend(bits_of(&array.as_fixed_size_list().value(row))),
            DataType::Struct(_) => {
                for column in array.as_struct().columns() {
                    found.extend(bits_of(&column.slice(row, 1)));
                }
            }
            other => panic!("unexpected type {other}"),
        }
    }
    found
}

/// Writer properties, by name of the encoding.
fn encodings() -> [(&'static str, WriterProperties); 3] {
    let plain =
        || WriterProperties::builder().set_dictionary_enabled(false).set_data_page_row_count_limit(64);
    [
        ("dictionary", WriterProperties::builder().build()),
        ("plain", plain().build()),
        ("byte stream split", plain().set_encoding(Encoding::BYTE_STREAM_SPLIT).build()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bits_of_stored_nans_are_delivered_unchanged_from_a_file_and_from_disk() {
    let source = rows();
    let is_nan = |bits: &Option<u64>| bits.is_some_and(|bits| f64::from_bits(bits).is_nan());
    let payloads: std::collections::BTreeSet<_> =
        bits_of(&source["double"]).into_iter().filter(is_nan).collect();
    assert!(payloads.len() > ROWS / 2, "almost all NaNs differ");
    let tensor = Tensor { name: "x".into(), columns: vec!["single".into()], ..Tensor::default() };
    let in_order = Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() };
    let columns = Train { batch_size: 37, shuffle: Some(in_order), ..Train::default() };
    let tensors = Train { tensors: vec![tensor], columns: vec!["double".into()], ..columns.clone() };
    for (encoding, properties) in encodings() {
        let reader = reader(store_with(std::slice::from_ref(&source), properties).await).await;
        let folder = tempfile::TempDir::new().unwrap();
        let always = Config { disk_writes: DiskWrites::Always, ..Config::default() };
        let loaders: [(&str, &dyn Fn() -> forebay_loader::Loader); 3] = [
            ("memory", &|| loader(AMPLE, 2, Config::default())),
            ("writing to disk", &|| open(folder.path(), AMPLE, AMPLE, &always)),
            ("reading from disk", &|| open(folder.path(), AMPLE, AMPLE, &always)),
        ];
        for (from, open) in loaders {
            let loader = open();
            for train in [&columns, &tensors] {
                let job = job(train, &reader);
                let mut start = 0;
                for (metadata, batch) in drain(loader.batches(Arc::clone(&job), 0, 0)).await.unwrap() {
                    let found = decode(&batch, &job);
                    let expected = source.slice(start, metadata.rows as usize);
                    start += metadata.rows as usize;
                    for (field, column) in job.view().schema().fields().iter().zip(found.columns()) {
                        let stored = if field.name() == "x" { "single" } else { field.name() };
                        assert_eq!(
                            bits_of(column),
                            bits_of(&expected[stored]),
                            "{stored}, {encoding}, {from}, rows to {start}"
                        );
                    }
                }
                // The last, incomplete batch is dropped.
                assert!(start > ROWS - 37, "{start} rows");
            }
        }
    }
}
