//! Mixtures: several datasets in one stream, each with a fixed fraction of every batch and its own order.

use std::collections::HashSet;

use arrow_schema::Schema;
use forebay_proto::v1;
use forebay_storage::Reader;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    job::{Job, Resolved},
    validate::{MAX_BATCH_SIZE, within},
};
use crate::{
    Counts, Error,
    view::{ViewUse, expressions::Expressions},
};

/// Maximum number of other datasets in a mixture.
const MAX_MIXED: usize = 64;

impl Job {
    /// Resolves `train` against the snapshot of `reader`. `counts` are required if the request has a filter or groups.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field, its value and what was expected.
    pub fn resolve(train: &v1::Train, reader: Reader, counts: Option<&Counts>) -> Result<Self, Error> {
        Self::resolve_mixture(train, (reader, counts), Vec::new())
    }

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
        let compiled = Expressions::default();
        let of = |(reader, counts)| Resolved { reader, counts, compiled: &compiled };
        Self::resolve_all(train, of(own), others.into_iter().map(of).collect())
    }

    /// Resolves `train` as [`resolve_mixture`](Self::resolve_mixture), with expressions that were compiled before.
    pub(crate) fn resolve_all(
        train: &v1::Train,
        own: Resolved<'_>,
        others: Vec<Resolved<'_>>,
    ) -> Result<Self, Error> {
        let shares = shares(train)?;
        if shares.len() != others.len() {
            let reason = format!("{} readers for {} datasets of a mixture", others.len(), shares.len());
            return Err(Error::Internal(reason));
        }
        check_snapshots(train, &others)?;
        let own_rows = train.batch_size - shares.iter().sum::<u64>();
        let used = if shares.is_empty() { ViewUse::Stream } else { ViewUse::Mixture };
        let mut job = Self::resolve_dataset(train, own, own_rows, used)?;
        for (index, (other, rows)) in others.into_iter().zip(shares).enumerate() {
            let other = job.resolve_other(index, other, rows);
            job.add_mixed(index, other.map_err(|error| within_mix(&train.mix[index], error))?);
        }
        Ok(job)
    }

    /// Resolves one of the other datasets of the mixture, which contributes `rows` rows to each batch of a rank.
    fn resolve_other(&self, index: usize, other: Resolved<'_>, rows: u64) -> Result<Self, Error> {
        // The request is derived from the resolved one, so that a ticket resolves to the same job.
        let train = mixed_request(self.train(), index);
        let mut other = Self::resolve_dataset(&train, other, rows, ViewUse::Mixture)?;
        if other.rows.epoch_items < other.global_batch() {
            let (found, needed) = (other.rows.epoch_items, other.global_batch());
            let reason = format!("the dataset has {found} rows, a step takes {needed}");
            return Err(Error::invalid("fraction", reason));
        }
        let dataset = &self.train().dataset;
        if let Some(reason) = difference(other.view().schema(), self.view().schema(), dataset) {
            return Err(Error::invalid("columns", reason));
        }
        if let Some((name, found, expected)) = other.view().different_columns(self.view()) {
            let (found, expected) = (found.join(", "), expected.join(", "));
            let reason = format!(
                "'{name}' consists of {found}, in '{dataset}' of {expected}; name its columns one by one"
            );
            return Err(Error::invalid("columns", reason));
        }
        if !other.view().has_layout_of(self.view()) {
            return Err(Error::Internal("rows of two datasets have different layouts".into()));
        }
        other.join_mixture(self);
        Ok(other)
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
        return Err(Error::invalid("mix", "cannot be combined with group_by"));
    }
    if matches!(train.remainder(), v1::Remainder::Short | v1::Remainder::Pad) {
        let reason = "a mixture has the same fractions in every batch, so its last, incomplete step is always dropped (DROP)";
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
            return Err(occurs_twice(mixed));
        }
        shares.push(rows as u64);
    }
    let sum: u64 = shares.iter().sum();
    if sum >= train.batch_size {
        let reason =
            format!("takes {sum} of {} rows, which leaves none for '{}'", train.batch_size, train.dataset);
        return Err(Error::invalid("mix", reason));
    }
    Ok(shares)
}

/// Checks that no two datasets of the mixture are the same rows of one snapshot. [`shares`] cannot tell if one of them
/// names its snapshot and the other one reads the current snapshot.
fn check_snapshots(train: &v1::Train, others: &[Resolved<'_>]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for (mixed, other) in train.mix.iter().zip(others) {
        if !seen.insert((&mixed.dataset, other.reader.snapshot().id(), &mixed.filter)) {
            return Err(occurs_twice(mixed));
        }
    }
    Ok(())
}

fn occurs_twice(mixed: &v1::Mixed) -> Error {
    Error::invalid(mix_field(mixed), "occurs twice with the same filter; add up the fractions")
}

fn mix_field(mixed: &v1::Mixed) -> String {
    format!("mix.{}", mixed.dataset)
}

/// Returns the request for one of the other datasets of `train` alone: its filtered rows, with a seed derived from
/// `train.seed`.
pub(crate) fn mixed_request(train: &v1::Train, index: usize) -> v1::Train {
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
        values: train.values.clone(),
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

/// Interleaves the rows of a mixture: each round takes the number of rows in `round` from each part.
pub(crate) fn interleaved<T: Copy>(mut parts: Vec<Vec<T>>, round: &[usize]) -> Vec<T> {
    if parts.len() == 1 {
        return parts.pop().unwrap_or_default();
    }
    let mut rows = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    let mut rounds: Vec<_> =
        parts.iter().zip(round).map(|(part, rows)| part.chunks((*rows).max(1))).collect();
    loop {
        let before = rows.len();
        rounds.iter_mut().filter_map(Iterator::next).for_each(|chunk| rows.extend_from_slice(chunk));
        if rows.len() == before {
            return rows;
        }
    }
}
