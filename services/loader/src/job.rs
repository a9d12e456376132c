//! Jobs: requests resolved against a snapshot.

mod mixture;
mod packing;

use std::sync::Arc;

use forebay_plan::{Cursor, EpochOrder, PLAN_VERSION, Remainder, Run, Shuffle, Steps, default_window_rows};
use forebay_proto::v1;
use forebay_storage::{Reader, Snapshot};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Counts, Error, View,
    counts::Question,
    cpu::Flow,
    groups::{Groups, Piece},
    label::Label,
    quoted::{quoted, quoted_list},
    view::{Use, find_column},
};

/// Maximum `batch_size`, in rows.
pub(crate) const MAX_BATCH_SIZE: u64 = 1 << 20;
/// Maximum `world_size`.
pub(crate) const MAX_WORLD_SIZE: u64 = 1 << 16;
/// Maximum number of `lanes` per rank.
pub(crate) const MAX_LANES: u64 = 256;
/// Maximum length of a job name, in bytes. Every ticket carries the name.
const MAX_JOB_NAME_BYTES: usize = 256;
/// Maximum number of epochs whose windows are checked against the memory before a job starts.
const CHECKED_EPOCHS: u64 = 64;
/// Maximum number of blocks, summed over the checked epochs, for that check.
const CHECKED_BLOCKS: u64 = 1 << 20;

pub use mixture::check_mixture;
pub(crate) use mixture::{of_mixed, within_mix};
use packing::Packing;

/// A job: columns, row order and step range.
///
/// All defaults are resolved: the batch at (epoch, step, rank) is a pure function of a job.
#[derive(Debug)]
pub struct Job {
    train: v1::Train,
    reader: Reader,
    view: Arc<View>,
    shuffle: Shuffle,
    steps: Steps,
    run: Run,
    /// Other datasets of a mixture. Their rows have the same layout as those of this dataset.
    mixed: Vec<Arc<Job>>,
    /// Number of steps per epoch of the mixture, for one of its other datasets.
    steps_beside: Option<u64>,
    /// Number of rows of each block that the filter keeps; all rows without a filter.
    kept: Arc<[u32]>,
    groups: Option<Groups>,
    packing: Option<Packing>,
    /// Position of the label in a row, if one is named and delivered.
    label: Option<Label>,
    /// Number of items of each block in the order: its kept rows, or the groups that begin in it.
    items: Arc<[u32]>,
    /// Sums of `kept` and `items`.
    rows: u64,
    epoch_items: u64,
    /// Filter and groups as part of the order's identity: their text, and hashes of the rows and groups of each block.
    asked: String,
    frame_bytes: Vec<u64>,
    snapshot_bytes: u64,
    decoding: Flow,
}

impl Job {
    /// Resolves `train` against the snapshot of `reader`. `counts` are required if the request has a filter or groups.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field, its value and what was expected.
    pub fn resolve(train: &v1::Train, reader: Reader, counts: Option<&Counts>) -> Result<Self, Error> {
        Self::resolve_mixture(train, (reader, counts), Vec::new())
    }

    /// Creates a job for lookups over all rows of a dataset, with the columns of `train`.
    pub(crate) fn of_lookups(train: &v1::Train, reader: Reader) -> Result<Self, Error> {
        let none = v1::Shuffle { none: Some(v1::shuffle::None {}), ..v1::Shuffle::default() };
        let train = v1::Train { batch_size: 1, shuffle: Some(none), ..train.clone() };
        Self::of_one(&train, (reader, None), 1, Use::Lookup)
    }

    /// Resolves one dataset, which contributes `own_rows` rows to each batch of a rank.
    fn of_one(
        train: &v1::Train,
        (reader, counts): (Reader, Option<&Counts>),
        own_rows: u64,
        used: Use,
    ) -> Result<Self, Error> {
        let snapshot = Arc::clone(reader.snapshot());
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
            return Err(Error::invalid(
                "epoch",
                format!("{} and {epochs} epochs pass the last one there is", train.epoch),
            ));
        }
        let plan_version = if train.plan_version == 0 { u64::from(PLAN_VERSION) } else { train.plan_version };
        if plan_version != u64::from(PLAN_VERSION) {
            let reason = format!("is {plan_version}, this server knows version {PLAN_VERSION}");
            return Err(Error::invalid("plan_version", reason));
        }
        if train.job_name.len() > MAX_JOB_NAME_BYTES {
            let reason = format!("has {} bytes, expected at most {MAX_JOB_NAME_BYTES}", train.job_name.len());
            return Err(Error::invalid("job_name", reason));
        }
        let view = View::resolve_for(used, &snapshot, train)?;
        let question = Question { lengths: train.max_pack_rows > 0, ..view.question() };
        let counts = match (question.identity(&snapshot), counts) {
            (None, _) => None,
            (Some(_), Some(counts)) if counts.is_of(&snapshot, &question) => Some(counts),
            (Some(_), _) => return Err(Error::Internal("a filter or groups that were not counted".into())),
        };
        let kept: Arc<[u32]> = match counts {
            None => snapshot.blocks().iter().map(|block| block.rows).collect(),
            Some(counts) => Arc::clone(counts.rows()),
        };
        let groups = counts.and_then(Counts::groups).cloned();
        let items = groups.as_ref().map_or_else(|| Arc::clone(&kept), |groups| Arc::clone(&groups.begun));
        let mut asked = String::new();
        if view.filter().is_some() {
            asked = format!("/{}/{:016x}", quoted(&train.filter), hash_of(&kept));
        }
        if let Some(groups) = &groups {
            let keys = quoted_list(view.grouped_by().iter().map(String::as_str));
            asked +=
                &format!("/groups {keys}/{:016x}/{:016x}", hash_of(&groups.begun), hash_of(&groups.heads));
        }
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        let (rows, epoch_items) = (sum(&kept), sum(&items));
        let label = label_column(&snapshot, &train.label_column)?.and_then(|column| Label::of(&view, column));

        let packing = Packing::of(train, groups.as_ref(), rows)?;
        let global_batch = own_rows * world_size;
        let global_rows = match &packing {
            Some(packing) => global_batch * packing.most_rows,
            None => scaled(global_batch, rows, epoch_items),
        };
        let shuffle = resolve_shuffle(train.shuffle.as_ref(), global_rows, rows, &snapshot)?;
        let remainder = match v1::Remainder::try_from(train.remainder) {
            Ok(v1::Remainder::Auto) if used == Use::Mixture => Remainder::Drop,
            Ok(v1::Remainder::Short) => Remainder::Short,
            Ok(v1::Remainder::Drop) => Remainder::Drop,
            Ok(v1::Remainder::Pad) => Remainder::Pad,
            Ok(v1::Remainder::Auto) if world_size == 1 => Remainder::Short,
            Ok(v1::Remainder::Auto) => Remainder::Drop,
            Err(_) => return Err(Error::invalid("remainder", format!("{} is not known", train.remainder))),
        };
        let dealt = packing.as_ref().map_or(epoch_items, |packing| packing.packs);
        let steps = Steps::new(dealt, own_rows as u32, world_size as u32, remainder)
            .map_err(|error| of_plan(&error))?;
        let limit = (train.steps > 0).then_some(train.steps);
        let run = Run::new(&steps, train.epoch, epochs, train.start_step, limit)
            .map_err(|error| of_plan(&error))?;

        let resolved = v1::Train {
            snapshot: snapshot.id().to_owned(),
            shuffle: Some(shuffle_message(shuffle)),
            epochs: Some(epochs),
            world_size: Some(world_size),
            lanes: Some(lanes),
            remainder: match remainder {
                Remainder::Short => v1::Remainder::Short.into(),
                Remainder::Drop => v1::Remainder::Drop.into(),
                Remainder::Pad => v1::Remainder::Pad.into(),
            },
            content_hash: Some(train.content_hash.unwrap_or(true)),
            plan_version,
            ..train.clone()
        };
        let mut job = Self {
            train: resolved,
            reader,
            view: Arc::new(view),
            shuffle,
            steps,
            run,
            mixed: Vec::new(),
            steps_beside: None,
            kept,
            groups,
            packing,
            label,
            items,
            rows,
            epoch_items,
            asked,
            frame_bytes: Vec::new(),
            snapshot_bytes: 0,
            decoding: Flow::new(),
        };
        let frame_bytes = (0..job.items.len() as u32).map(|block| job.estimate(block));
        job.frame_bytes = frame_bytes.collect();
        job.snapshot_bytes = job.frame_bytes.iter().copied().fold(0, u64::saturating_add);
        Ok(job)
    }

    /// Estimated size of the frame of one block, in bytes.
    fn estimate(&self, block: u32) -> u64 {
        let bytes = self.pieces(block).into_iter().map(|piece| {
            self.view.frame_bytes(self.snapshot(), piece.block as usize, piece.rows.end - piece.rows.start)
        });
        let offsets = (self.groups_in(block) * size_of::<u32>()) as u64;
        bytes.fold(offsets, u64::saturating_add)
    }

    /// The request with all defaults resolved.
    pub fn train(&self) -> &v1::Train {
        &self.train
    }

    /// Returns the ticket of one rank and lane: the resolved request with both set.
    pub fn ticket(&self, rank: u32, lane: u32) -> v1::Train {
        v1::Train { rank: Some(rank.into()), lane: Some(lane.into()), ..self.train.clone() }
    }

    /// Ranks and lanes that the request includes, rank-major.
    pub fn endpoints(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let one_or_all = |one: Option<u64>, count: u32| match one {
            Some(one) => one as u32..one as u32 + 1,
            None => 0..count,
        };
        let lanes = one_or_all(self.train.lane, self.lanes());
        one_or_all(self.train.rank, self.world_size())
            .flat_map(move |rank| lanes.clone().map(move |lane| (rank, lane)))
    }

    /// Exact number of rows of one rank and lane, including padding. `None` with groups, unless all batches are padded
    /// to one size, because the number is then known only after sending.
    pub fn rows(&self, rank: u32, lane: u32) -> Option<u64> {
        let all_alike = !self.mixed.is_empty() || self.packing.is_some() && self.least_rows() > 0;
        if all_alike {
            return Some(self.batches(lane).saturating_mul(self.whole_size()));
        }
        self.groups.is_none().then(|| self.run.lane_rows(&self.steps, rank, lane, self.lanes()))
    }

    /// Number of batches of `lane` of a rank.
    pub fn batches(&self, lane: u32) -> u64 {
        self.run.lane_len(lane, self.lanes())
    }

    /// Summary of the plan for the caller.
    pub fn summary(&self) -> v1::PlanSummary {
        let order = self.order(self.train.epoch);
        let blocks = (0..order.windows()).map(|window| order.window(window).blocks.len()).min();
        v1::PlanSummary {
            snapshot: self.train.snapshot.clone(),
            plan_version: self.train.plan_version,
            plan_hash: format!("{:016x}", self.plan_hash()),
            rows: self.rows,
            steps: self.steps.count(),
            window_rows: match self.shuffle {
                Shuffle::Window { rows, .. } => Some(rows),
                Shuffle::Global => Some(self.rows),
                Shuffle::None => None,
            },
            windows: order.windows() as u64,
            blocks_per_window: blocks.unwrap_or(0) as u64,
            window_bytes: self
                .mixed
                .iter()
                .map(|mixed| mixed.largest_window(&mixed.order(mixed.train.epoch)))
                .fold(self.largest_window(&order), u64::saturating_add),
            batch_size: self.train.batch_size,
            world_size: u64::from(self.world_size()),
            remainder: self.train.remainder,
            groups: self.groups.as_ref().map(|_| self.epoch_items),
            mixed_rows: self.mixed.iter().map(|mixed| u64::from(mixed.steps.batch_size())).sum(),
            packs: self.packing.as_ref().map(|packing| packing.packs),
            max_pack_rows: self.train.max_pack_rows,
        }
    }

    /// Number of steps per epoch, equal for all ranks.
    pub fn steps(&self) -> u64 {
        self.steps.count()
    }

    /// Names and readers of the job's datasets; the first is its own.
    pub fn readers(&self) -> impl Iterator<Item = (&str, &Reader)> {
        let all = std::iter::once(self).chain(self.mixed.iter().map(AsRef::as_ref));
        all.map(|job| (job.train.dataset.as_str(), &job.reader))
    }

    /// Number of rows per epoch: the rows of the snapshot that the filter keeps.
    pub fn epoch_rows(&self) -> u64 {
        self.rows
    }

    /// Number of items of the order of an epoch: rows or groups.
    pub(crate) fn epoch_items(&self) -> u64 {
        self.epoch_items
    }

    /// True if an epoch contains a row of the block, or a group that begins in it.
    pub fn is_needed(&self, block: u32) -> bool {
        self.items[block as usize] > 0
    }

    /// True if the filter keeps every row of a block.
    pub(crate) fn keeps_all(&self, block: u32) -> bool {
        self.kept[block as usize] == self.snapshot().blocks()[block as usize].rows
    }

    /// Blocks and rows that form the frame of a block.
    pub(crate) fn pieces(&self, block: u32) -> Vec<Piece> {
        match &self.groups {
            None => vec![Piece { block, rows: 0..self.kept[block as usize] }],
            Some(groups) => groups.pieces(block, &self.kept),
        }
    }

    /// Number of groups that begin in a block; 0 without groups.
    pub(crate) fn groups_in(&self, block: u32) -> usize {
        self.groups.as_ref().map_or(0, |groups| groups.begun[block as usize] as usize)
    }

    /// True if rows are shuffled in groups.
    pub(crate) fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Estimated memory to build the frame of a block, in bytes, in addition to the frame: all rows of the columns
    /// read, for one block at a time, and at least the size of the frame.
    pub(crate) fn making_bytes(&self, block: u32) -> u64 {
        let read = |piece: Piece| self.read_bytes(piece.block);
        self.pieces(block).into_iter().map(read).max().unwrap_or(0).max(self.bytes_of(&[block]))
    }

    /// Estimated size of all rows of the columns read of a block, in bytes.
    pub(crate) fn read_bytes(&self, block: u32) -> u64 {
        let read = self.view.projection().iter();
        let read = read.map(|column| self.snapshot().column_bytes(block as usize, *column));
        read.fold(0, u64::saturating_add)
    }

    /// Blocks of which the filter keeps at least one row.
    pub(crate) fn kept_blocks(&self) -> impl Iterator<Item = u32> {
        (0..self.kept.len() as u32).filter(|block| self.kept[*block as usize] > 0)
    }

    /// View of the job's rows.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Position of the label in a row.
    pub(crate) fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// Fair-queue flow of decode work.
    pub(crate) fn decoding(&self) -> Flow {
        self.decoding
    }

    /// Snapshot that the job reads.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.reader.snapshot()
    }

    /// Reader of the snapshot's blocks.
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Epoch and step of batch `index` of `lane`.
    pub(crate) fn cursor(&self, lane: u32, index: u64) -> Cursor {
        self.run.cursor(u64::from(lane) + index * u64::from(self.lanes()))
    }

    /// True if consecutive batches of a stream are consecutive in the files: file order with one rank and one lane.
    pub(crate) fn is_one_run(&self) -> bool {
        let is_alone = self.world_size() == 1 && self.lanes() == 1 && self.mixed.is_empty();
        self.shuffle == Shuffle::None && is_alone
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.train.world_size.unwrap_or(1) as u32
    }

    pub(crate) fn lanes(&self) -> u32 {
        self.train.lanes.unwrap_or(1) as u32
    }

    /// Minimum number of rows of every batch, including padding.
    pub(crate) fn least_rows(&self) -> usize {
        if self.steps.remainder() == Remainder::Pad { self.whole_size() as usize } else { 0 }
    }

    /// Returns the order of `epoch`; O(blocks).
    pub(crate) fn order(&self, epoch: u64) -> EpochOrder {
        self.shuffled(self.shuffle, epoch)
    }

    /// Returns the order of `epoch` for the given shuffle. Windows are given in rows, even if the order counts groups.
    fn shuffled(&self, shuffle: Shuffle, epoch: u64) -> EpochOrder {
        let shuffle = match shuffle {
            Shuffle::Window { rows, keep_block_order } => {
                Shuffle::Window { rows: scaled(rows, self.epoch_items, self.rows), keep_block_order }
            }
            other => other,
        };
        EpochOrder::new(&self.items, shuffle, self.train.seed, epoch)
    }

    /// Size of a global batch of this dataset, in rows, groups or packs.
    pub(crate) fn global_batch(&self) -> u64 {
        self.steps.global_batch()
    }

    /// Approximate number of positions per step of all ranks in the order of an epoch.
    pub(crate) fn positions_a_step(&self) -> u64 {
        match &self.packing {
            Some(packing) => scaled(self.global_batch(), self.epoch_items, packing.packs),
            None => self.global_batch(),
        }
    }

    /// Estimated size of the frames of all blocks, in bytes.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.snapshot_bytes
    }

    /// Estimated size of the frames of `blocks`, in bytes.
    pub(crate) fn bytes_of(&self, blocks: &[u32]) -> u64 {
        let bytes = blocks.iter().map(|block| self.frame_bytes[*block as usize]);
        bytes.fold(0, u64::saturating_add)
    }

    /// Hash of the windows of an epoch: equal for jobs that read the same rows in the same windows.
    pub(crate) fn windows_key(&self) -> u64 {
        xxh3_64(format!("{}/{}", self.train.dataset, self.order_identity()).as_bytes())
    }

    /// Hash of the order of the rows in the global batches; the same on every server.
    fn plan_hash(&self) -> u64 {
        let global_batch = self.global_batch();
        let remainder = self.train.remainder().as_str_name();
        let mut identity = format!("{}/{global_batch}/{remainder}", self.order_identity());
        if let Some(packing) = &self.packing {
            identity += &format!("/packs of {}", packing.most_rows);
        }
        for mixed in &self.mixed {
            identity += &format!("/{}/{}", mixed.order_identity(), mixed.global_batch());
        }
        xxh3_64(identity.as_bytes())
    }

    /// Text of everything that determines the order of an epoch.
    fn order_identity(&self) -> String {
        let v1::Train { snapshot, plan_version, seed, .. } = &self.train;
        let shuffle = match self.shuffle {
            Shuffle::Window { rows, keep_block_order: false } => format!("window {rows}"),
            Shuffle::Window { rows, keep_block_order: true } => format!("in_order {rows}"),
            Shuffle::Global => "global".to_owned(),
            Shuffle::None => "none".to_owned(),
        };
        format!("{snapshot}/{plan_version}/{seed}/{shuffle}{}", self.asked)
    }

    fn largest_window(&self, order: &EpochOrder) -> u64 {
        (0..order.windows()).map(|window| self.bytes_of(order.window(window).blocks)).max().unwrap_or(0)
    }

    /// Checks that a batch fits in `max_batch_bytes` by its fixed-width columns alone, and that the largest window fits
    /// in `memory_bytes`.
    ///
    /// # Errors
    /// [`Error::TooLarge`], with the largest window that fits, if any.
    pub(crate) fn check_fits(&self, memory_bytes: u64, max_batch_bytes: u64) -> Result<(), Error> {
        // For groups: `batch_size` groups with the mean number of rows.
        let rows = match self.groups {
            _ if self.packing.is_some() => self.whole_size().min(self.rows.max(self.least_rows() as u64)),
            None => self.train.batch_size,
            Some(_) => {
                let groups = u128::from(self.train.batch_size.min(self.epoch_items));
                (groups * u128::from(self.rows) / u128::from(self.epoch_items.max(1))) as u64
            }
        };
        let batch = rows.saturating_mul(self.view.least_row_bytes());
        if batch > max_batch_bytes {
            return Err(Error::batch_too_large(rows, batch, max_batch_bytes));
        }
        if let Some(groups) = &self.groups {
            let needed = groups.longest.saturating_mul(self.view.least_row_bytes().max(1));
            if needed > max_batch_bytes || u32::try_from(groups.longest).is_err() {
                let what = format!("the longest group, of {} rows,", groups.longest);
                let advice =
                    "group by columns whose values last shorter, or leave such rows out by a filter".into();
                return Err(Error::TooLarge { what, needed, limit: max_batch_bytes, advice });
            }
        }
        // A mixture holds one window of each dataset at a time.
        let needed = self.mixed.iter().map(|mixed| mixed.needed_bytes());
        let needed = needed.fold(self.needed_bytes(), u64::saturating_add);
        if needed <= memory_bytes {
            return Ok(());
        }
        let advice = match self.largest_window_rows_within(memory_bytes) {
            Some(rows) => {
                format!("the largest shuffle.window_rows that fits is {rows}; or raise --cache-memory")
            }
            None => "no window fits: raise --cache-memory, ask for fewer columns or write smaller row groups"
                .into(),
        };
        let what = format!("the largest shuffle window of '{}'", self.train.dataset);
        Err(Error::TooLarge { what, needed, limit: memory_bytes, advice })
    }

    /// Size of the largest window of the first epochs, in bytes.
    fn needed_bytes(&self) -> u64 {
        let epochs = (CHECKED_BLOCKS / (self.items.len() as u64 + 1)).clamp(1, CHECKED_EPOCHS);
        let last = self.train.epoch.saturating_add(self.train.epochs.unwrap_or(1).min(epochs) - 1);
        let needed = (self.train.epoch..=last).map(|epoch| self.largest_window(&self.order(epoch))).max();
        needed.unwrap_or(0)
    }

    fn largest_window_rows_within(&self, memory_bytes: u64) -> Option<u64> {
        let keep_block_order = matches!(self.shuffle, Shuffle::Window { keep_block_order: true, .. });
        let fits = |rows: u64| {
            let shuffle = Shuffle::Window { rows, keep_block_order };
            let all = std::iter::once(self).chain(self.mixed.iter().map(AsRef::as_ref));
            let windows = all.map(|job| job.largest_window(&job.shuffled(shuffle, self.train.epoch)));
            windows.fold(0, u64::saturating_add) <= memory_bytes
        };
        // The size of a window does not grow strictly with its rows, so the result is a value that was tested.
        let (mut low, mut high) = (1, self.rows);
        let mut best = fits(low).then_some(low)?;
        while low <= high {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                best = middle;
                low = middle + 1;
            } else {
                high = middle - 1;
            }
        }
        Some(best)
    }
}

/// Scales `count` by `to / from`, rounded up, at least 1.
fn scaled(count: u64, to: u64, from: u64) -> u64 {
    if to == from {
        return count;
    }
    let scaled = (u128::from(count) * u128::from(to)).div_ceil(u128::from(from.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

fn hash_of(counts: &[u32]) -> u64 {
    xxh3_64(&counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>())
}

fn of_plan(error: &forebay_plan::Error) -> Error {
    match error {
        forebay_plan::Error::Zero { field } => Error::invalid(*field, "is 0, expected at least 1"),
        forebay_plan::Error::StartStepPastEnd { start_step, steps } => {
            let reason =
                format!("is {start_step}, past an epoch of {steps} steps; {steps} is the next epoch");
            Error::invalid("start_step", reason)
        }
    }
}

fn within(field: &str, value: u64, least: u64, most: u64) -> Result<u64, Error> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("is {value}, expected {least} to {most}")))
}

/// Returns the label column, if one is named.
pub(crate) fn label_column(snapshot: &Snapshot, label: &str) -> Result<Option<usize>, Error> {
    if label.is_empty() {
        return Ok(None);
    }
    let schema = snapshot.schema();
    let column = find_column("label_column", label, schema)?;
    let field = schema.field(column);
    if field.data_type().is_numeric() || field.data_type() == &arrow_schema::DataType::Boolean {
        return Ok(Some(column));
    }
    Err(Error::invalid(
        "label_column",
        format!("column '{label}' is of type {}, expected a number", field.data_type()),
    ))
}

fn resolve_shuffle(
    shuffle: Option<&v1::Shuffle>,
    global_batch: u64,
    kept: u64,
    snapshot: &Snapshot,
) -> Result<Shuffle, Error> {
    let shuffle = shuffle.copied().unwrap_or_default();
    match (shuffle.window_rows, shuffle.global, shuffle.none) {
        (Some(0), None, None) => Err(Error::invalid("shuffle.window_rows", "is 0, expected at least 1")),
        (Some(rows), None, None) => Ok(Shuffle::Window { rows, keep_block_order: shuffle.keep_block_order }),
        (None, Some(_), None) if !shuffle.keep_block_order => Ok(Shuffle::Global),
        (None, None, Some(_)) if !shuffle.keep_block_order => Ok(Shuffle::None),
        (None, None, None) => {
            let bytes = u128::from(snapshot.uncompressed_bytes()) * u128::from(kept);
            let bytes = bytes / u128::from(snapshot.rows().max(1));
            let rows = default_window_rows(global_batch, kept, bytes as u64);
            Ok(Shuffle::Window { rows, keep_block_order: shuffle.keep_block_order })
        }
        _ => Err(Error::invalid(
            "shuffle",
            "expected one of window_rows, global and none; keep_block_order goes with window_rows alone",
        )),
    }
}

fn shuffle_message(shuffle: Shuffle) -> v1::Shuffle {
    match shuffle {
        Shuffle::Window { rows, keep_block_order } => {
            v1::Shuffle { window_rows: Some(rows), keep_block_order, ..v1::Shuffle::default() }
        }
        Shuffle::Global => v1::Shuffle { global: Some(v1::shuffle::Global {}), ..v1::Shuffle::default() },
        Shuffle::None => v1::Shuffle { none: Some(v1::shuffle::None {}), ..v1::Shuffle::default() },
    }
}
