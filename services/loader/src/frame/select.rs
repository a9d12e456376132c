//! Copying of rows from several frames into a new one.

use std::{sync::Arc, time::Duration};

use forebay_cache::Slabs;

use super::{Distinct, Frame, RowRef, Rows, Tail, gather_nested};
use crate::{Error, TurnClock, View, view::Output};

impl Frame {
    /// Builds a frame of the given rows of several frames of one view, in that order and in turns.
    ///
    /// # Errors
    /// An error if the values of the rows in the heap exceed 4 GiB, or the system is out of memory.
    pub(crate) async fn select(
        view: &View,
        frames: &[Arc<Frame>],
        rows: &[RowRef],
        slabs: &Slabs,
        turn: &mut TurnClock,
    ) -> Result<Self, Error> {
        let mut fixed = slabs.take(rows.len() * view.stride).map_err(Error::out_of_memory)?;
        let mut heap = Vec::new();
        if view.stride > 0 {
            let source = Rows::new(view, frames);
            for (row, copy) in rows.iter().zip(fixed.chunks_exact_mut(view.stride)) {
                copy.copy_from_slice(source.row(*row));
                if !view.variable_items.is_empty() {
                    let values = source.heap_of(view, *row, Tail::new(view, &copy[view.tail..]));
                    Tail::move_to(&mut copy[view.tail..], heap.len()).map_err(|_| {
                        Error::batch_too_large(rows.len() as u64, u64::from(u32::MAX), u64::from(u32::MAX))
                    })?;
                    heap.extend_from_slice(values);
                    turn.handled(values.len()).await;
                }
                turn.handled(view.stride).await;
            }
        }
        let mut tables = Vec::new();
        for output in &view.outputs {
            if let Output::Distinct { source, len, table, .. } = output {
                let distinct = Distinct::new(frames, *table, len * source.width, rows, turn).await;
                tables.push(distinct.into_table());
            }
        }
        let mut nested = Vec::with_capacity(view.nested_count);
        for index in 0..view.nested_count {
            nested.push(gather_nested(frames, rows, index, |_| Ok(()), turn).await?);
        }
        Ok(Self {
            rows: rows.len(),
            fixed,
            heap,
            nested,
            tables,
            groups: Vec::new(),
            load_time: Duration::ZERO,
        })
    }
}
