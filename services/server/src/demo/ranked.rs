//! `forebay demo --ranking`: queries shuffled whole, with their features sent once a batch and with every item.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use arrow_array::{RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::take::take;
use bytesize::ByteSize;
use forebay_proto::{DISTINCT, LAYOUT, v1};
use futures::TryStreamExt;

use super::{
    ranking::{ITEM_FEATURES, ITEMS, QUERY_FEATURES},
    trainer::{Trainer, in_words},
};
use crate::digest::Digest;

/// What of a query is the same for all of its items.
const QUERY: &str = "query";

/// An epoch of a stream.
struct Passed {
    rows: u64,
    bytes: u64,
    wall: Duration,
}

/// Streams the data both ways, warm, and compares what comes.
pub(super) async fn run(
    trainer: &mut Trainer,
    dataset: &str,
    source: &Path,
    batch_size: u64,
    seed: u64,
) -> anyhow::Result<()> {
    let plain = request(dataset, (batch_size / ITEMS).max(1), seed);
    let [query, others @ ..] = plain.tensors.as_slice() else { unreachable!("a query has a tensor") };
    let v1::Tensor { name, columns, dtype, .. } = query.clone();
    let key = plain.group_by.clone();
    let dedupe = vec![v1::Dedupe { key, tensor: name, columns, dtype, fill: None }];
    let distinct = v1::Train { tensors: others.to_vec(), dedupe, ..plain.clone() };

    let summary = trainer.plan(&plain).await?;
    println!("data        {}", source.display());
    println!("            {} rows of {} queries, {ITEMS} items each", summary.rows, summary.groups());
    println!(
        "order       {} steps of {} queries, shuffled whole in windows of {} rows ({})",
        summary.steps,
        summary.batch_size,
        summary.window_rows(),
        ByteSize(summary.window_bytes)
    );
    println!("features    {QUERY_FEATURES} of a query, {ITEM_FEATURES} of an item\n");

    let mut passed = Vec::new();
    let mut digests = Vec::new();
    for train in [&plain, &distinct] {
        // Once cold, for what it holds; then warm, for the rate.
        digests.push(digest(trainer, train).await?);
        let epoch = receive(trainer, train).await?;
        ensure!(epoch.rows == summary.rows, "{} rows came, expected {}", epoch.rows, summary.rows);
        passed.push(epoch);
    }
    println!("{:<26}{:>18}{:>18}", "", "with every item", "once a batch");
    let line = |name: &str, value: &dyn Fn(&Passed) -> String| {
        println!("{name:<26}{:>18}{:>18}", value(&passed[0]), value(&passed[1]));
    };
    line("bytes a row", &|passed| format!("{:.1}", passed.bytes as f64 / passed.rows as f64));
    line("rows/s", &|passed| format!("{:.0}", passed.rows as f64 / passed.wall.as_secs_f64().max(1e-9)));
    println!("{:<26}{:>18}{:>18}", "digest, expanded", digests[0], digests[1]);
    ensure!(digests[0] == digests[1], "the two streams differ");
    Ok(())
}

fn request(dataset: &str, queries: u64, seed: u64) -> v1::Train {
    let tensor = |name: &str, columns: &str| v1::Tensor {
        name: name.to_owned(),
        columns: vec![columns.to_owned()],
        dtype: "float32".to_owned(),
        ..v1::Tensor::default()
    };
    v1::Train {
        dataset: dataset.to_owned(),
        tensors: vec![tensor(QUERY, "q_*"), tensor("item", "i_*"), tensor("clicked", "clicked")],
        group_by: vec!["query_id".to_owned()],
        batch_size: queries,
        seed,
        job: "demo".to_owned(),
        ..v1::Train::default()
    }
}

async fn receive(trainer: &mut Trainer, train: &v1::Train) -> anyhow::Result<Passed> {
    let started = Instant::now();
    let mut stream = trainer.open(train).await?;
    let (mut rows, mut bytes) = (0, 0);
    while let Some(batch) = stream.try_next().await.map_err(in_words)? {
        rows += batch.num_rows() as u64;
        let sizes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        bytes += sizes.sum::<Result<usize, _>>()? as u64;
    }
    Ok(Passed { rows, bytes, wall: started.elapsed() })
}

async fn digest(trainer: &mut Trainer, train: &v1::Train) -> anyhow::Result<String> {
    let mut stream = trainer.open(train).await?;
    let mut digest = Digest::default();
    while let Some(batch) = stream.try_next().await.map_err(in_words)? {
        // The plain stream has its columns in the order in which they are asked for, this one its distinct rows last.
        let expanded = expanded(&batch)?;
        let names = train.tensors.iter().map(|tensor| tensor.name.as_str());
        let mut names: Vec<&str> =
            names.chain(train.dedupe.iter().map(|dedupe| dedupe.tensor.as_str())).collect();
        names.sort_unstable();
        let indices = names.iter().map(|name| expanded.schema().index_of(name));
        digest.update(&expanded.project(&indices.collect::<Result<Vec<_>, _>>()?)?);
    }
    Ok(digest.finish())
}

/// The batch with every row whole.
fn expanded(batch: &RecordBatch) -> anyhow::Result<RecordBatch> {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if field.metadata().get(LAYOUT).is_none_or(|layout| layout != DISTINCT) {
            fields.push(Arc::clone(field));
            columns.push(Arc::clone(column));
            continue;
        }
        let index = batch.column_by_name(&format!("{}_index", field.name()));
        let rows = column.as_list::<i32>().values();
        columns.push(take(rows, index.context("the numbers of the distinct rows are missing")?, None)?);
        fields.push(Arc::new(Field::new(field.name(), DataType::clone(rows.data_type()), false)));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
