//! Validation of the fields of a request that do not depend on its rows.

use forebay_plan::{PLAN_VERSION, Remainder, Shuffle, default_window_rows};
use forebay_proto::v1;
use forebay_storage::Snapshot;

use super::{rows::JobRows, semantics};
use crate::{Error, find_column};

/// Maximum `batch_size`, in rows.
pub(crate) const MAX_BATCH_SIZE: u64 = 1 << 20;
/// Maximum `world_size`.
const MAX_WORLD_SIZE: u64 = 1 << 16;
/// Maximum number of `lanes` per rank.
const MAX_LANES: u64 = 256;
/// Maximum number of partitions of the order.
const MAX_PARTITIONS: u64 = 4096;
/// Maximum number of partitions that a rank reads. Limits the windows that a stream holds, and the entries of the cache's forecast.
const MAX_PARTITIONS_PER_RANK: u64 = 256;
/// Minimum number of blocks with rows per partition.
const BLOCKS_PER_PARTITION: u64 = 2;
/// Mean number of blocks in a window of a partition, at least, if the request has no `window_rows`.
const DEFAULT_WINDOW_BLOCKS: u64 = 8;
/// Maximum length of a job name, in bytes. Every ticket carries the name.
const MAX_JOB_NAME_BYTES: usize = 256;

/// Validated numbers of a request, with defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dimensions {
    pub(crate) world_size: u64,
    pub(crate) lanes: u64,
    pub(crate) epochs: u64,
    pub(crate) plan_version: u64,
    /// Version of the semantics of expressions; `None` without expressions.
    pub(crate) semantics: Option<u64>,
}

impl Dimensions {
    /// Validates the numbers of `train`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field, its value and what was expected.
    pub(crate) fn of(train: &v1::Train) -> Result<Self, Error> {
        within("batch_size", train.batch_size, 1, MAX_BATCH_SIZE)?;
        let world_size = within("world_size", train.world_size.unwrap_or(1), 1, MAX_WORLD_SIZE)?;
        let lanes = within("lanes", train.lanes.unwrap_or(1), 1, MAX_LANES)?;
        if let Some(rank) = train.rank {
            within("rank", rank, 0, world_size - 1)?;
        }
        if let Some(lane) = train.lane {
            within("lane", lane, 0, lanes - 1)?;
        }
        let epochs = within("epochs", train.epochs.unwrap_or(1), 1, u64::MAX)?;
        if train.epoch.checked_add(epochs - 1).is_none() {
            let reason = format!("is {}, and {epochs} epochs from there exceed the last epoch", train.epoch);
            return Err(Error::invalid("epoch", reason));
        }
        let plan_version = if train.plan_version == 0 { u64::from(PLAN_VERSION) } else { train.plan_version };
        if plan_version != u64::from(PLAN_VERSION) {
            let reason = format!("is {plan_version}, this server supports version {PLAN_VERSION}");
            return Err(Error::invalid("plan_version", reason));
        }
        if train.job_name.len() > MAX_JOB_NAME_BYTES {
            let reason = format!("has {} bytes, expected at most {MAX_JOB_NAME_BYTES}", train.job_name.len());
            return Err(Error::invalid("job_name", reason));
        }
        let semantics = semantics::of(train)?;
        Ok(Self { world_size, lanes, epochs, plan_version, semantics })
    }
}

/// Returns `value` if it is from `min` to `max`.
///
/// # Errors
/// [`Error::Invalid`] with `field` otherwise.
pub(crate) fn within(field: &str, value: u64, min: u64, max: u64) -> Result<u64, Error> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("is {value}, expected {min} to {max}")))
}

/// Returns the label column, if `train` names one.
pub(crate) fn label_column(snapshot: &Snapshot, train: &v1::Train) -> Result<Option<usize>, Error> {
    let label = train.label_column.as_str();
    if label.is_empty() {
        return Ok(None);
    }
    let schema = snapshot.schema();
    if schema.index_of(label).is_err()
        && let Some(tensor) = train.tensors.iter().find(|tensor| tensor.name == label)
    {
        let columns = tensor.columns.join("', '");
        let reason = format!("'{label}' is a tensor, expected a column of the dataset, such as '{columns}'");
        return Err(Error::invalid("label_column", reason));
    }
    let column = find_column("label_column", label, schema)?;
    let field = schema.field(column);
    if field.data_type().is_numeric() || field.data_type() == &arrow_schema::DataType::Boolean {
        return Ok(Some(column));
    }
    let reason = format!("column '{label}' is of type {}, expected a number", field.data_type());
    Err(Error::invalid("label_column", reason))
}

/// Resolves the number of partitions of a request over blocks with these numbers of rows or groups. A global batch takes
/// `global_batch` of them from the dataset.
///
/// # Errors
/// [`Error::Invalid`] with the field, its value and what was expected.
pub(crate) fn resolve_partitions(
    train: &v1::Train,
    global_batch: u64,
    items_per_block: &[u32],
) -> Result<u32, Error> {
    const FIELD: &str = "shuffle.partitions";
    let shuffle = train.shuffle.unwrap_or_default();
    let partitions = within(FIELD, shuffle.partitions.unwrap_or(1), 1, MAX_PARTITIONS)?;
    if partitions == 1 {
        return Ok(1);
    }
    if shuffle.none.is_some() {
        return Err(Error::invalid(FIELD, "cannot be combined with shuffle.none"));
    }
    if train.max_pack_rows > 0 {
        return Err(Error::invalid(FIELD, "cannot be combined with max_pack_rows"));
    }
    let unit = if train.group_by.is_empty() { "rows" } else { "groups" };
    if !global_batch.is_multiple_of(partitions) {
        let reason = format!(
            "is {partitions}, which does not divide the {global_batch} {unit} that a global batch takes from '{}'",
            train.dataset
        );
        return Err(Error::invalid(FIELD, reason));
    }
    let ranks = train.world_size.unwrap_or(1).max(1);
    if partitions.div_ceil(ranks) > MAX_PARTITIONS_PER_RANK {
        let reason = format!(
            "is {partitions}; expected at most {} for {ranks} ranks, because a rank reads at most \
             {MAX_PARTITIONS_PER_RANK} partitions",
            ranks * MAX_PARTITIONS_PER_RANK
        );
        return Err(Error::invalid(FIELD, reason));
    }
    let blocks = blocks_with_items(items_per_block);
    if blocks < partitions * BLOCKS_PER_PARTITION {
        let most = (blocks / BLOCKS_PER_PARTITION).max(1);
        let reason = format!(
            "is {partitions}, and '{}' has {blocks} blocks with {unit}; expected at most {most}, so that each partition \
             has at least {BLOCKS_PER_PARTITION} blocks",
            train.dataset
        );
        return Err(Error::invalid(FIELD, reason));
    }
    Ok(partitions as u32)
}

/// Minimum number of rows of a default window: as many as [`DEFAULT_WINDOW_BLOCKS`] blocks of mean size for each partition.
fn min_default_window_rows(partitions: u32, rows: u64, blocks: u64) -> u64 {
    (u64::from(partitions) * DEFAULT_WINDOW_BLOCKS).saturating_mul(rows.div_ceil(blocks.max(1)))
}

fn blocks_with_items(items_per_block: &[u32]) -> u64 {
    items_per_block.iter().filter(|items| **items > 0).count() as u64
}

/// Resolves the shuffle of a request over `rows` of `snapshot`. The default window depends on `global_batch`, the
/// number of rows per step of all ranks, and with several partitions on the blocks.
pub(crate) fn resolve_shuffle(
    shuffle: Option<&v1::Shuffle>,
    global_batch: u64,
    partitions: u32,
    rows: &JobRows,
    snapshot: &Snapshot,
) -> Result<Shuffle, Error> {
    let kept = rows.epoch_rows;
    let shuffle = shuffle.copied().unwrap_or_default();
    match (shuffle.window_rows, shuffle.global, shuffle.none) {
        (Some(0), None, None) => Err(Error::invalid("shuffle.window_rows", "is 0, expected at least 1")),
        (Some(rows), None, None) => Ok(Shuffle::Window { rows, keep_block_order: shuffle.keep_block_order }),
        (None, Some(_), None) if !shuffle.keep_block_order => Ok(Shuffle::Global),
        (None, None, Some(_)) if !shuffle.keep_block_order => Ok(Shuffle::None),
        (None, None, None) => {
            let bytes = u128::from(snapshot.uncompressed_bytes()) * u128::from(kept);
            let bytes = bytes / u128::from(snapshot.rows().max(1));
            let mut window_rows = default_window_rows(global_batch, kept, bytes as u64);
            if partitions > 1 {
                let blocks = blocks_with_items(&rows.items);
                window_rows = window_rows.max(min_default_window_rows(partitions, kept, blocks));
            }
            Ok(Shuffle::Window { rows: window_rows, keep_block_order: shuffle.keep_block_order })
        }
        _ => Err(Error::invalid(
            "shuffle",
            "expected one of window_rows, global and none; keep_block_order requires window_rows",
        )),
    }
}

/// Converts a resolved shuffle to a message. A single partition is absent, so that its tickets do not depend on whether the
/// request named it.
pub(crate) fn shuffle_message(shuffle: Shuffle, partitions: u32) -> v1::Shuffle {
    let message =
        v1::Shuffle { partitions: (partitions > 1).then_some(partitions.into()), ..v1::Shuffle::default() };
    match shuffle {
        Shuffle::Window { rows, keep_block_order } => {
            v1::Shuffle { window_rows: Some(rows), keep_block_order, ..message }
        }
        Shuffle::Global => v1::Shuffle { global: Some(v1::shuffle::Global {}), ..message },
        Shuffle::None => v1::Shuffle { none: Some(v1::shuffle::None {}), ..message },
    }
}

/// Resolves the remainder of a request. Mixtures and several ranks drop an incomplete step by default.
pub(crate) fn resolve_remainder(
    train: &v1::Train,
    world_size: u64,
    is_mixture: bool,
) -> Result<Remainder, Error> {
    match v1::Remainder::try_from(train.remainder) {
        Ok(v1::Remainder::Short) => Ok(Remainder::Short),
        Ok(v1::Remainder::Drop) => Ok(Remainder::Drop),
        Ok(v1::Remainder::Pad) => Ok(Remainder::Pad),
        Ok(v1::Remainder::Auto) if world_size == 1 && !is_mixture => Ok(Remainder::Short),
        Ok(v1::Remainder::Auto) => Ok(Remainder::Drop),
        Err(_) => Err(Error::invalid("remainder", format!("{} is not known", train.remainder))),
    }
}

/// Converts a resolved remainder to its number in a message.
pub(crate) fn remainder_message(remainder: Remainder) -> i32 {
    match remainder {
        Remainder::Short => v1::Remainder::Short.into(),
        Remainder::Drop => v1::Remainder::Drop.into(),
        Remainder::Pad => v1::Remainder::Pad.into(),
    }
}

/// Converts an error of the plan to an error of the request.
#[allow(clippy::needless_pass_by_value, reason = "passed to map_err")]
pub(crate) fn plan_error(error: forebay_plan::Error) -> Error {
    match error {
        forebay_plan::Error::Zero { field } => Error::invalid(field, "is 0, expected at least 1"),
        forebay_plan::Error::StartStepPastEnd { start_step, steps } => {
            let reason = format!(
                "is {start_step}, beyond an epoch of {steps} steps; the next epoch starts at step {steps}"
            );
            Error::invalid("start_step", reason)
        }
    }
}

#[cfg(test)]
mod tests;
