//! Statistics and bloom filters hold for every row of a block.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Float64Array, Int8Array, Int64Array, ListArray, RecordBatch,
    StringArray, UInt32Array,
};
use arrow_ord::cmp::{gt, lt};
use arrow_schema::DataType;
use arrow_select::filter::filter;
use forebay_storage::Statistics;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;

use crate::common::{Fixture, batch, parquet_bytes, read_columns};

type Row = (Option<i64>, Option<f64>, Option<String>, Option<i8>);

fn table(rows: &[Row]) -> RecordBatch {
    let small = |row: &Row| row.3.map(i32::from);
    batch([
        ("i", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()) as ArrayRef),
        ("f", Arc::new(rows.iter().map(|row| row.1).collect::<Float64Array>())),
        ("s", Arc::new(rows.iter().map(|row| row.2.clone()).collect::<StringArray>())),
        ("b", Arc::new(rows.iter().map(|row| row.3).collect::<Int8Array>())),
        ("d", Arc::new(rows.iter().map(small).collect::<Date32Array>())),
        ("u", Arc::new(rows.iter().map(|row| row.3.map(|value| value as u32)).collect::<UInt32Array>())),
    ])
}

fn properties(group: usize, page: usize) -> WriterProperties {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_data_page_row_count_limit(page)
        .set_write_batch_size(page)
        .set_bloom_filter_enabled(true)
        .build()
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let float = prop_oneof![any::<f64>(), prop::sample::select(vec![f64::NAN, -0.0, 0.0, f64::INFINITY])];
    let text = prop_oneof!["[a-c]{0,3}", "\\PC{0,100}"];
    let row = (
        prop::option::of(prop_oneof![any::<i64>(), -3..3_i64]),
        prop::option::of(float),
        prop::option::of(text),
        prop::option::of(any::<i8>()),
    );
    prop::collection::vec(row, 1..200)
}

/// Asserts that all non-null values except NaN are within the bounds of their piece, and that null counts are exact.
fn assert_holds(known: &Statistics, values: &dyn Array) {
    assert_eq!(known.ends.last().copied(), Some(values.len() as u32));
    let mut start = 0;
    for (piece, end) in known.ends.iter().map(|end| *end as usize).enumerate() {
        let rows = values.slice(start, end - start);
        if let Some(nulls) = known.null_counts[piece] {
            assert_eq!(nulls, rows.null_count() as u64);
        }
        let rows = if let Some(floats) = rows.as_any().downcast_ref::<Float64Array>() {
            Arc::new(floats.iter().flatten().filter(|value| !value.is_nan()).collect::<Float64Array>())
                as ArrayRef
        } else {
            rows
        };
        let (min, max) = (known.min.slice(piece, 1), known.max.slice(piece, 1));
        let scalar = arrow_array::Scalar::new;
        assert_eq!(lt(&rows, &scalar(min)).unwrap().true_count(), 0);
        assert_eq!(gt(&rows, &scalar(max)).unwrap().true_count(), 0);
        start = end;
    }
}

fn each<'a>(batch: &'a RecordBatch, known: &'a [Statistics]) -> Vec<(String, &'a Statistics, &'a ArrayRef)> {
    let names = batch.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    names
        .into_iter()
        .zip(known)
        .zip(batch.columns())
        .map(|((name, known), column)| (name, known, column))
        .collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn statistics_of_row_groups_and_pages_hold_for_every_row(
        rows in rows(), group in 10..200_usize, page in 5..50_usize,
    ) {
        let written = table(&rows);
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &parquet_bytes(&written, Some(properties(group, page))));
        block_on(async {
            let snapshot = fixture.take().await.unwrap();
            let reader = fixture.reader(&snapshot);
            let columns: Vec<usize> = (0..written.num_columns()).collect();
            let (groups, pages) = (
                reader.statistics(0, &columns).await.unwrap(),
                reader.page_statistics(0, &columns).await.unwrap(),
            );
            for (known, fewest) in [(groups, rows.len().div_ceil(group)), (pages, rows.len().div_ceil(group.min(page)))] {
                for (name, known, column) in each(&written, &known) {
                    // Writers omit the bounds of floats if a page holds only NaN.
                    let fewest = if name == "f" { 1 } else { fewest };
                    assert!(known.ends.len() >= fewest, "{name}: {} of {fewest}", known.ends.len());
                    assert_holds(known, column);
                }
            }
        });
    }

    #[test]
    fn a_bloom_filter_never_rules_out_a_value_of_the_block(rows in rows(), group in 10..200_usize) {
        let written = table(&rows);
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &parquet_bytes(&written, Some(properties(group, 20))));
        block_on(async {
            let snapshot = fixture.take().await.unwrap();
            let reader = fixture.reader(&snapshot);
            for (column, values) in written.columns().iter().enumerate() {
                let valid: BooleanArray = (0..values.len()).map(|row| Some(values.is_valid(row))).collect();
                let present = filter(values, &valid).unwrap();
                let contained = reader.may_contain(0, column, present).await.unwrap();
                assert!(contained.into_iter().all(|contained| contained), "{column}");
            }
        });
    }
}

#[tokio::test]
async fn a_bloom_filter_rules_out_most_absent_values() {
    let rows: Vec<Row> = (0..10_000)
        .map(|row| {
            (Some(row * 2), Some(row as f64), Some(format!("u{}", row * 2)), Some((row % 50) as i8 * 2))
        })
        .collect();
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &parquet_bytes(&table(&rows), Some(properties(3000, 1000))));
    let snapshot = fixture.take().await.unwrap();
    let reader = fixture.reader(&snapshot);
    let odd: Vec<i64> = (0..1000).map(|row| row * 2 + 1).collect();
    let small = || odd.iter().take(50).map(|odd| *odd as i32);
    let asked: [(usize, ArrayRef); 5] = [
        (0, Arc::new(Int64Array::from(odd.clone()))),
        (2, Arc::new(StringArray::from_iter_values(odd.iter().map(|odd| format!("u{odd}"))))),
        (3, Arc::new(Int8Array::from_iter_values(small().map(|odd| odd as i8)))),
        (4, Arc::new(Date32Array::from_iter_values(small()))),
        (5, Arc::new(UInt32Array::from_iter_values(small().map(|odd| odd as u32)))),
    ];
    for (column, values) in asked {
        let (all, data_type) = (values.len(), values.data_type().clone());
        let contained = reader.may_contain(0, column, values).await.unwrap();
        let kept = contained.iter().filter(|contained| **contained).count();
        assert!(kept * 5 < all, "{data_type}: {contained:?}");
    }
    // No filter is used for floats, or for values of another type than the column's.
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    assert_eq!(reader.may_contain(0, 1, floats).await.unwrap(), [true]);
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert_eq!(reader.may_contain(0, 3, wide).await.unwrap(), [true]);
}

#[tokio::test]
async fn a_file_without_page_indexes_has_row_group_statistics() {
    let rows: Vec<Row> = (0..1000).map(|row| (Some(row), None, None, None)).collect();
    let fixture = Fixture::new();
    let plain = WriterProperties::builder()
        .set_max_row_group_row_count(Some(400))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    fixture.write_bytes("a.parquet", &parquet_bytes(&table(&rows), Some(plain)));
    let snapshot = fixture.take().await.unwrap();
    let reader = fixture.reader(&snapshot);
    let pages = reader.page_statistics(0, &[0]).await.unwrap();
    assert_eq!(pages[0].ends, [400, 800, 1000]);
    assert_eq!(pages[0].min.data_type(), &DataType::Int64);
    assert_eq!(reader.may_contain(0, 0, Arc::new(Int64Array::from(vec![-1]))).await.unwrap(), [true]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Indexes and filters are stored between the data and the footer. Damage there may cost time, but no rows.
    #[test]
    fn damaged_indexes_are_ignored(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let rows: Vec<Row> = (0..300).map(|row| (Some(row), Some(row as f64), Some(format!("s{row}")), Some(1))).collect();
        let mut bytes = parquet_bytes(&table(&rows), Some(properties(100, 20)));
        let footer = bytes.len() - 8 - u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
        let start = footer - 6000;
        for (at, flip) in flips {
            bytes[start + at.index(footer - start)] ^= flip;
        }
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &bytes);
        block_on(async {
            let snapshot = fixture.take().await.unwrap();
            let reader = fixture.reader(&snapshot);
            for known in reader.page_statistics(0, &[0, 1, 2, 3, 4, 5]).await.unwrap() {
                assert_eq!(known.ends.last(), Some(&300));
            }
            for (column, value) in [(0, Arc::new(Int64Array::from(vec![7])) as ArrayRef), (2, Arc::new(StringArray::from(vec!["s7"])))] {
                assert_eq!(reader.may_contain(0, column, value).await.unwrap().len(), 1);
            }
            // Some flips are in the data; they are detected when it is read.
            read_columns(&reader, &[0]).await.ok();
        });
    }
}

#[tokio::test]
async fn nulls_of_list_items_do_not_count_as_nulls_of_the_list() {
    let empty =
        ListArray::from_iter_primitive::<Int64Type, _, _>((0..50).map(|_| Some(Vec::<Option<i64>>::new())));
    let holes = ListArray::from_iter_primitive::<Int64Type, _, _>((0..50).map(|_| Some(vec![None])));
    let fixture = Fixture::new();
    let lists = batch([("e", Arc::new(empty) as ArrayRef), ("h", Arc::new(holes))]);
    fixture.write_bytes("a.parquet", &parquet_bytes(&lists, Some(properties(100, 100))));
    let snapshot = fixture.take().await.unwrap();
    for known in fixture.reader(&snapshot).page_statistics(0, &[0, 1]).await.unwrap() {
        assert_eq!((&known.null_counts[..], &known.ends[..]), (&[None][..], &[50][..]));
    }
}
