//! Jobs: requests resolved against a snapshot.

use std::sync::Arc;

use forebay_plan::{Cursor, Run, Shuffle, Steps};
use forebay_proto::v1;
use forebay_storage::{Reader, Snapshot};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    footprint::Footprint,
    order::{JobOrder, scaled},
    packing::Packing,
    rows::JobRows,
    validate::{
        Dimensions, label_column, plan_error, remainder_message, resolve_partitions, resolve_remainder,
        resolve_shuffle, shuffle_message,
    },
};
use crate::{
    Counts, Error, Flow, Tenant, View,
    frame::label::Label,
    selection::groups::BlockRows,
    view::{ViewUse, expressions::Expressions, row_selection::RowSelection},
};

/// A job: columns, row order and step range, for all ranks and lanes.
///
/// All defaults are resolved: the batch at (epoch, step, rank) is a pure function of a job.
#[derive(Debug)]
pub struct Job {
    train: v1::Train,
    reader: Reader,
    view: Arc<View>,
    /// Kept rows and groups of each block.
    pub(crate) rows: JobRows,
    /// Order of the rows.
    pub(crate) order: JobOrder,
    /// Estimated sizes of the frames.
    pub(crate) footprint: Footprint,
    /// Other datasets of a mixture. Their rows have the same layout as those of this dataset.
    pub(crate) mixed: Vec<Arc<Job>>,
    /// Number of steps per epoch of the mixture, for one of its other datasets.
    pub(crate) mixture_steps: Option<u64>,
    /// Position of the label in a row, if one is named and delivered.
    pub(crate) label: Option<Label>,
    /// Fair-queue flow of decode work.
    pub(crate) decode_flow: Flow,
}

/// Dataset of a job, with its counts and compiled expressions.
pub(crate) struct Resolved<'a> {
    pub(crate) reader: Reader,
    /// Required if the request has a filter or groups.
    pub(crate) counts: Option<&'a Counts>,
    /// Expressions that were compiled before.
    pub(crate) compiled: &'a Expressions,
}

impl Job {
    /// Creates a job for lookups over the rows of a dataset that the filter of `train` keeps, with the columns of `train`.
    pub(crate) fn for_lookups(train: &v1::Train, of: Resolved<'_>) -> Result<Self, Error> {
        let none = v1::Shuffle { none: Some(v1::shuffle::None {}), ..v1::Shuffle::default() };
        let train = v1::Train { batch_size: 1, shuffle: Some(none), ..train.clone() };
        Self::resolve_dataset(&train, of, 1, ViewUse::Lookup)
    }

    /// Resolves one dataset, which contributes `own_rows` rows to each batch of a rank.
    pub(crate) fn resolve_dataset(
        train: &v1::Train,
        Resolved { reader, counts, compiled }: Resolved<'_>,
        own_rows: u64,
        used: ViewUse,
    ) -> Result<Self, Error> {
        let snapshot = Arc::clone(reader.snapshot());
        let Dimensions { world_size, lanes, epochs, plan_version, semantics } = Dimensions::of(train)?;
        let view = View::resolve_for(used, &snapshot, train, compiled)?;
        let selection = RowSelection { lengths: train.max_pack_rows > 0, ..view.row_selection() };
        let counts = match (selection.identity(&snapshot), counts) {
            (None, _) => None,
            (Some(_), Some(counts)) if counts.are_of(&snapshot, &selection) => Some(counts),
            (Some(_), _) => return Err(Error::Internal("a filter or groups that were not counted".into())),
        };
        let rows = JobRows::new(&snapshot, counts);
        let label = label_column(&snapshot, train)?.and_then(|column| Label::of(&view, column));

        let packing = Packing::of(train, rows.groups.as_ref(), rows.epoch_rows)?;
        let global_batch = own_rows * world_size;
        let global_rows = match &packing {
            Some(packing) => global_batch * packing.max_rows,
            None => scaled(global_batch, rows.epoch_rows, rows.epoch_items),
        };
        let partitions = resolve_partitions(train, global_batch, &rows.items)?;
        let shuffle = resolve_shuffle(train.shuffle.as_ref(), global_rows, partitions, &rows, &snapshot)?;
        let remainder = resolve_remainder(train, world_size, used == ViewUse::Mixture)?;
        let units = packing.as_ref().map_or(rows.epoch_items, |packing| packing.packs);
        let steps = Steps::new(units, own_rows as u32, world_size as u32, remainder).map_err(plan_error)?;
        let limit = (train.steps > 0).then_some(train.steps);
        let run = Run::new(&steps, train.epoch, epochs, train.start_step, limit).map_err(plan_error)?;

        let selected = rows.identity(&view, &train.filter);
        let prefix = format!("{}/{plan_version}", snapshot.id());
        let ordered = (shuffle, partitions, train.seed);
        let order = JobOrder::new(&rows, ordered, (steps, run), packing, (&prefix, &selected));
        let footprint = Footprint::new(&snapshot, &view, &rows);
        let train = v1::Train {
            snapshot: snapshot.id().to_owned(),
            shuffle: Some(shuffle_message(shuffle, partitions)),
            epochs: Some(epochs),
            world_size: Some(world_size),
            lanes: Some(lanes),
            remainder: remainder_message(remainder),
            rank: None,
            lane: None,
            content_hash: Some(train.content_hash.unwrap_or(true)),
            plan_version,
            semantics,
            values: compiled.counted(&train.values),
            ..train.clone()
        };
        let (view, mixed, decode_flow) = (Arc::new(view), Vec::new(), Flow::new());
        Ok(Self {
            train,
            reader,
            view,
            rows,
            order,
            footprint,
            mixed,
            mixture_steps: None,
            label,
            decode_flow,
        })
    }

    /// Makes the decode work of the job, and of the other datasets of its mixture, work of `tenant`.
    pub(crate) fn belongs_to(&mut self, tenant: Tenant) {
        self.decode_flow = Flow::of(tenant);
        for other in &mut self.mixed {
            // A job that is being resolved is not shared yet.
            if let Some(other) = Arc::get_mut(other) {
                other.belongs_to(tenant);
            }
        }
    }

    /// Adds another dataset of the mixture, resolved from part `index` of the request.
    pub(crate) fn add_mixed(&mut self, index: usize, other: Self) {
        self.train.mix[index].snapshot.clone_from(&other.train.snapshot);
        self.mixed.push(Arc::new(other));
    }

    /// Makes this job one of the other datasets of the mixture of `main`.
    pub(crate) fn join_mixture(&mut self, main: &Self) {
        let run = main.order.run;
        self.order.run = run;
        self.mixture_steps = Some(main.steps());
        if let Some(last) = run.len().checked_sub(1) {
            // Their windows are checked against the memory.
            let (first, last) = (self.epochs_at(run.cursor(0)).0, self.epochs_at(run.cursor(last)).1);
            (self.train.epoch, self.train.epochs) = (first, Some((last - first.min(last)).saturating_add(1)));
        }
    }

    /// First and last epoch of this dataset in a step of a mixture. Each partition repeats on its own, and within a step some
    /// ranks may be in the next epoch already.
    fn epochs_at(&self, step: Cursor) -> (u64, u64) {
        let of_rank = |rank| self.partitions_of(rank).flat_map(move |part| self.ranges(part, step, rank));
        let epochs = (0..self.world_size()).flat_map(of_rank).map(|(epoch, _)| epoch);
        epochs
            .fold(None, |found: Option<(u64, u64)>, epoch| match found {
                None => Some((epoch, epoch)),
                Some((first, last)) => Some((first.min(epoch), last.max(epoch))),
            })
            .unwrap_or_default()
    }

    /// The request with all defaults resolved, without a rank and a lane.
    pub fn train(&self) -> &v1::Train {
        &self.train
    }

    /// Returns the ticket of one rank and lane: the resolved request with both set.
    pub fn ticket(&self, rank: u32, lane: u32) -> v1::Train {
        v1::Train { rank: Some(rank.into()), lane: Some(lane.into()), ..self.train.clone() }
    }

    /// Ranks and lanes, rank-major: all, or those of `rank` and `lane`, which must be below the world size and the number
    /// of lanes.
    pub fn endpoints(
        &self,
        rank: Option<u64>,
        lane: Option<u64>,
    ) -> impl Iterator<Item = (u32, u32)> + use<> {
        let one_or_all = |one: Option<u64>, count: u32| match one {
            Some(one) => one as u32..one as u32 + 1,
            None => 0..count,
        };
        let lanes = one_or_all(lane, self.lanes());
        one_or_all(rank, self.world_size()).flat_map(move |rank| lanes.clone().map(move |lane| (rank, lane)))
    }

    /// Exact number of rows of one rank and lane, including padding. `None` with groups, unless all batches are padded
    /// to one size, because the number is then known only after sending.
    pub fn rows(&self, rank: u32, lane: u32) -> Option<u64> {
        let has_one_size = !self.mixed.is_empty() || self.is_packed() && self.min_rows() > 0;
        if has_one_size {
            return Some(self.batches(lane).saturating_mul(self.full_batch_size()));
        }
        let rows = || self.order.run.lane_rows(&self.order.steps, rank, lane, self.lanes());
        (!self.has_groups()).then(rows)
    }

    /// Number of batches of `lane` of a rank.
    pub fn batches(&self, lane: u32) -> u64 {
        self.order.run.lane_len(lane, self.lanes())
    }

    /// Number of steps per epoch, equal for all ranks.
    pub fn steps(&self) -> u64 {
        self.order.steps.count()
    }

    /// Names and readers of the job's datasets; the first is its own.
    pub fn readers(&self) -> impl Iterator<Item = (&str, &Reader)> {
        self.parts().map(|job| (job.train.dataset.as_str(), &job.reader))
    }

    /// This job, followed by those of the other datasets of its mixture.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.mixed.iter().map(AsRef::as_ref))
    }

    /// Datasets of the job: the name, the snapshot, and the columns of its schema that are read.
    pub fn columns_read(&self) -> impl Iterator<Item = (&str, &Arc<Snapshot>, &[usize])> {
        self.parts().map(|job| (job.train.dataset.as_str(), job.snapshot(), job.view.projection()))
    }

    /// Number of rows per epoch: the rows of the snapshot that the filter keeps.
    pub fn epoch_rows(&self) -> u64 {
        self.rows.epoch_rows
    }

    /// True if an epoch contains a row of the block, or a group that begins in it.
    pub fn is_needed(&self, block: u32) -> bool {
        self.rows.items[block as usize] > 0
    }

    /// True if the filter keeps every row of a block.
    pub(crate) fn keeps_all(&self, block: u32) -> bool {
        self.rows.kept[block as usize] == self.snapshot().blocks()[block as usize].rows
    }

    /// True if rows are shuffled in groups.
    pub(crate) fn has_groups(&self) -> bool {
        self.rows.groups.is_some()
    }

    /// Estimated memory to build the frame of a block, in bytes, in addition to the frame: all rows of the columns
    /// read, for one block at a time, and at least the size of the frame.
    pub(crate) fn build_bytes(&self, block: u32) -> u64 {
        let read = |rows: BlockRows| self.read_bytes(rows.block);
        self.rows.of_frame(block).into_iter().map(read).max().unwrap_or(0).max(self.bytes_of(&[block]))
    }

    /// Estimated size of all rows of the columns read of a block, in bytes.
    pub(crate) fn read_bytes(&self, block: u32) -> u64 {
        let read = self.view.projection().iter();
        let read = read.map(|column| self.snapshot().column_bytes(block as usize, *column));
        read.fold(0, u64::saturating_add)
    }

    /// Estimated size of the frames of `blocks`, in bytes.
    pub(crate) fn bytes_of(&self, blocks: &[u32]) -> u64 {
        self.footprint.bytes_of(blocks)
    }

    /// View of the job's rows.
    pub fn view(&self) -> &Arc<View> {
        &self.view
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
        self.order.run.cursor(u64::from(lane) + index * u64::from(self.lanes()))
    }

    /// True if consecutive batches of a stream are consecutive in the files: file order with one rank and one lane.
    pub(crate) fn is_file_order(&self) -> bool {
        let is_alone = self.world_size() == 1 && self.lanes() == 1 && self.mixed.is_empty();
        self.order.shuffle == Shuffle::None && is_alone
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.train.world_size.unwrap_or(1) as u32
    }

    pub(crate) fn lanes(&self) -> u32 {
        self.train.lanes.unwrap_or(1) as u32
    }

    /// Key of the windows of an epoch: equal for jobs that read the same rows in the same windows.
    pub(crate) fn order_key(&self) -> u128 {
        self.order.key(&self.train.dataset)
    }

    /// Hash of the order of the rows in the global batches; the same on every server.
    pub(crate) fn plan_hash(&self) -> u64 {
        let remainder = self.train.remainder().as_str_name();
        let mut identity = format!("{}/{}/{remainder}", self.order.identity, self.global_batch());
        if let Some(packing) = self.order.packing.as_ref() {
            identity += &format!("/packs of {}", packing.max_rows);
        }
        for mixed in &self.mixed {
            identity += &format!("/{}/{}", mixed.order.identity, mixed.global_batch());
        }
        xxh3_64(identity.as_bytes())
    }
}

#[cfg(test)]
mod tests;
