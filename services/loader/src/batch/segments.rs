//! Rows of one batch, which may come from several windows and datasets.

use std::{ops::Range, sync::Arc};

use forebay_cache::{Slabs, Weigh};
use forebay_plan::{EpochOrder, Location};
use forebay_stall::Moments;

use super::{
    assemble::{AssembleOptions, assemble_in_turns},
    wire::WireBatch,
};
use crate::{
    Error, Frame, RowRef, TurnClock, View, frame::label::Label, request::mixture::interleaved,
    window::held::HeldWindow,
};

/// Maximum memory for rows retained from earlier windows, as a multiple of the largest batch body.
const MAX_RETAINED: u64 = 16;

/// Rows of a batch in order. Each segment is paired with the index of its source: a partition of a dataset of the mixture.
pub(super) struct BatchRows {
    /// View of the job's own dataset. Rows of the other datasets have the same layout.
    pub(super) view: Arc<View>,
    pub(super) row_limit: Option<RowLimit>,
    /// Number of consecutive rows from each dataset in the repeating pattern of a mixture.
    pub(super) pattern: Vec<usize>,
    /// Number of partitions of each dataset. The rows of a dataset are those of its partitions, one after the other.
    pub(super) partitions: usize,
    pub(super) segments: Vec<(usize, Segment)>,
}

/// Rows of a batch: in a window that is still held, or retained from one that was released.
pub(super) enum Segment {
    Held(WindowRows),
    Retained(RetainedRows),
}

/// Rows retained after their window is released. The frame is a copy of the rows, or a frame of the window if the rows
/// are consecutive there.
pub(super) struct RetainedRows {
    frame: Arc<Frame>,
    rows: Range<u32>,
    /// Number of rows in each group, if rows are grouped.
    groups: Vec<u32>,
    /// Minimum number of bytes of a body with these rows.
    bytes: u64,
}

/// True if retained rows are too large for a batch: their body, of at least `body` bytes, exceeds `max_bytes`, or the `memory` bytes that
/// they hold exceed [`MAX_RETAINED`] times `max_bytes`.
fn retained_rows_exceed(body: u64, memory: u64, max_bytes: u64) -> bool {
    body > max_bytes || memory / MAX_RETAINED > max_bytes
}

impl BatchRows {
    /// Returns an error if the retained rows exceed the limit of a batch body or take too much memory until assembly.
    pub(super) fn check_retained(&self, max_bytes: u64) -> Result<(), Error> {
        let retained = || {
            self.segments.iter().filter_map(|(_, segment)| match segment {
                Segment::Retained(retained) => Some(retained),
                Segment::Held(_) => None,
            })
        };
        let body = retained().map(|rows| rows.bytes).fold(0, u64::saturating_add);
        // Each window retains its own distinct rows of a de-duplicated tensor, so memory use can exceed the body.
        let kept = retained().map(|rows| rows.frame.value_bytes()).fold(0, u64::saturating_add);
        if retained_rows_exceed(body, kept, max_bytes) {
            let rows = retained().map(|rows| rows.rows.len() as u64).sum();
            return Err(Error::batch_too_large(rows, body.max(kept), max_bytes));
        }
        Ok(())
    }

    /// Assembles the batch in turns, and computes the moments of its labels.
    pub(super) async fn assemble(
        self,
        label: Option<&Label>,
        options: AssembleOptions,
        slabs: &Slabs,
    ) -> Result<(WireBatch, Option<Moments>), Error> {
        let mut turn = TurnClock::start();
        let sources = self.pattern.len().max(1) * self.partitions;
        let (mut groups, mut rows) = (vec![Vec::new(); sources], vec![Vec::new(); sources]);
        let mut frames = Vec::new();
        // Most batches come from one window, whose frames are used without building a list.
        let only = match self.segments.as_slice() {
            [(_, Segment::Held(own))] => Some(Arc::clone(&own.held)),
            _ => None,
        };
        for (at, segment) in &self.segments {
            let first_frame = frames.len() as u32;
            match segment {
                Segment::Retained(RetainedRows { frame, rows: range, groups: lengths, .. }) => {
                    rows[*at].extend(range.clone().map(|row| RowRef { frame: first_frame, row }));
                    groups[*at].extend(lengths);
                    frames.push(Arc::clone(frame));
                }
                Segment::Held(own) => {
                    own.rows(first_frame, &mut rows[*at], &mut groups[*at])?;
                    if only.is_none() {
                        frames.extend(own.held.window().frames.iter().cloned());
                    }
                }
            }
        }
        let of_datasets = if self.partitions == 1 {
            rows
        } else {
            rows.chunks(self.partitions).map(<[_]>::concat).collect()
        };
        let rows = interleaved(of_datasets, &self.pattern);
        if let Some(limit) = self.row_limit.filter(|limit| rows.len() as u64 > limit.rows) {
            let bytes = (rows.len() as u64).saturating_mul(limit.row_bytes);
            return Err(Error::batch_too_large(rows.len() as u64, bytes, limit.max_bytes));
        }
        let frames = only.as_ref().map_or(&frames[..], |held| &held.window().frames);
        turn.step().await;
        let batch = assemble_in_turns(&self.view, frames, &rows, options, slabs, &mut turn).await?;
        let label = label.map(|label| label.moments(&self.view, frames, &rows));
        if self.row_limit.is_none() {
            return Ok((batch, label));
        }
        let ends = groups.iter().flatten().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        Ok((WireBatch { group_offsets: std::iter::once(0).chain(ends).collect(), ..batch }, label))
    }
}

/// Rows of a batch in one window.
pub(super) struct WindowRows {
    pub(super) order: Arc<EpochOrder>,
    pub(super) held: Arc<HeldWindow>,
    pub(super) positions: Range<u64>,
    /// Row limit of the batch, if rows are grouped.
    pub(super) row_limit: Option<RowLimit>,
}

/// Maximum number of rows per batch, with the sizes from which it was computed.
#[derive(Clone, Copy)]
pub(super) struct RowLimit {
    rows: u64,
    row_bytes: u64,
    max_bytes: u64,
}

impl RowLimit {
    /// Computes the limit for rows of at least `row_bytes` bytes in a body of at most `max_bytes` bytes.
    pub(super) fn of(row_bytes: u64, max_bytes: u64) -> Self {
        let row_bytes = row_bytes.max(1);
        Self { rows: (max_bytes / row_bytes).min(u64::from(u32::MAX)), row_bytes, max_bytes }
    }
}

impl WindowRows {
    /// Appends the rows to `rows`, and the length of each group to `groups` if rows are grouped.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if long groups exceed the row limit of a batch.
    fn rows(&self, first_frame: u32, rows: &mut Vec<RowRef>, groups: &mut Vec<u32>) -> Result<(), Error> {
        let mut locations: Vec<Location> = Vec::new();
        self.order.locate_range(self.positions.clone(), &mut locations);
        let window = self.held.window();
        let Some(limit) = self.row_limit else {
            window.rows(&locations, first_frame, rows);
            return Ok(());
        };
        let count = rows.len() as u64 + window.rows_of_groups(&locations);
        if count > limit.rows {
            let bytes = count.saturating_mul(limit.row_bytes);
            return Err(Error::batch_too_large(count, bytes, limit.max_bytes));
        }
        window.groups(&locations, first_frame, rows, groups);
        Ok(())
    }

    /// Retains the rows independently of the window, in turns. References the frame if the rows are consecutive in one frame of
    /// at most `max_held_bytes` bytes; otherwise copies them.
    pub(super) async fn retain(
        &self,
        view: &View,
        max_held_bytes: u64,
        slabs: &Slabs,
    ) -> Result<RetainedRows, Error> {
        let (mut rows, mut groups, mut turn) = (Vec::new(), Vec::new(), TurnClock::start());
        self.rows(0, &mut rows, &mut groups)?;
        let frames = &self.held.window().frames;
        let mut runs = RowRef::runs(&rows);
        if let (Some([first, others @ ..]), None) = (runs.next(), runs.next()) {
            let (frame, rows) = (&frames[first.frame as usize], others.len() + 1);
            if frame.weight() <= max_held_bytes {
                let bytes = rows as u64 * view.min_row_bytes();
                return Ok(RetainedRows {
                    frame: Arc::clone(frame),
                    rows: first.row..first.row + rows as u32,
                    groups,
                    bytes,
                });
            }
        }
        let frame = Arc::new(Frame::select(view, frames, &rows, slabs, &mut turn).await?);
        let bytes = frame.min_body_bytes(view);
        Ok(RetainedRows { rows: 0..frame.rows() as u32, groups, bytes, frame })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_rows_are_too_large_if_their_body_exceeds_the_limit_or_their_memory_sixteen_times_the_limit() {
        assert!(!retained_rows_exceed(100, 1600, 100) && !retained_rows_exceed(0, 1615, 100));
        assert!(retained_rows_exceed(101, 0, 100) && retained_rows_exceed(0, 1616, 100));
    }

    #[test]
    fn a_batch_has_as_many_rows_as_fit_into_its_body() {
        assert_eq!(
            [(8, 1024), (9, 1024), (0, 7)].map(|(row, most)| RowLimit::of(row, most).rows),
            [128, 113, 7]
        );
        assert_eq!(RowLimit::of(1, u64::MAX).rows, u64::from(u32::MAX));
    }
}
