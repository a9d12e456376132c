//! Explanations as text for a terminal.

use std::fmt::Write as _;

use chrono::DateTime;
use forebay_explain::{Label, RowRange, Summary};
use serde_json::Value;

/// Number of rows that are listed per row group.
const SHOWN_ROWS: usize = 12;

/// Formats jobs, one per line.
pub(super) fn jobs(jobs: &Value) -> String {
    let jobs = jobs["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let time = |value: &Value| {
        let seconds = value.as_f64().unwrap_or(0.0) as i64;
        DateTime::from_timestamp(seconds, 0).map_or_else(String::new, |at| at.format("%F %T UTC").to_string())
    };
    let row = |job: &Value| {
        let ranks = format!("{} x {}", cell(&job["world_size"]), cell(&job["batch_size"]));
        [cell(&job["job_name"]), cell(&job["id"]), cell(&job["dataset"]), ranks, time(&job["last_seen"])]
    };
    let head = ["job", "id", "dataset", "ranks x rows", "last seen"].map(str::to_owned);
    table(&std::iter::once(head).chain(jobs.iter().map(row)).collect::<Vec<_>>())
}

pub(super) fn summary(summary: &Summary) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = describe(&mut text, summary);
    text
}

fn describe(text: &mut String, summary: &Summary) -> std::fmt::Result {
    let name = if summary.job_name.is_empty() { "(without a name)" } else { &summary.job_name };
    writeln!(text, "job       {name}, {}", summary.id)?;
    if !summary.others.is_empty() {
        let others = summary.others.join(", ");
        writeln!(text, "          the most recently streamed job with this name; earlier: {others}")?;
    }
    writeln!(text, "dataset   {}, snapshot {}", summary.dataset, summary.snapshot)?;
    writeln!(
        text,
        "batch     epoch {}, step {} of {}, rank {} of {}: {} rows, starting at {} {}",
        summary.epoch,
        summary.step,
        summary.steps,
        summary.rank,
        summary.world_size,
        summary.rows,
        match (summary.max_pack_rows, summary.groups) {
            (0, None) => "position",
            (0, Some(_)) => "group",
            _ => "pack",
        },
        summary.position
    )?;
    if !summary.filter.is_empty() {
        writeln!(text, "filter    {}", summary.filter)?;
    }
    if let (Some(partitions), Some(blocks)) = (summary.partitions, summary.rank_blocks) {
        writeln!(
            text,
            "order     {partitions} partitions; a batch of a rank mixes the rows of about {blocks:.1} blocks, the same in every epoch"
        )?;
    }
    if let Some(groups) = summary.groups {
        writeln!(text, "          {groups} groups")?;
    }
    if summary.padding > 0 {
        writeln!(text, "          {} rows of padding after them", summary.padding)?;
    }
    if let Some(hash) = &summary.content_hash {
        writeln!(text, "body      {} bytes, XXH3-64 {hash}", summary.body_bytes)?;
    }
    if let Some(Label { column, nulls, min, max, mean }) = &summary.label {
        writeln!(
            text,
            "label     {column}: mean {}, {} to {}, {nulls} nulls",
            spelled(mean),
            spelled(min),
            spelled(max)
        )?;
    }
    writeln!(text)?;
    text.push_str(&table(&columns(summary)));
    writeln!(text)?;
    text.push_str(&table(&row_ranges(&summary.row_ranges)));
    if summary.row_range_count > summary.row_ranges.len() {
        writeln!(text, "... and {} more row groups", summary.row_range_count - summary.row_ranges.len())?;
    }
    Ok(())
}

fn columns(summary: &Summary) -> Vec<[String; 7]> {
    let head = ["column", "type", "nulls", "NaNs", "min", "max", "mean"].map(str::to_owned);
    let rows = summary.columns.iter().map(|column| {
        [
            column.name.clone(),
            column.data_type.clone(),
            column.nulls.to_string(),
            column.nans.map_or_else(String::new, |nans| nans.to_string()),
            spelled(&column.min),
            spelled(&column.max),
            spelled(&column.mean),
        ]
    });
    std::iter::once(head).chain(rows).collect()
}

fn row_ranges(ranges: &[RowRange]) -> Vec<[String; 5]> {
    let head = ["dataset", "file", "row group", "rows", "row indices"].map(str::to_owned);
    let rows = ranges.iter().map(|range| {
        let mut numbers: Vec<String> = range.rows.iter().take(SHOWN_ROWS).map(ToString::to_string).collect();
        if range.row_count > numbers.len() {
            numbers.push("...".to_owned());
        }
        [
            range.dataset.clone(),
            range.file.clone(),
            range.row_group.to_string(),
            range.row_count.to_string(),
            numbers.join(" "),
        ]
    });
    std::iter::once(head).chain(rows).collect()
}

fn spelled(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let value = number.as_f64().unwrap_or(0.0);
            if value != 0.0 && !(1e-4..1e9).contains(&value.abs()) {
                format!("{value:.4e}")
            } else {
                let text = format!("{value:.6}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
        }
        other => other.to_string(),
    }
}

/// Formats a table with aligned columns.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
