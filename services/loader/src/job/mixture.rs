//! Mixtures: several datasets in one stream, each with a fixed fraction of every batch and its own order.

use std::{collections::HashSet, ops::Range, sync::Arc};

use arrow_schema::Schema;
use forebay_plan::{Cursor, Steps};
use forebay_proto::v1;
use forebay_storage::Reader;
use xxhash_rust::xxh3::xxh3_64;

use super::{Job, MAX_BATCH_SIZE, within};
use crate::{Counts, Error, view::Use};

/// Maximum number of other datasets in a mixture.
const MAX_MIXED: usize = 64;

impl Job {
    /// Resolves `train` against the snapshot of `own`, and its mixture against the snapshots of `others`, one per
    /// dataset.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    pub fn resolve_mixture(
        train: &v1::Train,
        own: (Reader, Option<&Counts>),
        others: Vec<(Reader, Option<&Counts>)>,
    ) -> Result<Self, Error> {
        let shares = shares(train)?;
        if shares.len() != others.len() {
            let reason = format!("{} datasets of {} are at hand", others.len(), shares.len());
            return Err(Error::Internal(reason));
        }
        let own_rows = train.batch_size - shares.iter().sum::<u64>();
        let mut job =
            Self::of_one(train, own, own_rows, if shares.is_empty() { Use::Stream } else { Use::Mixture })?;
        for (index, (other, rows)) in others.into_iter().zip(shares).enumerate() {
            let mixed = &train.mix[index];
            let part = job.part(index, other, rows).map_err(|error| within_mix(mixed, error))?;
            job.train.mix[index].snapshot.clone_from(&part.train.snapshot);
            job.mixed.push(Arc::new(part));
        }
        Ok(job)
    }

    /// Resolves one of the other datasets of the mixture, which contributes `rows` rows to each batch of a rank.
    fn part(&self, index: usize, other: (Reader, Option<&Counts>), rows: u64) -> Result<Self, Error> {
        // The part is derived from the resolved request, so that a ticket resolves to the same job.
        let train = of_mixed(&self.train, index);
        let mut part = Self::of_one(&train, other, rows, Use::Mixture)?;
        if part.epoch_items < part.global_batch() {
            let (found, needed) = (part.epoch_items, part.global_batch());
            return Err(Error::invalid(
                "fraction",
                format!("the dataset holds {found} rows, a step takes {needed}"),
            ));
        }
        if let Some(reason) = difference(part.view.schema(), self.view.schema(), &self.train.dataset) {
            return Err(Error::invalid("columns", reason));
        }
        if let Some((name, found, expected)) = part.view.other_columns(&self.view) {
            let reason = format!(
                "'{name}' is made of {}, of '{}' it is made of {}; name its columns one by one",
                found.join(", "),
                self.train.dataset,
                expected.join(", ")
            );
            return Err(Error::invalid("columns", reason));
        }
        if !part.view.lies_as(&self.view) {
            return Err(Error::Internal("rows of two datasets lie differently".into()));
        }
        (part.run, part.steps_beside) = (self.run, Some(self.steps.count()));
        if let Some(last) = self.run.len().checked_sub(1) {
            // Epochs of this dataset that the job reads. Their windows are checked against the memory.
            let epoch = |batch| part.ranges(self.run.cursor(batch), 0).last().map_or(0, |(epoch, _)| *epoch);
            let (first, last) = (epoch(0), epoch(last));
            (part.train.epoch, part.train.epochs) = (first, Some((last - first.min(last)).saturating_add(1)));
        }
        Ok(part)
    }

    /// Returns the epochs and positions of this dataset from which the rows of a batch of `rank` are taken, in order.
    /// There is one range, possibly empty, unless a dataset of a mixture reaches the end of an epoch. With packs, the
    /// first call of an epoch takes O(groups).
    pub(crate) fn ranges(&self, at: Cursor, rank: u32) -> Vec<(u64, Range<u64>)> {
        let Some(steps) = self.steps_beside else {
            let range = self.steps.rank(at.step, rank);
            let range =
                self.pack(at.epoch).map_or_else(|| range.clone(), |packs| packs.groups(range.clone()));
            return vec![(at.epoch, range)];
        };
        let (mut start, items) = (self.position_beside(steps, at, rank), u128::from(self.epoch_items));
        let mut left = u128::from(self.steps.batch_size());
        let mut ranges = Vec::new();
        while left > 0 {
            let (epoch, first) = (start / items, start % items);
            let taken = left.min(items - first);
            ranges.push((epoch as u64, first as u64..(first + taken) as u64));
            (start, left) = (start + taken, left - taken);
        }
        ranges
    }

    /// Number of rows of a dataset of a mixture before those of a batch, over all of its epochs.
    fn position_beside(&self, steps: u64, at: Cursor, rank: u32) -> u128 {
        let step = u128::from(at.epoch) * u128::from(steps) + u128::from(at.step);
        // The product wraps only beyond 2^64 epochs of both datasets; the order then starts over.
        step.wrapping_mul(u128::from(self.steps.global_batch()))
            .wrapping_add(u128::from(rank) * u128::from(self.steps.batch_size()))
    }

    /// Position of a batch: in the epoch of its own dataset, and over all epochs of each other dataset.
    pub(crate) fn positions(&self, at: Cursor, rank: u32) -> (u64, Vec<u64>) {
        let beside = |mixed: &Arc<Self>| {
            let steps = mixed.steps_beside.unwrap_or(self.steps.count());
            mixed.position_beside(steps, at, rank) as u64
        };
        (self.steps.rank(at.step, rank).start, self.mixed.iter().map(beside).collect())
    }

    /// Other datasets of the mixture.
    pub(crate) fn mixed(&self) -> &[Arc<Self>] {
        &self.mixed
    }

    /// Number of consecutive rows of each dataset, its own first, in the repeating pattern of a batch. The numbers are
    /// the smallest that keep the fractions. Each rank has whole patterns, so the global batch is the same for any
    /// number of ranks.
    pub(crate) fn round(&self) -> Vec<usize> {
        let all = std::iter::once(&self.steps).chain(self.mixed.iter().map(|mixed| &mixed.steps));
        let rows: Vec<u32> = all.map(Steps::batch_size).collect();
        let unit = rows.iter().copied().reduce(greatest_common_divisor).unwrap_or(1).max(1);
        rows.into_iter().map(|rows| (rows / unit) as usize).collect()
    }
}

/// Checks that the mixture of a request is valid, independent of the contents of its datasets.
///
/// # Errors
/// [`Error::Invalid`] with the name of the field.
pub fn check_mixture(train: &v1::Train) -> Result<(), Error> {
    shares(train).map(|_| ())
}

/// Number of rows that each other dataset of the mixture contributes to a batch of a rank.
fn shares(train: &v1::Train) -> Result<Vec<u64>, Error> {
    within("batch_size", train.batch_size, 1, MAX_BATCH_SIZE)?;
    if train.mix.is_empty() {
        return Ok(Vec::new());
    }
    if train.mix.len() > MAX_MIXED {
        let reason = format!("holds {} datasets, expected at most {MAX_MIXED}", train.mix.len());
        return Err(Error::invalid("mix", reason));
    }
    if !train.group_by.is_empty() {
        return Err(Error::invalid("mix", "does not go with group_by"));
    }
    if matches!(train.remainder(), v1::Remainder::Short | v1::Remainder::Pad) {
        let reason =
            "a mixture keeps its shares in every batch: its last, incomplete step is left out (DROP)";
        return Err(Error::invalid("remainder", reason));
    }
    let (mut shares, mut seen) = (Vec::with_capacity(train.mix.len()), HashSet::new());
    for mixed in &train.mix {
        let exact = mixed.fraction * train.batch_size as f64;
        let rows = exact.round();
        if !(rows >= 1.0 && rows < train.batch_size as f64 && (exact - rows).abs() < 1e-6) {
            let size = train.batch_size;
            let reason = format!(
                "is {}, which is {exact} of {size} rows; expected a fraction that makes 1 to {} whole rows",
                mixed.fraction,
                size - 1
            );
            return Err(Error::invalid(format!("{}.fraction", mix_field(mixed)), reason));
        }
        if !seen.insert((&mixed.dataset, &mixed.snapshot, &mixed.filter)) {
            return Err(Error::invalid(
                mix_field(mixed),
                "is there twice with the same filter; add up the shares",
            ));
        }
        shares.push(rows as u64);
    }
    let sum: u64 = shares.iter().sum();
    if sum >= train.batch_size {
        let reason =
            format!("takes {sum} of {} rows, none is left for '{}'", train.batch_size, train.dataset);
        return Err(Error::invalid("mix", reason));
    }
    Ok(shares)
}

fn mix_field(mixed: &v1::Mixed) -> String {
    format!("mix.{}", mixed.dataset)
}

/// Returns the request for one of the other datasets of `train` alone: its filtered rows, with a seed derived from
/// `train.seed`.
pub(crate) fn of_mixed(train: &v1::Train, index: usize) -> v1::Train {
    let v1::Mixed { dataset, snapshot, filter, .. } = train.mix[index].clone();
    let seed = xxh3_64(format!("mix {index} of {}", train.seed).as_bytes());
    v1::Train {
        dataset,
        snapshot,
        filter,
        seed,
        select: train.select.clone(),
        columns: train.columns.clone(),
        tensors: train.tensors.clone(),
        dedupe: train.dedupe.clone(),
        shuffle: train.shuffle,
        batch_size: train.batch_size,
        world_size: train.world_size,
        lanes: train.lanes,
        plan_version: train.plan_version,
        remainder: v1::Remainder::Drop.into(),
        ..v1::Train::default()
    }
}

/// Adds the dataset of the mixture to the field name of an error.
pub(crate) fn within_mix(mixed: &v1::Mixed, error: Error) -> Error {
    match error {
        Error::Invalid { field, reason } => Error::invalid(format!("{}: {field}", mix_field(mixed)), reason),
        other => other,
    }
}

/// Describes the first difference of two schemas, or returns `None` if they are equal.
fn difference(found: &Schema, expected: &Schema, of: &str) -> Option<String> {
    let mut pairs = found.fields().iter().zip(expected.fields());
    if let Some((found, expected)) = pairs.find(|(found, expected)| found != expected) {
        return Some(format!(
            "delivers '{}' of type {} where '{of}' delivers '{}' of type {}; name columns and types that both have",
            found.name(),
            found.data_type(),
            expected.name(),
            expected.data_type()
        ));
    }
    let (found, expected) = (found.fields().len(), expected.fields().len());
    (found != expected)
        .then(|| format!("delivers {found} columns, '{of}' {expected}; name columns that both have"))
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
