//! What a job delivers, and which batch is the next one: arithmetic, nothing else.

use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::v1::{BatchMetadata, PlanSummary, Remainder, Train};

use crate::Error;

/// What a server says of a job before it runs: everything about it is fixed, so that any server goes on with it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The schema of its batches.
    pub schema: SchemaRef,
    /// Snapshot, plan hash, steps, windows.
    pub summary: PlanSummary,
    /// Rows that all its tickets together will deliver; -1 if that is not known, as with groups.
    pub total_records: i64,
    /// A ticket for each rank and lane, rank-major.
    pub tickets: Vec<Bytes>,
    /// The request with every default resolved and the snapshot pinned; rank and lane as they were asked for.
    pub resolved: Train,
}

/// A place in a job: everything before it has been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch of the next batch.
    pub epoch: u64,
    /// Its step; the number of steps an epoch is the next epoch.
    pub step: u64,
}

impl Plan {
    /// Batches that one rank gets in all.
    pub fn batches(&self) -> u64 {
        let epochs = self.resolved.epochs.unwrap_or(1);
        let all = epochs.saturating_mul(self.summary.steps).saturating_sub(self.resolved.start_step);
        match self.resolved.steps {
            0 => all,
            limit => all.min(limit),
        }
    }

    /// The place of a rank's batch number `batch`, counted from the first one sent.
    pub fn cursor(&self, batch: u64) -> Cursor {
        let steps = self.summary.steps.max(1);
        let step = self.resolved.start_step.saturating_add(batch);
        Cursor { epoch: self.resolved.epoch.saturating_add(step / steps), step: step % steps }
    }

    /// The request for what is left from batch number `batch` on: that one comes first, and of those behind it every
    /// `lanes`-th.
    pub(crate) fn rest(&self, batch: u64) -> Train {
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

    /// The rank whose batches these are.
    pub fn rank(&self) -> u64 {
        self.resolved.rank.unwrap_or(0)
    }

    /// Parallel streams of the rank.
    pub fn lanes(&self) -> u64 {
        self.resolved.lanes.unwrap_or(1).max(1)
    }

    /// What the batch number `batch` has to say of itself, but for its hash; `rows` are groups if there are groups, and packs if
    /// they are packed.
    pub(crate) fn expected(&self, batch: u64) -> BatchMetadata {
        let Cursor { epoch, step } = self.cursor(batch);
        let (rank, ranks) = (self.rank(), self.summary.world_size.max(1));
        let mixed = self.summary.mixed_rows;
        let global_batch = self.summary.batch_size.saturating_sub(mixed).saturating_mul(ranks);
        let start = step.saturating_mul(global_batch);
        let items = self.summary.packs.or(self.summary.groups).unwrap_or(self.summary.rows);
        let items = items.saturating_sub(start).min(global_batch);
        // The last step may be short; then every rank gets its share.
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

    /// Refuses a batch that is not number `batch`, or not as it was sent.
    pub(crate) fn check(
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
            // Of packs a batch says where they begin, and not how many there are.
            (Some(_), _) => expected.rows,
            (None, Some(_)) => groups,
            (None, None) => found.rows,
        };
        let place = |of: &BatchMetadata| (of.epoch, of.step, of.rank, of.position);
        if (place(found), items) != (place(&expected), expected.rows) {
            return Err(Error::Foreign(format!(
                "a batch that is not due came: {}, expected {}",
                self.words(found, items),
                self.words(&expected, expected.rows)
            )));
        }
        let are_groups = match self.summary.groups {
            Some(_) => {
                let ends =
                    offsets.first() == Some(&0) && offsets.last() == u32::try_from(found.rows).ok().as_ref();
                ends && offsets.is_sorted_by(|start, end| start < end)
            }
            None => offsets.is_empty(),
        };
        if !are_groups {
            let batch = self.words(found, items);
            return Err(Error::Foreign(format!("the groups of the batch of {batch} are not its rows")));
        }
        let most_rows = self.summary.batch_rows;
        if self.summary.packs.is_some()
            && (groups < expected.rows || found.rows > expected.rows.saturating_mul(most_rows))
        {
            let (batch, rows) = (self.words(found, items), found.rows);
            let what = format!(
                "holds {rows} rows in {groups} groups, expected one group or more and at most {most_rows} rows a pack"
            );
            return Err(Error::Foreign(format!("the batch of {batch} {what}")));
        }
        let expected_rows = match self.summary.remainder() {
            Remainder::Pad => self.summary.batch_size.saturating_mul(most_rows.max(1)),
            _ => found.rows,
        };
        if rows != expected_rows {
            return Err(Error::Foreign(format!(
                "the batch of {} holds {rows} rows, expected {expected_rows}",
                self.words(found, items)
            )));
        }
        match (found.hash, hash) {
            (Some(sent), Some(received)) if sent != received => Err(Error::Foreign(format!(
                "the batch of {} arrived with hash {received:016x}, it was sent with {sent:016x}",
                self.words(found, items)
            ))),
            (None, Some(_)) => {
                Err(Error::Foreign(format!("the batch of {} has no hash", self.words(found, items))))
            }
            _ => Ok(()),
        }
    }

    fn words(&self, batch: &BatchMetadata, items: u64) -> String {
        let BatchMetadata { epoch, step, rank, position, .. } = batch;
        let what = match (self.summary.packs, self.summary.groups) {
            (Some(_), _) => "packs",
            (None, Some(_)) => "groups",
            (None, None) => "rows",
        };
        format!("epoch {epoch}, step {step}, rank {rank} ({items} {what} from position {position})")
    }
}

#[cfg(test)]
mod tests;
