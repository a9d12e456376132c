//! The one way in which blocks are fetched from their files and decoded.
//!
//! Windows, columns, row counts, labels and key indexes read blocks here, so that all of them share one bound on memory,
//! appear in the activity of the server, are counted and can be delayed by fault injection.

use std::sync::Arc;

use arrow_array::RecordBatch;
use forebay_cache::{Budget, Reservation, SourceId, TooLarge};
use forebay_stall::Stage;
use forebay_storage::{EncodedBlock, Reader, Snapshot};
use parking_lot::Mutex;

use crate::{
    Config, Error, Flow, Pool, Priority,
    activity::{Activity, Purpose, recorded_turns},
    fault_injection::FaultInjection,
    view::nulls::pushed_down,
};

/// Size below which the strings of a chunk are not limited, in bytes. Chunks of few rows take longer to decode.
const MIN_CHUNK_BYTES: u64 = 8 << 20;
/// Maximum number of values of a chunk, unless it has [`MIN_CHUNK_ROWS`] rows or fewer. A chunk is decoded, and appended to its frame,
/// within one turn.
const CHUNK_VALUES: usize = 2 << 20;
/// Number of rows of the chunks of very wide blocks. Chunks of fewer rows take longer to decode.
const MIN_CHUNK_ROWS: usize = 128;

/// Fetches and decodes blocks within a bound on memory. Cheap to clone; clones share the bound.
#[derive(Clone)]
pub struct BlockReader {
    activity: Arc<Activity>,
    pool: Pool,
    faults: FaultInjection,
    decode_rows: usize,
    budget: Budget,
    /// For the bytes of column chunks and gaps that exceed the reservations of their blocks.
    excess: Budget,
}

/// Memory for a block that is fetched and decoded, until the last clone is dropped. Charged to the source of the block
/// except during decoding.
pub(crate) type DecodePermit = Arc<Mutex<Reservation>>;

/// Column chunks of a block.
struct Fetched {
    encoded: EncodedBlock,
    /// Memory for the part that exceeds half of the permit.
    excess: Option<Reservation>,
}

/// Rows of a block in chunks, decoded as the iterator is advanced.
pub type Chunks = Box<dyn Iterator<Item = Result<RecordBatch, Error>> + Send>;

/// Some columns of one block.
#[derive(Clone, Copy)]
pub struct BlockColumns<'a> {
    /// Reader of the snapshot.
    pub reader: &'a Reader,
    /// Index of the block in the snapshot.
    pub block: u32,
    /// Positions of the columns in the snapshot's schema, ascending.
    pub columns: &'a [usize],
}

impl BlockReader {
    /// A reader that decodes on `pool`, for a loader whose frames take at most `memory_bytes`. Reservations of
    /// blocks in flight take at most `decode_bytes` of [`Config`], and column chunks that are larger than expected at most half as much
    /// again. A block over half of `decode_bytes` is read alone, and may take more.
    pub fn new(memory_bytes: u64, config: &Config, pool: Pool) -> Self {
        let decode_bytes = config.decode_bytes(memory_bytes).max(1);
        Self {
            activity: Arc::default(),
            pool,
            faults: config.fault_injection,
            decode_rows: config.decode_rows,
            budget: Budget::new(decode_bytes),
            excess: Budget::new((decode_bytes / 2).max(1)),
        }
    }

    /// The pool on which blocks are decoded.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Operations in flight.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Waits for memory for a block whose decoded size is `expected_bytes`. Reserves twice that, for its compressed bytes,
    /// its decoded chunks and the result, but at most the whole bound. A block larger than half the bound is therefore read
    /// alone. Tenants share the bound by weight, and the flows of a tenant in turn. While several blocks are being fetched from one source,
    /// they leave a part of the bound to other sources.
    pub(crate) async fn permit(
        &self,
        expected_bytes: u64,
        flow: Flow,
        source: SourceId,
    ) -> Result<DecodePermit, Error> {
        let bytes = expected_bytes.saturating_mul(2);
        let reservation = self.reserve(&self.budget, bytes, flow, source).await?;
        Ok(Arc::new(Mutex::new(reservation)))
    }

    /// Waits for memory, reads the columns for `purpose`, and returns what `decode` makes of their rows. `decode` runs on the pool, in
    /// turns. The memory is released when it has returned.
    ///
    /// # Errors
    /// Errors of fetching and decoding the block, and of `decode`.
    pub async fn read<T, F, W>(
        &self,
        what: BlockColumns<'_>,
        purpose: Purpose,
        flow: Flow,
        decode: F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Chunks) -> W + Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let snapshot = what.reader.snapshot();
        let bytes = what.columns.iter().map(|column| snapshot.column_bytes(what.block as usize, *column));
        let bytes = bytes.fold(0, u64::saturating_add);
        let permit = self.permit(bytes, flow, what.reader.source_id()).await?;
        self.read_within(&permit, what, purpose, flow, decode).await
    }

    /// As [`read`](Self::read), within memory that the caller holds.
    pub(crate) async fn read_within<T, F, W>(
        &self,
        permit: &DecodePermit,
        what: BlockColumns<'_>,
        purpose: Purpose,
        flow: Flow,
        decode: F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Chunks) -> W + Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let fetched = self.fetch(permit, what, purpose, flow).await?;
        match self.decode_rows(permit, what, purpose, flow, fetched, decode).await? {
            Ok(decoded) => Ok(decoded),
            Err((damaged, decode)) => {
                // The bytes may have been damaged on the way.
                tracing::warn!(error = %damaged, "a page was damaged, fetching its block once more");
                let fetched = self.fetch(permit, what, purpose, flow).await?;
                let decoded = self.decode_rows(permit, what, purpose, flow, fetched, decode).await?;
                decoded.map_err(|(damaged, _)| damaged.into())
            }
        }
    }

    /// Returns what `decode` makes of the rows of a fetched block. If a page does not match its checksum, returns the
    /// error and `decode`, which was not called: checksums are checked before the first rows are decoded.
    async fn decode_rows<T, F, W>(
        &self,
        permit: &DecodePermit,
        what: BlockColumns<'_>,
        purpose: Purpose,
        flow: Flow,
        Fetched { encoded, excess }: Fetched,
        decode: F,
    ) -> Result<Result<T, (forebay_storage::Error, F)>, Error>
    where
        T: Send + 'static,
        F: FnOnce(Chunks) -> W + Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let columns = what.columns.len();
        let decode_rows = self.decode_rows.min((CHUNK_VALUES / columns.max(1)).max(MIN_CHUNK_ROWS));
        // A chunk is not larger than the whole block was expected to be.
        let encoded = encoded.with_max_batch_bytes((permit.lock().bytes() / 2).max(MIN_CHUNK_BYTES));
        let work = async move {
            let _excess = excess;
            let mut chunks = encoded.decode(decode_rows).peekable();
            if let Some(Err(damaged)) =
                chunks.next_if(|first| matches!(first, Err(error) if error.is_damaged_page()))
            {
                return Ok(Err((damaged, decode)));
            }
            let decoded = decode(Box::new(chunks.map(|chunk| pushed_down(chunk?)))).await?;
            metrics::counter!("forebay_decode_columns_total").increment(columns as u64);
            Ok(Ok(decoded))
        };
        let id = what.reader.block_ids().id(what.block);
        self.decode(permit, purpose, id, flow, self.faults.before_decode(work)).await
    }

    /// Reads the column chunks of a block. In a damaged or hostile file they can exceed half of the permit. Memory for the excess is
    /// reserved first, from a separate budget. In the budget of the permits, the call could wait for callers that hold permits and wait for
    /// the columns of this call: a deadlock.
    async fn fetch(
        &self,
        permit: &DecodePermit,
        what: BlockColumns<'_>,
        purpose: Purpose,
        flow: Flow,
    ) -> Result<Fetched, Error> {
        permit.lock().loading();
        let begin = || self.activity.begin(Stage::Storage, purpose, what.reader.block_ids().id(what.block));
        let planning = begin();
        // The footer is parsed in the turn of the flow.
        let reader = what.reader.computed_by(self.pool.compute(flow, Priority::Background));
        let planned = reader.plan(what.block as usize, what.columns).await?;
        // The time of waiting for memory is not charged to the store.
        drop(planning);
        let missing = planned.bytes().saturating_sub(permit.lock().bytes() / 2);
        let mut excess = match missing {
            0 => None,
            bytes => Some(self.reserve(&self.excess, bytes, flow, what.reader.source_id()).await?),
        };
        let fetching = begin();
        let encoded = planned.fetch().await?;
        permit.lock().loaded();
        if let Some(excess) = &mut excess {
            excess.loaded();
        }
        fetching.add_output(encoded.bytes() as u64, 0);
        Ok(Fetched { encoded, excess })
    }

    /// Waits for `bytes` of `budget`, but at most for the whole budget.
    async fn reserve(
        &self,
        budget: &Budget,
        bytes: u64,
        flow: Flow,
        source: SourceId,
    ) -> Result<Reservation, Error> {
        let _waiting = self.activity.wait();
        let bytes = bytes.clamp(1, budget.capacity_bytes());
        let reservation = budget.of_tenant(flow.tenant()).of_flow(flow.id()).reserve(bytes, &[source]).await;
        let too_large = |error: TooLarge| Error::Internal(format!("no memory to decode a block: {error:?}"));
        reservation.map_err(too_large)
    }

    /// Runs `work`, which decodes a part of block `id`, on the pool, in turns. Holds `permit` until the work has ended.
    pub(crate) async fn decode<T: Send + 'static>(
        &self,
        permit: &DecodePermit,
        purpose: Purpose,
        id: u128,
        flow: Flow,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        permit.lock().loaded();
        let (activity, permit) = (Arc::clone(&self.activity), Arc::clone(permit));
        let work = async move {
            let result = work.await;
            drop(permit);
            result
        };
        let turns = recorded_turns(move || activity.begin(Stage::Decode, purpose, id), work);
        self.pool.run_in_turns(flow, Priority::Background, turns).await
    }
}

/// Name of a block in messages: file path and row groups.
pub(crate) fn place_of(snapshot: &Snapshot, block: u32) -> String {
    let block = &snapshot.blocks()[block as usize];
    let path = &snapshot.files()[block.file as usize].path;
    match block.row_groups.len() {
        1 => format!("{path}, row group {}", block.row_groups.start),
        _ => format!("{path}, row groups {} to {}", block.row_groups.start, block.row_groups.end - 1),
    }
}

#[cfg(test)]
mod tests;
