//! Expressions and filters of a view.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, DurationSecondArray, FixedSizeListArray, Int32Array,
    Int64Array, RecordBatch, cast::AsArray, types::*,
};
use arrow_buffer::NullBuffer;
use arrow_schema::Field;
use forebay_loader::{Config, CountProgress, Error, Job};
use forebay_proto::v1::{Dedupe, Shuffle, Tensor, Train, shuffle};
use forebay_storage::Reader;

use crate::fixture::{decode, drain, floats, job, loader, numbered, ranked, reader, store};

fn in_order(train: Train) -> Train {
    let shuffle = Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() };
    Train { dataset: "d".into(), batch_size: 1000, shuffle: Some(shuffle), ..train }
}

fn select(expressions: &[&str]) -> Train {
    in_order(Train { select: expressions.iter().map(ToString::to_string).collect(), ..Train::default() })
}

async fn rows(train: &Train, reader: &Reader) -> Result<Vec<RecordBatch>, Error> {
    let job = job(train, reader);
    let sent = drain(loader(1 << 30, 2, Config::default()).batches(Arc::clone(&job), 0, 0)).await?;
    Ok(sent.iter().map(|(_, batch)| decode(batch, &job)).collect())
}

fn refused(train: &Train, reader: &Reader) -> String {
    Job::resolve(train, reader.clone(), None).unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn selected_expressions_are_delivered_and_can_be_used_by_columns_and_tensors() {
    let reader = reader(store(&[numbered(0..2500)], 20_000).await).await;
    let batches =
        rows(&select(&["name AS label", "id + 1 AS next", "log1p(x) AS y"]), &reader).await.unwrap();
    let first = &batches[0];
    let names: Vec<_> = first.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["label", "next", "y"]);
    assert_eq!(first["next"].as_primitive::<Int64Type>().values()[..3], [1, 2, 3]);
    assert_eq!(first["y"].as_primitive::<Float64Type>().value(7), 7f64.ln_1p());
    assert!(first["label"].is_null(7) && first["label"].as_string::<i32>().value(8) == "row 8");

    // An expression takes precedence over the column of its name, in tensors and in columns.
    let tensor = |columns: &[&str]| Tensor {
        name: "t".into(),
        columns: columns.iter().map(ToString::to_string).collect(),
        dtype: "float32".into(),
        ..Tensor::default()
    };
    let request = Train {
        columns: vec!["x".into(), "id".into()],
        tensors: vec![tensor(&["x*", "id"])],
        ..select(&["CAST(id * 10 AS REAL) AS x", "-x AS x_minus"])
    };
    let first = &rows(&request, &reader).await.unwrap()[0];
    assert_eq!(first["x"].as_primitive::<Float32Type>().value(3), 30.0);
    let tensor = first["t"].as_fixed_size_list().value(3);
    assert_eq!(tensor.as_primitive::<Float32Type>().values()[..], [30.0, -3.0, 3.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_drops_rows_as_if_the_dataset_did_not_contain_them() {
    let reader = reader(store(&[numbered(0..2500)], 20_000).await).await;
    let filter = |text: &str| in_order(Train { filter: text.into(), ..Train::default() });
    let ids = |batches: &[RecordBatch]| -> Vec<i64> {
        batches.iter().flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec()).collect()
    };
    // A filter that evaluates to null drops the row.
    let batches = rows(&filter("name <> 'row 8'"), &reader).await.unwrap();
    let expected: Vec<i64> = (0..2500).filter(|id| id % 7 != 0 && *id != 8).collect();
    assert_eq!(ids(&batches), expected);
    assert_eq!(
        batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(),
        [1000, 1000, expected.len() - 2000]
    );

    let none = filter("id < 0");
    assert_eq!((job(&none, &reader).summary().rows, job(&none, &reader).summary().steps), (0, 0));
    assert!(rows(&none, &reader).await.unwrap().is_empty());
    assert_eq!(ids(&rows(&filter("hash_bucket(id, 100) < 90"), &reader).await.unwrap()).len(), 2267);

    let hashes =
        ["", "id >= 0", "id < 10", "id < 11"].map(|text| job(&filter(text), &reader).summary().plan_hash);
    assert!(hashes.iter().enumerate().all(|(at, hash)| !hashes[..at].contains(hash)), "{hashes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_computed_is_an_error_with_expression_file_and_reason() {
    let batch = RecordBatch::try_from_iter([(
        "i",
        Arc::new(Int32Array::from_iter_values((0..20_000).rev())) as ArrayRef,
    )])
    .unwrap();
    let reader = reader(store(&[batch], 20_000).await).await;
    let error = rows(&select(&["100 / i AS y"]), &reader).await.unwrap_err().to_string();
    assert_eq!(error, "'y' in part-000.parquet, row group 0: Divide by zero error");
    let request =
        Train { dataset: "d".into(), filter: "100 / i > 3".into(), batch_size: 1, ..Train::default() };
    let counted = loader(1 << 20, 1, Config::default()).count(&request, &reader, |_| {}).await;
    assert_eq!(
        counted.unwrap_err().to_string(),
        "'filter' in part-000.parquet, row group 0: Divide by zero error"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_is_refused_with_the_name_of_its_field() {
    let reader = reader(store(&[numbered(0..10)], 20_000).await).await;
    for (expressions, reason) in [
        (["id", "nmae AS n"], "select[1]: there is no column 'nmae'; did you mean 'name'?"),
        (["id", "zzz AS n"], "select[1]: there is no column 'zzz'; the dataset has the columns '"),
        (["id", "x + 1"], "select[1]: 'x + 1' has no name, add one with AS"),
        (["id", "x AS id"], "select[1]: two expressions have the name 'id'"),
        (["id", "random() AS r"], "select[1]: Invalid function 'random'"),
        (["id", "NULL AS n"], "select[1]: is always null: CAST it to a type"),
    ] {
        let refused = refused(&select(&expressions), &reader);
        assert!(refused.starts_with(reason), "{refused}");
    }
    let chain = |name: &str| format!("{} AS {name}", vec!["x"; 500].join(" - "));
    let refused_chain = refused(&select(&[&chain("a"), &chain("b")]), &reader);
    let reason = "select[1]: is too complex, together with the expressions before it: 500998 of 500000";
    assert_eq!(refused_chain, reason);
    let filter = |text: &str| in_order(Train { filter: text.into(), ..Train::default() });
    assert!(refused(&filter("id +"), &reader).starts_with("filter: "));
    assert_eq!(refused(&filter("id"), &reader), "filter: is of type Int64, expected a boolean");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_of_all_tensors_of_a_view_are_limited() {
    let reader = reader(store(&[floats(1000, 1)], 20_000).await).await;
    let unknown = |name: &str| refused(&select(&[&format!("{name} + 1 AS y")]), &reader);
    assert!(unknown("zzz").contains("no column 'zzz'; the dataset has 1000 columns; "), "{}", unknown("zzz"));
    assert!(unknown("abcdefgh").contains("has 1000 columns, the closest are 'c"), "{}", unknown("abcdefgh"));
    let every = || vec!["c*".to_owned()];
    let tensor = |name: String| Tensor { name, columns: every(), ..Tensor::default() };
    let tensors = |count: usize| {
        in_order(Train {
            tensors: (0..count).map(|index| tensor(format!("t{index}"))).collect(),
            ..Train::default()
        })
    };
    assert!(Job::resolve(&tensors(65), reader.clone(), None).is_ok());
    let reason = "has, together with the tensors before it, 66000 columns or more, expected at most 65536";
    assert_eq!(refused(&tensors(66), &reader), format!("tensors.t65: {reason}"));
    assert_eq!(refused(&tensors(60_000), &reader), format!("tensors.t65: {reason}"));
    let key = vec!["c0".to_owned()];
    let dedupe = Dedupe { key, tensor: "d".into(), columns: every(), ..Dedupe::default() };
    let request = Train { dedupe: vec![dedupe], ..tensors(65) };
    assert_eq!(refused(&request, &reader), format!("dedupe.d: {reason}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_stands_for_its_columns_in_the_order_of_the_dataset() {
    let reader = reader(store(&[floats(112, 1)], 20_000).await).await;
    let every: Vec<f32> = (0..112_u8).map(f32::from).collect();
    for (columns, expected) in [
        (vec!["c*"], every),
        (vec!["c10*"], vec![10.0, 100.0, 101.0, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0, 108.0, 109.0]),
        (vec!["c9", "c11*", "c3"], vec![9.0, 11.0, 110.0, 111.0, 3.0]),
    ] {
        let columns = columns.into_iter().map(str::to_owned).collect();
        let tensor = Tensor { name: "t".into(), columns, ..Tensor::default() };
        let request = in_order(Train { tensors: vec![tensor], ..Train::default() });
        let batches = rows(&request, &reader).await.unwrap();
        let row = batches[0]["t"].as_fixed_size_list().value(0);
        assert_eq!(row.as_primitive::<Float32Type>().values()[..], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_group_lengths_in_memory_is_limited_and_released() {
    let reader = reader(store(&[ranked(0..13_000), ranked(13_000..26_000)], 2000).await).await;
    let packed = |filter: &str| Train {
        dataset: "d".into(),
        group_by: vec!["query".into()],
        filter: filter.into(),
        max_pack_rows: 100,
        batch_size: 1,
        ..Train::default()
    };
    // There are 2,000 groups, some of which span two blocks.
    let loader = loader(1 << 30, 2, Config { max_packed_groups: 1500, ..Config::default() });
    for _ in 0..3 {
        let error = loader.count(&packed(""), &reader, |_| {}).await.unwrap_err().to_string();
        assert!(error.contains("keeping the lengths of packed groups"), "{error}");
        assert!(error.contains("the limit is 6000") && error.contains("loader.max_packed_groups"), "{error}");
    }
    let job = async |filter: &str| loader.job(packed(filter), reader.clone(), Vec::new()).await;
    let first = job("query < 1000").await.unwrap();
    assert!(job("query >= 1000").await.is_err());
    // Other ranks of a running job share its counts.
    assert_eq!(job("query < 1000").await.unwrap().summary().groups, Some(1000));
    drop(first);
    // Unused counts are evicted.
    let second = job("query >= 1000").await.unwrap();
    assert_eq!(second.summary().groups, Some(1000));
    let plain = Train { max_pack_rows: 0, ..packed("") };
    assert!(loader.job(plain, reader.clone(), Vec::new()).await.is_ok(), "groups alone take none");
}

/// Three sorted files and one unsorted file.
async fn ordered() -> Reader {
    let shuffled = RecordBatch::try_new(
        numbered(0..1).schema(),
        vec![
            Arc::new(arrow_array::Int64Array::from_iter_values((0..20_000).map(|row| row * 7 % 20_000))),
            Arc::new(arrow_array::Float32Array::from(vec![0.0; 20_000])),
            Arc::new(arrow_array::StringArray::from(vec!["s"; 20_000])),
        ],
    );
    let files = [numbered(0..20_000), numbered(20_000..40_000), numbered(40_000..60_000), shuffled.unwrap()];
    reader(store(&files, 20_000).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn footers_decide_blocks_of_sorted_data_and_counts_are_stored() {
    let reader = ordered().await;
    let request = Train {
        dataset: "d".into(),
        filter: "id BETWEEN 1000 AND 39999".into(),
        batch_size: 1,
        ..Train::default()
    };
    let seen = Mutex::new(Vec::new());
    let kept = loader(1 << 20, 1, Config::default());
    let counted =
        kept.count(&request, &reader, |done| seen.lock().unwrap().push(done)).await.unwrap().unwrap();
    assert_eq!(counted.rows()[..], [19_000, 20_000, 0, 19_000]);
    let last = *seen.lock().unwrap().last().unwrap();
    let expected =
        CountProgress { blocks: 4, blocks_done: 4, blocks_read: 2, rows: 80_000, rows_kept: 58_000 };
    assert_eq!((seen.lock().unwrap().len(), last), (4, expected));

    // Another server reuses the stored counts for an equivalent filter.
    let calls = AtomicU64::new(0);
    let same = Train { filter: "id >= 1000 AND id <= 39999".into(), ..request };
    let other = loader(1 << 20, 1, Config::default());
    let again = other
        .count(&same, &reader, |_| {
            calls.fetch_add(1, Ordering::Relaxed);
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!((again.rows(), calls.into_inner()), (counted.rows(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn page_indexes_and_bloom_filters_answer_where_row_groups_cannot() {
    // Each page holds 100 rows of one day. The bloom filter covers the user column.
    let rows = 20_000;
    let batch = RecordBatch::try_from_iter([
        ("day", Arc::new(Int32Array::from_iter_values((0..rows).map(|row| row / 100))) as ArrayRef),
        (
            "user",
            Arc::new(arrow_array::StringArray::from_iter_values(
                (0..rows).map(|row| format!("u{}", row * 7 % rows)),
            )),
        ),
    ]);
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(100)
        .set_column_bloom_filter_enabled("user".into(), true);
    let reader = reader(crate::fixture::store_with(&[batch.unwrap()], properties.build()).await).await;
    let loader = loader(1 << 20, 1, Config::default());
    for (filter, kept, read) in [
        ("day = 5", 100, 0),
        ("day IN (5, 7) OR day > 190", 1100, 0),
        ("day NOT BETWEEN 20 AND 29", 19_000, 0),
        ("day % 10 = 5", 2000, 1),
        ("user = 'u100000'", 0, 0),
        ("user IN ('u30000', 'u50000', NULL)", 0, 0),
        ("user NOT IN ('u30000', 'u50000')", 20_000, 0),
        ("user IN ('u30000', 'u3')", 1, 1),
        ("user = 'v' OR day < 3", 300, 0),
    ] {
        let request = Train { dataset: "d".into(), filter: filter.into(), batch_size: 1, ..Train::default() };
        let last = Mutex::new(CountProgress::default());
        let counted = loader.count(&request, &reader, |done| *last.lock().unwrap() = done).await.unwrap();
        assert_eq!(counted.unwrap().rows()[..], [kept], "{filter}");
        assert_eq!(last.lock().unwrap().blocks_read, read, "{filter}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_is_estimated_with_the_converted_width_of_list_items() {
    let lists = (0..20_000).map(|row| Some((0..row % 9).map(|item| Some(item % 2 == 0)).collect::<Vec<_>>()));
    let mut builder = arrow_array::builder::ListBuilder::new(arrow_array::builder::BooleanBuilder::new());
    builder.extend(lists);
    let rows = RecordBatch::try_from_iter([("flags", Arc::new(builder.finish()) as arrow_array::ArrayRef)]);
    let reader = reader(store(&[rows.unwrap()], 20_000).await).await;
    let flags = Tensor {
        name: "flags".into(),
        columns: vec!["flags".into()],
        dtype: "float64".into(),
        ragged: true,
        ..Tensor::default()
    };
    let train = Train { batch_size: 1000, tensors: vec![flags], ..Train::default() };
    let job = crate::fixture::job(&train, &reader);
    let loader = loader(1 << 30, 1, Config::default());
    crate::fixture::drain(loader.batches(job.clone(), 0, 0)).await.unwrap();
    // 80,000 items of 8 bytes, and 12 bytes per row.
    assert!(loader.resident_bytes() > 80_000 * 8);
    assert!(job.summary().window_bytes > 80_000 * 8, "{}", job.summary().window_bytes);
}

/// Rows `0..rows` with the number `id`, the embedding `e` of `[id, id + 1]`, null if `id` is 3 modulo 10, `n` of the same numbers whose
/// second one is null if `id` is 5 modulo 10, and flags `b`.
fn embeddings(rows: i64) -> RecordBatch {
    let pairs = |values: ArrayRef, nulls: Option<NullBuffer>| {
        let item = Arc::new(Field::new("item", values.data_type().clone(), true));
        Arc::new(FixedSizeListArray::new(item, 2, values, nulls)) as ArrayRef
    };
    let values = |is_null: fn(i64) -> bool| {
        let values = (0..rows).flat_map(move |id| [Some(id), (!is_null(id)).then_some(id + 1)]);
        Arc::new(values.collect::<Int64Array>()) as ArrayRef
    };
    let nulls = NullBuffer::from((0..rows).map(|id| id % 10 != 3).collect::<Vec<_>>());
    let flags = (0..rows).flat_map(|id| [Some(id % 2 == 0), Some(true)]).collect::<BooleanArray>();
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef),
        ("e", pairs(values(|_| false), Some(nulls))),
        ("n", pairs(values(|id| id % 10 == 5), None)),
        ("b", pairs(Arc::new(flags), None)),
        ("d", Arc::new(Date32Array::from_iter_values(0..rows as i32)) as ArrayRef),
        ("took", Arc::new(DurationSecondArray::from_iter_values(0..rows)) as ArrayRef),
    ])
    .unwrap()
}

fn tensor_of(columns: &[&str], dtype: &str, null_value: Option<f64>) -> Train {
    let columns = columns.iter().map(ToString::to_string).collect();
    let tensor = Tensor { name: "t".into(), columns, dtype: dtype.into(), null_value, ..Tensor::default() };
    in_order(Train { tensors: vec![tensor], ..Train::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_size_lists_are_as_many_columns_of_a_tensor_as_they_have_items() {
    let reader = reader(store(&[embeddings(1500)], 400).await).await;
    for train in [tensor_of(&["id", "e", "b", "n"], "float32", Some(-1.0)), {
        let dedupe = Dedupe {
            key: vec!["id".into()],
            tensor: "t".into(),
            columns: ["id", "e", "b", "n"].map(str::to_owned).to_vec(),
            dtype: "float32".into(),
            null_value: Some(-1.0),
        };
        in_order(Train { dedupe: vec![dedupe], ..Train::default() })
    }] {
        let batches = rows(&train, &reader).await.unwrap();
        let mut id = 0_i64;
        for batch in &batches {
            let of_rows = match batch["t"].as_list_opt::<i32>() {
                Some(distinct) => Arc::clone(distinct.values()),
                None => Arc::clone(&batch["t"]),
            };
            let of_rows = of_rows.as_fixed_size_list();
            assert_eq!(of_rows.value_length(), 7);
            for row in 0..of_rows.len() {
                let found = of_rows.value(row).as_primitive::<Float32Type>().values().to_vec();
                let (first, second) = (id as f32, (id + 1) as f32);
                let e = if id % 10 == 3 { [-1.0, -1.0] } else { [first, second] };
                let n = [first, if id % 10 == 5 { -1.0 } else { second }];
                let b = [f32::from(u8::from(id % 2 == 0)), 1.0];
                assert_eq!(found, [&[first][..], &e, &b, &n].concat(), "{id}");
                id += 1;
            }
        }
        assert_eq!(id, 1500);
    }

    // The items have one of the types of tensors.
    let filtered = Train { filter: "id % 10 > 5".into(), ..tensor_of(&["e", "n"], "", None) };
    let first = &rows(&filtered, &reader).await.unwrap()[0];
    let found = first["t"].as_fixed_size_list().value(1);
    assert_eq!(found.as_primitive::<Int64Type>().values()[..], [7, 8, 7, 8]);

    let error = rows(&tensor_of(&["e"], "", None), &reader).await.unwrap_err().to_string();
    assert!(error.contains("'e'") && error.contains("a null; set null_value"), "{error}");
    let error = rows(&tensor_of(&["n"], "", None), &reader).await.unwrap_err().to_string();
    assert!(error.contains("'n'") && error.contains("a null among the items of a list"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_tensors_advise_only_what_helps() {
    let reader = reader(store(&[embeddings(10)], 400).await).await;
    let refused = |train: &Train| refused(train, &reader);
    for (columns, dtype, words) in [
        (
            &["d"][..],
            "",
            "Date32 (a point in time), which a tensor cannot hold; leave it out, or select numbers such as to_unixtime(",
        ),
        (&["d"], "float32", "because it is a point in time, which a tensor cannot hold"),
        (
            &["took"],
            "",
            "Duration(s) (a duration), which a tensor cannot hold; leave it out, or select numbers such as EXTRACT(",
        ),
        (&["id", "took"], "", "one of them is a duration"),
        (&["took"], "int64", "because it is a duration, which a tensor cannot hold"),
        (&["b"], "", "the columns are of type Boolean; set dtype to one of"),
        (&["id", "b"], "", "the columns are of types Int64 and Boolean; set dtype to one of"),
    ] {
        let error = refused(&tensor_of(columns, dtype, None));
        assert!(error.contains(words), "{columns:?} {dtype}: {error}");
        assert!(words.contains("set dtype") || !error.contains("set dtype"), "{error}");
    }
    let mut lists = tensor_of(&["e"], "", None);
    lists.tensors[0].max_list_length = Some(2);
    assert!(refused(&lists).contains("leave out max_list_length and ragged"), "{}", refused(&lists));
}
