//! The table `lineitem` of TPC-H, generated once and kept.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};
use tpchgen::generators::LineItemGenerator;
use tpchgen_arrow::LineItemArrow;

use crate::{file, once};

/// Approximate number of rows at scale 1, for the progress bar and the number of files.
const ROWS_PER_SCALE: f64 = 6_001_215.0;
const ROWS_PER_FILE: f64 = 750_000.0;

/// Returns the folder of the data inside `folder`, and generates the data if the folder does not exist.
///
/// # Errors
/// If the scale is out of range, or a failure of the disk.
pub fn at(folder: &Path, scale: f64) -> anyhow::Result<PathBuf> {
    ensure!((0.001..=1000.0).contains(&scale), "--scale {scale}: expected 0.001 to 1000");
    once::generated(&folder.join(format!("lineitem-{scale}")), |folder| generate(folder, scale))
}

fn generate(folder: &Path, scale: f64) -> anyhow::Result<()> {
    let rows = scale * ROWS_PER_SCALE;
    let files = (rows / ROWS_PER_FILE).round().max(1.0) as i32;
    let style =
        ProgressStyle::with_template("generating lineitem {bar:40} {human_pos}/{human_len} rows {eta}")?;
    let bar = ProgressBar::new(rows as u64).with_style(style);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(files as usize);
    let next = AtomicU64::new(1);
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed) as i32;
                if part > files {
                    return Ok(());
                }
                write_part(&folder.join(format!("part-{part:04}.parquet")), scale, part, files, &bar)?;
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("the generator panicked"))??;
        }
        anyhow::Ok(())
    })?;
    bar.finish_and_clear();
    Ok(())
}

fn write_part(path: &Path, scale: f64, part: i32, parts: i32, bar: &ProgressBar) -> anyhow::Result<()> {
    let batches = LineItemArrow::new(LineItemGenerator::new(scale, part, parts)).with_batch_size(8192);
    let mut writer = file::create(path, LineItemArrow::schema_ref())?;
    for batch in batches {
        let batch = batch?;
        writer.write(&batch)?;
        bar.inc(batch.num_rows() as u64);
    }
    writer.close()?;
    Ok(())
}
