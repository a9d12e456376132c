//! The body of a batch: its buffers are checked before anything is decoded, and those of the wanted columns are copied once.
//!
//! The buffers of a body lie one behind the other, so that the decoded columns have at most as many bytes as the message. Views may refer
//! to the same bytes; the sum of their lengths has a limit. The number of rows limits types whose values need no bytes.

use std::{collections::HashMap, sync::Arc};

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::{
    Buffer as Place, FieldNode, RecordBatch as Encoded, RecordBatchArgs, reader::read_record_batch,
};
use arrow_schema::DataType;
use flatbuffers::FlatBufferBuilder;

use super::columns::{Column, Columns, buffers, is_view};

/// Unit of the offsets of buffers, in bytes.
const ALIGNMENT: u64 = 8;
/// Alignment of copied buffers, in bytes: that of all values, and of a line of the CPU cache.
const COPY_ALIGNMENT: usize = 64;
/// Size of a view, in bytes. Its first four bytes are the length of the value.
const VIEW_BYTES: usize = 16;
/// Length up to which a view contains its value, in bytes.
const INLINE_VIEW_BYTES: u32 = 12;
/// Total length of the values of all views of a message that is permitted for any message, in bytes. A larger message may have as many
/// bytes in views as in its body.
const MAX_VIEW_BYTES: u64 = 16 << 20;
/// Memory of a decoded field besides its values, in bytes.
const FIELD_BYTES: u64 = 512;

/// A batch whose sizes were checked.
pub(super) struct Checked<'a> {
    columns: &'a Columns,
    body: &'a [u8],
    rows: i64,
    nodes: Vec<FieldNode>,
    buffers: Vec<Place>,
    variadic: Vec<i64>,
    /// Memory of the decoded batch, in bytes.
    pub(super) bytes: u64,
}

impl<'a> Checked<'a> {
    /// Checks the header of a batch against its columns and its body.
    ///
    /// # Errors
    /// Description of the fault of the batch, with the expected form.
    pub(super) fn new(
        columns: &'a Columns,
        batch: Encoded<'_>,
        body: &'a [u8],
        max_rows: usize,
    ) -> Result<Self, String> {
        if batch.compression().is_some() {
            return Err("compressed batches are not supported; send them uncompressed".to_owned());
        }
        let rows = batch.length();
        if usize::try_from(rows).map_or(true, |rows| rows > max_rows) {
            return Err(format!("{rows} at once, expected at most {max_rows}"));
        }
        let all_nodes = batch.nodes().ok_or("the nodes are missing")?;
        let all_buffers = batch.buffers().ok_or("the buffers are missing")?;
        check_places(all_buffers.iter(), body.len())?;
        let variadic_counts: Vec<i64> = batch.variadicBufferCounts().into_iter().flatten().collect();
        // Number of buffers of views before each column of views.
        let mut before = vec![0];
        for count in &variadic_counts {
            let count = usize::try_from(*count).ok().filter(|count| *count <= all_buffers.len());
            let count = count.ok_or("a column of views has more buffers than the batch")?;
            before.push(before.last().unwrap_or(&0) + count);
        }
        let (mut nodes, mut buffers, mut variadic) = (Vec::new(), Vec::new(), Vec::new());
        for Column { nodes: own_nodes, buffers: own_buffers, views } in &columns.columns {
            let (Some(start), Some(end)) = (before.get(views.start), before.get(views.end)) else {
                return Err("the number of buffers of a column of views is missing".to_owned());
            };
            let own_buffers = own_buffers.start + start..own_buffers.end + end;
            if own_nodes.end > all_nodes.len() || own_buffers.end > all_buffers.len() {
                return Err("the batch has fewer nodes or buffers than its schema".to_owned());
            }
            nodes.extend(own_nodes.clone().map(|at| *all_nodes.get(at)));
            buffers.extend(own_buffers.map(|at| *all_buffers.get(at)));
            variadic.extend_from_slice(&variadic_counts[views.clone()]);
        }
        let mut checked = Self { columns, body, rows, nodes, buffers, variadic, bytes: 0 };
        checked.check_columns(max_rows as u64)?;
        Ok(checked)
    }

    /// Checks each column, and sets the size of the decoded batch.
    fn check_columns(&mut self, max_rows: u64) -> Result<(), String> {
        let mut walk = Walk { batch: self, max_rows, node: 0, buffer: 0, view: 0, view_bytes: 0 };
        for field in self.columns.schema.fields() {
            walk.field(field.data_type())?;
        }
        let view_bytes = walk.view_bytes;
        let limit = MAX_VIEW_BYTES.max(self.body.len() as u64);
        if view_bytes > limit {
            return Err(format!(
                "the values of views have {view_bytes} bytes, expected at most {limit}; send them as Utf8 or Binary"
            ));
        }
        let copied: u64 = self.buffers.iter().map(|place| aligned(place.length())).sum();
        self.bytes = copied + view_bytes + FIELD_BYTES * self.nodes.len() as u64;
        Ok(())
    }

    /// Bytes of a buffer.
    fn part(&self, place: &Place) -> &'a [u8] {
        // An empty buffer may have any offset.
        let range = |start: i64, length: i64| {
            Some(usize::try_from(start).ok()?..usize::try_from(start + length).ok()?)
        };
        if place.length() <= 0 {
            return &[];
        }
        range(place.offset(), place.length()).and_then(|range| self.body.get(range)).unwrap_or_default()
    }

    /// Copies the buffers into aligned memory, and decodes them there.
    ///
    /// # Errors
    /// If a buffer is too short, or its values are not valid.
    pub(super) fn decode(self) -> Result<RecordBatch, String> {
        let total: u64 = self.buffers.iter().map(|place| aligned(place.length())).sum();
        let mut copy = MutableBuffer::with_capacity(usize::try_from(total).unwrap_or(0));
        let mut places = Vec::with_capacity(self.buffers.len());
        for place in &self.buffers {
            let part = self.part(place);
            let start = copy.len();
            copy.extend_from_slice(part);
            copy.resize(copy.len().next_multiple_of(COPY_ALIGNMENT), 0);
            places.push(Place::new(start as i64, part.len() as i64));
        }
        let mut builder = FlatBufferBuilder::new();
        let arguments = RecordBatchArgs {
            length: self.rows,
            nodes: Some(builder.create_vector(&self.nodes)),
            buffers: Some(builder.create_vector(&places)),
            compression: None,
            variadicBufferCounts: (!self.variadic.is_empty()).then(|| builder.create_vector(&self.variadic)),
        };
        let batch = Encoded::create(&mut builder, &arguments);
        builder.finish_minimal(batch);
        let batch =
            flatbuffers::root::<Encoded<'_>>(builder.finished_data()).map_err(|error| error.to_string())?;
        let (copy, schema) = (Buffer::from(copy), Arc::clone(&self.columns.schema));
        read_record_batch(&copy, batch, schema, &HashMap::new(), None, &self.columns.version)
            .map_err(|error| error.to_string())
    }
}

fn aligned(length: i64) -> u64 {
    u64::try_from(length).unwrap_or(0).next_multiple_of(COPY_ALIGNMENT as u64)
}

/// Checks that buffers begin at multiples of 8, are inside of the body, and do not overlap. Empty ones may be anywhere.
fn check_places<'a>(places: impl Iterator<Item = &'a Place>, body_bytes: usize) -> Result<(), String> {
    let mut ranges = Vec::new();
    for place in places.filter(|place| place.length() != 0) {
        let range = u64::try_from(place.offset()).ok().zip(u64::try_from(place.length()).ok());
        let range = range.and_then(|(start, length)| Some(start..start.checked_add(length)?));
        let Some(range) = range.filter(|range| range.end <= body_bytes as u64) else {
            return Err("a buffer is outside of the message".to_owned());
        };
        if range.start % ALIGNMENT != 0 {
            let start = range.start;
            return Err(format!(
                "a buffer begins at byte {start} of the body, expected a multiple of {ALIGNMENT}"
            ));
        }
        ranges.push(range);
    }
    if !ranges.is_sorted_by_key(|range| range.start) {
        ranges.sort_unstable_by_key(|range| range.start);
    }
    match ranges.windows(2).find(|pair| pair[0].end > pair[1].start) {
        Some(pair) => Err(format!(
            "two buffers share the bytes from {} to {} of the body, expected each buffer to have its own",
            pair[1].start,
            pair[0].end.min(pair[1].end)
        )),
        None => Ok(()),
    }
}

/// A walk over the fields of a batch, in the order of their nodes and buffers.
struct Walk<'a, 'b> {
    batch: &'a Checked<'b>,
    max_rows: u64,
    node: usize,
    buffer: usize,
    view: usize,
    /// Total length of the values of all views, in bytes.
    view_bytes: u64,
}

impl Walk<'_, '_> {
    /// Checks a field and its children. Returns true if each of its values takes at least a bit of a buffer.
    fn field(&mut self, data_type: &DataType) -> Result<bool, String> {
        let node = self.batch.nodes.get(self.node).ok_or("a node is missing")?;
        let length = u64::try_from(node.length()).map_err(|_| "a length is negative")?;
        if !u64::try_from(node.null_count()).is_ok_and(|nulls| nulls <= length) {
            return Err(format!("a column has {length} values, {} of them null", node.null_count()));
        }
        self.node += 1;
        let first = self.buffer;
        self.buffer += buffers(data_type, self.batch.columns.version);
        if is_view(data_type) {
            let count = self.batch.variadic.get(self.view).copied().unwrap_or(0);
            self.view += 1;
            self.buffer += usize::try_from(count).unwrap_or(0);
            self.add_views(first + 1, length);
        }
        let has_bytes = match data_type {
            DataType::Null => false,
            DataType::FixedSizeBinary(width) => *width > 0,
            DataType::FixedSizeList(item, width) => self.field(item.data_type())? && *width > 0,
            DataType::Struct(fields) => {
                let mut any = false;
                for field in fields {
                    any |= self.field(field.data_type())?;
                }
                any
            }
            DataType::RunEndEncoded(ends, values) => {
                self.field(ends.data_type())?;
                self.field(values.data_type())?;
                false
            }
            DataType::Union(fields, _) => {
                for (_, field) in fields.iter() {
                    self.field(field.data_type())?;
                }
                true
            }
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::Map(item, _)
            | DataType::ListView(item)
            | DataType::LargeListView(item) => {
                self.field(item.data_type())?;
                true
            }
            _ => true,
        };
        if !has_bytes && length > self.max_rows {
            let max_rows = self.max_rows;
            return Err(format!(
                "a column has {length} values of type {data_type}, which need no bytes; expected at most {max_rows}"
            ));
        }
        Ok(has_bytes)
    }

    /// Adds the lengths of views that are not in the views themselves.
    fn add_views(&mut self, buffer: usize, length: u64) {
        let views = self.batch.buffers.get(buffer).map_or(&[][..], |place| self.batch.part(place));
        let views = views.as_chunks::<VIEW_BYTES>().0.iter();
        for view in views.take(usize::try_from(length).unwrap_or(usize::MAX)) {
            let length = u32::from_le_bytes([view[0], view[1], view[2], view[3]]);
            if length > INLINE_VIEW_BYTES {
                self.view_bytes += u64::from(length);
            }
        }
    }
}
