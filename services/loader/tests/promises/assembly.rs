//! Assembled batches equal the result of Arrow's own kernels for the same rows, in canonical bytes.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int32Array,
    Int64Array, LargeListArray, ListArray, RecordBatch, StringArray, types::Float32Type,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field};
use arrow_select::interleave::interleave_record_batch;
use forebay_cache::Slabs;
use forebay_loader::{AssembleOptions, Config, FrameBuilder, RowRef, WireBatch, assemble};
use forebay_proto::v1::{self, Shuffle, Train};
use proptest::prelude::*;

use crate::fixture::{decode, drain, everything::everything, job, loader, reader, store};

const ANY: AssembleOptions =
    AssembleOptions { hash: true, max_bytes: u64::MAX, max_held_bytes: u64::MAX, min_rows: 0 };

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_batch_equals_the_result_of_arrow_kernels_on_the_same_rows(
        sizes in prop::collection::vec(1usize..300, 1..4),
        null_every in 1usize..6,
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..400),
    ) {
        let inputs: Vec<RecordBatch> =
            sizes.iter().enumerate().map(|(file, rows)| everything(*rows, move |row| (row + file) % null_every == 1)).collect();
        let (job, frames) = runtime().block_on(async {
            let reader = reader(store(&inputs, 1 << 20).await).await;
            let job = job(&Train { batch_size: 1, ..Train::default() }, &reader);
            let mut frames = Vec::new();
            for (block, rows) in sizes.iter().enumerate() {
                let mut builder = FrameBuilder::new(job.view().clone(), *rows, "test".into(), &Slabs::new(0)).unwrap();
                for chunk in reader.fetch(block, job.view().projection()).await.unwrap().decode(100) {
                    builder.append(&chunk.unwrap()).unwrap();
                }
                frames.push(Arc::new(builder.finish().unwrap()));
            }
            (job, frames)
        });
        let rows: Vec<RowRef> = picks.iter().map(|(frame, row)| {
            let frame = frame.index(sizes.len());
            RowRef { frame: frame as u32, row: row.index(sizes[frame]) as u32 }
        }).collect();
        let batch = assemble(job.view(), &frames, &rows, ANY, &Slabs::new(0)).unwrap();
        let decoded = decode(&batch, &job);
        let indices: Vec<(usize, usize)> = rows.iter().map(|row| (row.frame as usize, row.row as usize)).collect();
        let expected = interleave_record_batch(&inputs.iter().collect::<Vec<_>>(), &indices).unwrap();
        prop_assert_eq!(decoded.columns(), expected.columns());
        prop_assert_eq!(batch.hash, Some(xxhash_rust::xxh3::xxh3_64(&batch.body.to_vec())));
        check_canonical(&decoded);
        // AssembleOptions the same rows again gives the same bytes.
        prop_assert_eq!(assemble(job.view(), &frames, &rows, ANY, &Slabs::new(0)).unwrap(), batch);
    }
}

#[tokio::test]
async fn null_items_of_many_list_columns_stay_with_their_items() {
    const ROWS: usize = 300;
    // Lengths of lists that end within a byte of their validity, at its end, and after several bytes.
    let lengths =
        |column: usize| (0..ROWS).map(move |row| [0, 1, 7, 8, 9, 3, 40, 16][(row * 5 + column) % 8]);
    let is_null = |column: usize, row: usize, item: usize| match column % 4 {
        0 => false,
        1 => row.is_multiple_of(3) && item % 2 == 1,
        2 => item == 0,
        _ => row == ROWS - 1,
    };
    let lists = |column: usize| -> ArrayRef {
        let mut items = Vec::new();
        for (row, length) in lengths(column).enumerate() {
            items.extend((0..length).map(|item| (!is_null(column, row, item)).then_some(row * 100 + item)));
        }
        let items: ArrayRef = match column % 3 {
            0 => Arc::new(items.iter().map(|item| item.map(|item| item as i64)).collect::<Int64Array>()),
            1 => Arc::new(items.iter().map(|item| item.map(|item| item as f32)).collect::<Float32Array>()),
            _ => {
                let items = items.iter().map(|item| item.map(|item| [item as u8, 1, 2]));
                Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(items, 3).unwrap())
            }
        };
        let field = Arc::new(Field::new("item", items.data_type().clone(), true));
        match column % 2 {
            0 => Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths(column)), items, None)),
            _ => {
                Arc::new(LargeListArray::new(field, OffsetBuffer::from_lengths(lengths(column)), items, None))
            }
        }
    };
    let input =
        RecordBatch::try_from_iter((0..24).map(|column| (format!("l{column}"), lists(column)))).unwrap();
    let reader = reader(store(std::slice::from_ref(&input), 1 << 20).await).await;
    let job = job(&Train { batch_size: 1, ..Train::default() }, &reader);
    let mut builder = FrameBuilder::new(job.view().clone(), ROWS, "test".into(), &Slabs::new(0)).unwrap();
    builder.append(&input).unwrap();
    let frames = [Arc::new(builder.finish().unwrap())];
    // All rows in another order, each twice, and a few rows of which some columns have no null item.
    for rows in [(0..2 * ROWS as u32).map(|row| row * 7 % ROWS as u32).collect(), vec![1], vec![4, 2], vec![]]
    {
        let picked: Vec<RowRef> = rows.iter().map(|row| RowRef { frame: 0, row: *row }).collect();
        let decoded = decode(&assemble(job.view(), &frames, &picked, ANY, &Slabs::new(0)).unwrap(), &job);
        let indices: Vec<(usize, usize)> = rows.iter().map(|row| (0, *row as usize)).collect();
        let expected = interleave_record_batch(&[&input], &indices).unwrap();
        assert_eq!(decoded.columns(), expected.columns(), "rows {rows:?}");
        for (found, expected) in decoded.columns().iter().zip(expected.columns()) {
            let nulls = |lists: &ArrayRef| lists.to_data().child_data()[0].null_count();
            assert_eq!(nulls(found), nulls(expected), "as the header says");
        }
        check_canonical(&decoded);
    }
}

#[tokio::test]
async fn a_reused_buffer_leaks_nothing() {
    let input = everything(997, |row| row % 3 == 1);
    let reader = reader(store(std::slice::from_ref(&input), 1 << 20).await).await;
    let job = job(&Train { batch_size: 1, ..Train::default() }, &reader);
    let slabs = Slabs::new(1 << 30);
    let mut builder = FrameBuilder::new(job.view().clone(), 997, "test".into(), &slabs).unwrap();
    builder.append(&input).unwrap();
    let frames = [Arc::new(builder.finish().unwrap())];
    let rows: Vec<RowRef> = (0..20_003).map(|row| RowRef { frame: 0, row: row * 31 % 997 }).collect();
    let batch = || assemble(job.view(), &frames, &rows, ANY, &slabs).unwrap();
    let first = batch();
    let mut used = slabs.take(first.body.len()).unwrap();
    used.fill(0xff);
    let address = used.as_ptr();
    drop(used);
    let second = batch();
    assert!(second == first, "equal rows are equal bytes");
    let [piece] = &second.body.into_pieces()[..] else { panic!("one piece") };
    assert_eq!(piece.as_ptr(), address, "the batch lies in the buffer that was used before");
    assert_eq!(address as usize % 64, 0, "aligned");
}

#[tokio::test]
async fn rows_of_one_tensor_in_file_order_are_sent_without_a_copy() {
    // Rows of 64 bytes need no padding. Rows of 40 bytes do, unless their number is a multiple of eight.
    for columns in [16, 10] {
        let input = matrix(4000, columns);
        let reader = reader(store(&[input.clone(), input.slice(0, 3000)], 1 << 20).await).await;
        let tensor = v1::Tensor { name: "x".into(), columns: vec!["c*".into()], ..v1::Tensor::default() };
        let job = job(&Train { batch_size: 1, tensors: vec![tensor], ..Train::default() }, &reader);
        let frames = [4000, 3000].map(|rows| {
            let slabs = Slabs::new(0);
            let mut builder = FrameBuilder::new(job.view().clone(), rows, "test".into(), &slabs).unwrap();
            builder.append(&input.slice(0, rows)).unwrap();
            Arc::new(builder.finish().unwrap())
        });
        let with = |rows: &[RowRef], max_held_bytes| {
            let asked = AssembleOptions { max_held_bytes, ..ANY };
            assemble(job.view(), &frames, rows, asked, &Slabs::new(0)).unwrap()
        };
        let places = |batch: &WireBatch| -> Vec<*const u8> {
            batch.body.clone().into_pieces().iter().map(|piece| piece.as_ptr()).collect()
        };
        // Returns true if the body consists of `pieces` ranges of the frames, and false if it is a copy.
        let lies_in = |pieces: usize, rows: &[RowRef]| {
            let [first, second] = [with(rows, u64::MAX), with(rows, u64::MAX)];
            assert_eq!((&first, &first), (&second, &with(rows, 0)), "the same bytes, wherever they lie");
            places(&first).len() == pieces && places(&first) == places(&second)
        };
        let run = |frame, rows: std::ops::Range<u32>| rows.map(move |row| RowRef { frame, row });
        let rows: Vec<RowRef> = run(0, 100..3004).collect();
        assert!(lies_in(1, &rows), "nothing was copied");
        let (any, frame_bytes) = (with(&rows, u64::MAX), 4000 * columns as u64 * 4);
        assert_eq!(places(&with(&rows, 2 * frame_bytes)), places(&any));
        assert_ne!(places(&with(&rows, frame_bytes - 1)), places(&any), "too long a frame to hold on to");
        assert!(lies_in(2, &run(0, 1000..4000).chain(run(1, 0..3000)).collect::<Vec<_>>()));
        assert!(
            !lies_in(2, &run(0, 3500..4000).chain(run(1, 0..500)).collect::<Vec<_>>()),
            "two short pieces"
        );
        // The second piece is the padding.
        assert_eq!(lies_in(2, &run(0, 8..1007).collect::<Vec<_>>()), columns == 10);
        let mut shuffled = rows;
        shuffled.swap(7, 9);
        assert!(!lies_in(5, &shuffled), "more pieces than it is worth");
    }
}

/// Batch of float32 columns named `c0`, `c1` and so on.
fn matrix(rows: usize, columns: usize) -> RecordBatch {
    let column = |column: usize| {
        let values = (0..rows).map(|row| (row * columns + column) as f32);
        (format!("c{column}"), Arc::new(Float32Array::from_iter_values(values)) as ArrayRef)
    };
    RecordBatch::try_from_iter((0..columns).map(column)).unwrap()
}

/// Checks that columns without nulls have no validity buffer, and that values under nulls are zero.
fn check_canonical(batch: &RecordBatch) {
    for column in batch.columns() {
        if column.data_type() != &DataType::Null {
            assert_eq!(column.nulls().is_some(), column.null_count() > 0, "{}", column.data_type());
        }
        let Some(width) = column.data_type().primitive_width() else { continue };
        let data = column.to_data();
        let values = &data.buffers()[0].as_slice()[data.offset() * width..];
        for row in (0..column.len()).filter(|row| column.is_null(*row)) {
            assert!(values[row * width..][..width].iter().all(|byte| *byte == 0));
        }
    }
}

#[tokio::test]
async fn a_tensor_is_a_row_major_matrix_and_replaces_nulls() {
    let nulls = NullBuffer::from(vec![true, false, true]);
    let input = RecordBatch::try_from_iter([
        ("i1", Arc::new(Int32Array::new(ScalarBuffer::from(vec![1, 77, 3]), Some(nulls))) as ArrayRef),
        ("i2", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("other", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
    ])
    .unwrap();
    let reader = reader(store(&[input], 100).await).await;
    let tensor = v1::Tensor {
        name: "x".into(),
        columns: vec!["i*".into()],
        dtype: "float32".into(),
        null_value: Some(-1.0),
        ..v1::Tensor::default()
    };
    let train = Train {
        batch_size: 3,
        columns: vec!["other".into()],
        tensors: vec![tensor],
        shuffle: Some(Shuffle { none: Some(v1::shuffle::None {}), ..Shuffle::default() }),
        ..Train::default()
    };
    let job = job(&train, &reader);
    let loader = loader(1 << 20, 1, Config::default());
    let batches = drain(loader.batches(job.clone(), 0, 0)).await.unwrap();
    let decoded = decode(&batches[0].1, &job);
    assert_eq!(
        decoded.schema().fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(),
        ["other", "x"]
    );
    let expected = [[1.0, 1.0], [-1.0, 0.0], [3.0, 1.0]].map(|row| Some(row.map(Some)));
    let expected = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(expected, 2);
    let found = decoded.column(1).as_any().downcast_ref::<FixedSizeListArray>().unwrap();
    assert_eq!(found.values(), expected.values());
    assert!(!decoded.schema().field(1).is_nullable());
}

#[tokio::test]
async fn a_value_out_of_the_range_of_a_tensor_is_an_error_with_column_and_place() {
    let input =
        RecordBatch::try_from_iter([("big", Arc::new(Int32Array::from(vec![1, 300])) as ArrayRef)]).unwrap();
    let reader = reader(store(&[input], 100).await).await;
    let tensor = v1::Tensor {
        name: "x".into(),
        columns: vec!["big".into()],
        dtype: "int8".into(),
        ..v1::Tensor::default()
    };
    let job = job(&Train { batch_size: 2, tensors: vec![tensor], ..Train::default() }, &reader);
    let error =
        drain(loader(1 << 20, 1, Config::default()).batches(job, 0, 0)).await.unwrap_err().to_string();
    for word in ["big", "part-000.parquet", "row group 0", "300"] {
        assert!(error.contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_batch_over_its_limit_is_refused_with_the_bytes_it_needs() {
    let reader = reader(store(&[crate::fixture::numbered(0..1000)], 1000).await).await;
    let job = job(&Train { batch_size: 1000, ..Train::default() }, &reader);
    let config = Config { max_batch_bytes: 10_000, ..Config::default() };
    let error = drain(loader(1 << 20, 1, config).batches(job, 0, 0)).await.unwrap_err().to_string();
    assert!(error.contains("10000") && error.contains("batch_size"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_groups_has_at_most_as_many_rows_as_fit_into_its_bytes() {
    // 16 groups of 8 rows of 8 bytes, in blocks of four groups.
    let group: ArrayRef = Arc::new(Int32Array::from_iter_values((0..128).map(|row| row / 8)));
    let value: ArrayRef = Arc::new(Int64Array::from_iter_values(0..128));
    let input = RecordBatch::try_from_iter([("group", group), ("value", value)]).unwrap();
    let reader = reader(store(&[input], 32).await).await;
    // One window, or four.
    for window_rows in [128, 32] {
        let train = Train {
            batch_size: 16,
            columns: vec!["value".into()],
            group_by: vec!["group".into()],
            shuffle: Some(v1::Shuffle { window_rows: Some(window_rows), ..v1::Shuffle::default() }),
            ..Train::default()
        };
        let batches = async |max_batch_bytes| {
            let loader = loader(1 << 20, 1, Config { max_batch_bytes, ..Config::default() });
            drain(loader.batches(job(&train, &reader), 0, 0)).await
        };
        assert_eq!(batches(1024).await.unwrap().len(), 1);
        let error = batches(1023).await.unwrap_err().to_string();
        assert!(error.contains("1023"), "{error}");
    }
}
