//! The batches of a job, as arithmetic: no I/O, no clock.

use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::v1::{BatchMetadata, PlanSummary, Remainder, Train};

use crate::Error;

/// The resolved plan of a job. It fixes data and order, so that every server of a cluster delivers the same batches.
///
/// # Examples
/// A server resolves a plan; see [`Client::plan`](crate::Client::plan). The positions of its batches are arithmetic. A job of
/// three epochs of 100 steps starts at step 20:
///
/// ```
/// use std::sync::Arc;
///
/// use arrow_schema::Schema;
/// use forebay_client::{
///     Cursor, Plan,
///     proto::v1::{PlanSummary, Train},
/// };
///
/// let plan = Plan {
///     schema: Arc::new(Schema::empty()),
///     summary: PlanSummary { steps: 100, ..PlanSummary::default() },
///     total_records: -1,
///     tickets: Vec::new(),
///     locations: Vec::new(),
///     resolved: Train { epochs: Some(3), start_step: 20, ..Train::default() },
/// };
/// assert_eq!(plan.batches(), 280);
///
/// // After 150 batches, a checkpoint has this position.
/// let Cursor { epoch, step } = plan.cursor(150);
/// assert_eq!((epoch, step), (1, 70));
///
/// // The request for the other batches; see [`Training`](crate::Training) for a whole checkpoint.
/// let resumed = Train { epoch, epochs: Some(2), start_step: step, ..plan.resolved.clone() };
/// assert_eq!(Plan { resolved: resumed, ..plan }.batches(), 130);
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    /// Schema of every batch.
    pub schema: SchemaRef,
    /// Snapshot, plan hash, number of steps and windows.
    pub summary: PlanSummary,
    /// Number of rows of all tickets; -1 if unknown, as with groups.
    pub total_records: i64,
    /// Tickets of all ranks and lanes, in rank-major order.
    pub tickets: Vec<Bytes>,
    /// Locations of each ticket: URIs of the servers that should serve it, the preferred one first. Empty for servers without the setting
    /// `members`.
    /// Every server serves every ticket.
    pub locations: Vec<Vec<String>>,
    /// Request with all defaults resolved and the snapshot pinned. Rank and lane are those of the original request.
    pub resolved: Train,
}

/// A position in a job. All batches before it have been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Epoch of the next batch, from 0.
    pub epoch: u64,
    /// Step of the next batch in its epoch, from 0.
    pub step: u64,
}

impl Plan {
    /// Returns the number of batches per rank.
    pub fn batches(&self) -> u64 {
        let epochs = self.resolved.epochs.unwrap_or(1);
        let all = epochs.saturating_mul(self.summary.steps).saturating_sub(self.resolved.start_step);
        match self.resolved.steps {
            0 => all,
            limit => all.min(limit),
        }
    }

    /// Returns the position of batch number `batch` of a rank, counted from 0 at the start of the request.
    pub fn cursor(&self, batch: u64) -> Cursor {
        let steps = self.summary.steps.max(1);
        let step = self.resolved.start_step.saturating_add(batch);
        Cursor { epoch: self.resolved.epoch.saturating_add(step / steps), step: step % steps }
    }

    /// Returns the request for one lane from batch number `batch` on: that batch, and then every `lanes`-th one.
    pub(crate) fn remaining_request(&self, batch: u64) -> Train {
        let cursor = self.cursor(batch);
        let train = &self.resolved;
        let passed = cursor.epoch - train.epoch;
        Train {
            epoch: cursor.epoch,
            epochs: Some(train.epochs.unwrap_or(1).saturating_sub(passed)),
            start_step: cursor.step,
            steps: if train.steps == 0 { 0 } else { self.batches() - batch },
            rank: Some(self.rank()),
            lane: Some(0),
            ..train.clone()
        }
    }

    /// Returns the rank that receives the batches.
    pub fn rank(&self) -> u64 {
        self.resolved.rank.unwrap_or(0)
    }

    /// Returns the locations of the rank. Its lanes have the same ones.
    pub(crate) fn own_locations(&self) -> &[String] {
        let of_all_ranks = self.summary.world_size.max(1).saturating_mul(self.streams());
        let has_all_ranks = self.locations.len() as u64 == of_all_ranks;
        let first = if has_all_ranks { self.rank().saturating_mul(self.streams()) } else { 0 };
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        self.locations.get(first).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of parallel streams of the rank.
    pub fn lanes(&self) -> u64 {
        self.resolved.lanes.unwrap_or(1).max(1)
    }

    /// Returns the number of streams that a client receives: one if the request names a lane, otherwise one per lane.
    pub fn streams(&self) -> u64 {
        if self.resolved.lane.is_some() { 1 } else { self.lanes() }
    }

    /// Returns the first lane that a client receives, which has the first batch.
    pub(crate) fn first_lane(&self) -> u64 {
        self.resolved.lane.unwrap_or(0)
    }

    /// Returns the expected metadata of batch number `batch`, without its hash. `rows` is the number of items: of packs if the
    /// job has packs, of groups if it has groups, otherwise of rows.
    pub(crate) fn expected(&self, batch: u64) -> BatchMetadata {
        let Cursor { epoch, step } = self.cursor(batch);
        let (rank, ranks) = (self.rank(), self.summary.world_size.max(1));
        let mixed = self.summary.mixed_rows;
        let global_batch = self.summary.batch_size.saturating_sub(mixed).saturating_mul(ranks);
        let start = step.saturating_mul(global_batch);
        let items = self.summary.packs.or(self.summary.groups).unwrap_or(self.summary.rows);
        let items = items.saturating_sub(start).min(global_batch);
        // The last step may have fewer items. They are divided among the ranks.
        let share = |rank: u64| (u128::from(rank) * u128::from(items) / u128::from(ranks)) as u64;
        let (from, to) = (share(rank), share(rank + 1));
        BatchMetadata {
            epoch,
            step,
            rank,
            rows: (to - from).saturating_add(mixed),
            position: start + from,
            ..BatchMetadata::default()
        }
    }

    /// Verifies that a received batch is number `batch` and is intact. `rows` is its number of rows, `hash` the hash of its body.
    ///
    /// # Errors
    /// [`Error::BatchMismatch`] with the first difference.
    pub(crate) fn verify(
        &self,
        batch: u64,
        found: &BatchMetadata,
        rows: u64,
        hash: Option<u64>,
    ) -> Result<(), Error> {
        let expected = self.expected(batch);
        let offsets = &found.group_offsets;
        let groups = (offsets.len() as u64).wrapping_sub(1);
        let items = match (self.summary.packs, self.summary.groups) {
            // The metadata contain the groups of a batch, but not its number of packs.
            (Some(_), _) => expected.rows,
            (None, Some(_)) => groups,
            (None, None) => found.rows,
        };
        let position = |batch: &BatchMetadata| (batch.epoch, batch.step, batch.rank, batch.position);
        if (position(found), items) != (position(&expected), expected.rows) {
            return Err(Error::BatchMismatch(format!(
                "received the batch of {}, expected {}",
                self.describe(found, items),
                self.describe(&expected, expected.rows)
            )));
        }
        let groups_cover_rows = match self.summary.groups {
            Some(_) => {
                let ends =
                    offsets.first() == Some(&0) && offsets.last() == u32::try_from(found.rows).ok().as_ref();
                ends && offsets.is_sorted_by(|start, end| start < end)
            }
            None => offsets.is_empty(),
        };
        let mismatch = |difference: String| {
            let batch = self.describe(found, items);
            Err(Error::BatchMismatch(format!("the batch of {batch} {difference}")))
        };
        if !groups_cover_rows {
            return mismatch("has groups that do not cover its rows".into());
        }
        let max_pack_rows = self.summary.max_pack_rows;
        if self.summary.packs.is_some()
            && (groups < expected.rows || found.rows > expected.rows.saturating_mul(max_pack_rows))
        {
            return mismatch(format!(
                "has {} rows in {groups} groups, expected at least one group and at most {max_pack_rows} rows per pack",
                found.rows
            ));
        }
        let expected_rows = match self.summary.remainder() {
            Remainder::Pad => self.summary.batch_size.saturating_mul(max_pack_rows.max(1)),
            _ => found.rows,
        };
        if rows != expected_rows {
            return mismatch(format!("has {rows} rows, expected {expected_rows}"));
        }
        match (found.content_hash, hash) {
            (Some(sent), Some(received)) if sent != received => {
                mismatch(format!("was received with hash {received:016x}, expected {sent:016x}"))
            }
            (None, Some(_)) => mismatch("has no hash".into()),
            _ => Ok(()),
        }
    }

    fn describe(&self, batch: &BatchMetadata, items: u64) -> String {
        let BatchMetadata { epoch, step, rank, position, .. } = batch;
        let unit = match (self.summary.packs, self.summary.groups) {
            (Some(_), _) => "packs",
            (None, Some(_)) => "groups",
            (None, None) => "rows",
        };
        format!("epoch {epoch}, step {step}, rank {rank} ({items} {unit} from position {position})")
    }
}

#[cfg(test)]
mod tests;
