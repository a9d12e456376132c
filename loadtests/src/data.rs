//! The data of a scenario: generated once from its parameters, then kept.
//!
//! Every value is a function of its column and its row ([`random`]), so the files are the same on every
//! machine, for any number of threads that write them.

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

use crate::{logical::Sizes, scenario::Scenario};

/// Goes up when a generator's values change, so that older files are not taken for new ones.
const VERSION: u32 = 1;

/// A generator and its sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Data {
    /// Four-byte columns of random numbers.
    Columns(columns::Columns),
    /// A click log.
    Clicks(clicks::Clicks),
    /// Columns of lists of 64-bit integers.
    Lists(lists::Lists),
    /// Binary rows of a picture's size.
    Images(images::Images),
    /// TPC-H's lineitem.
    Lineitem(Lineitem),
    /// The demo's log of rankings.
    Ranking(Ranking),
    /// npm vega-datasets' flights-3m.parquet.
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

/// How a generated table is cut into files.
#[derive(Debug, Clone, Copy)]
struct Layout {
    rows: u64,
    files: u64,
    row_group_rows: u64,
}

/// The data of a scenario, on disk.
pub(crate) struct Prepared {
    /// A Parquet file, or a folder of them.
    pub(crate) path: PathBuf,
    /// Rows, and bytes a column.
    pub(crate) sizes: Sizes,
}

/// The data of `scenario` under `folder`, made if they are not there.
pub(crate) fn prepare(scenario: &Scenario, folder: &Path) -> anyhow::Result<Prepared> {
    std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    let identity = serde_json::to_vec(&(VERSION, &scenario.data))?;
    let place = folder.join(format!("{}-{:016x}", scenario.name, xxh3_64(&identity)));
    let path = match &scenario.data {
        Data::Columns(columns) => writer::at(&place, &columns.table())?,
        Data::Clicks(clicks) => writer::at(&place, &clicks.table())?,
        Data::Lists(lists) => writer::at(&place, &lists.table())?,
        Data::Images(images) => writer::at(&place, &images.table())?,
        Data::Lineitem(Lineitem { scale }) => forebay::demo::lineitem::at(&place, *scale)?,
        Data::Ranking(Ranking { queries }) => forebay::demo::ranking::at(&place, *queries)?,
        Data::Flights(_) => flights::at(&place)?,
    };
    let sizes = Sizes::kept(&place.with_extension("json"), &path)?;
    Ok(Prepared { path, sizes })
}
