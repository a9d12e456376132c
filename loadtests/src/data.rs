//! The data of a scenario, generated once from its parameters.
//!
//! Every value is a function of its column and row ([`random`]). The files are therefore equal on every machine, for any
//! number of writing threads.

mod clicks;
mod columns;
mod flights;
mod images;
mod lists;
mod random;
mod writer;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::logical::Sizes;

/// Version of the generators. A new version replaces existing files.
const VERSION: u32 = 1;

/// A generator and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Data {
    /// Four-byte columns of random numbers.
    Columns(columns::Columns),
    /// A click log.
    Clicks(clicks::Clicks),
    /// Columns of lists of 64-bit integers.
    Lists(lists::Lists),
    /// Binary rows of the size of images.
    Images(images::Images),
    /// The table lineitem of TPC-H.
    Lineitem(Lineitem),
    /// A log of rankings.
    Ranking(Ranking),
    /// flights-3m.parquet of the npm package vega-datasets.
    Flights(flights::Flights),
}

/// Size of a generated lineitem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lineitem {
    /// TPC-H scale factor: 1 is 6,001,215 rows.
    scale: f64,
}

/// Size of a generated log of rankings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ranking {
    /// Queries, of 20 rows each.
    queries: u64,
}

/// The data of a scenario, on disk.
pub(crate) struct Dataset {
    /// A Parquet file, or a folder of them.
    pub(crate) path: PathBuf,
    /// Rows, and bytes per column.
    pub(crate) sizes: Sizes,
}

/// Generates the data of a scenario below `folder`, unless they exist.
pub(crate) fn prepare(name: &str, data: &Data, folder: &Path) -> anyhow::Result<Dataset> {
    std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    let identity = serde_json::to_vec(&(VERSION, data))?;
    let place = folder.join(format!("{name}-{:016x}", xxh3_64(&identity)));
    let path = match data {
        Data::Columns(columns) => writer::at(&place, &columns.table())?,
        Data::Clicks(clicks) => writer::at(&place, &clicks.table())?,
        Data::Lists(lists) => writer::at(&place, &lists.table())?,
        Data::Images(images) => writer::at(&place, &images.table())?,
        Data::Lineitem(Lineitem { scale }) => forebay_sample_data::lineitem::at(&place, *scale)?,
        Data::Ranking(Ranking { queries }) => forebay_sample_data::ranking::at(&place, *queries)?,
        Data::Flights(_) => flights::at(&place)?,
    };
    let sizes = Sizes::load(&place.with_extension("json"), &path)?;
    Ok(Dataset { path, sizes })
}
