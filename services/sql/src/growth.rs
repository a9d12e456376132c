//! Estimated sizes of computed values, before they are computed.

use std::{collections::BTreeMap, sync::Arc};

use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch, cast::AsArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Schema};
use datafusion_common::{
    DFSchema, Result, ScalarValue,
    tree_node::{TreeNode, TreeNodeRecursion},
};
use datafusion_expr::{Expr, ExprSchemable, expr::Like};

/// Bytes of a number or a time as text, rounded up.
const TEXT_BYTES: u64 = 40;

/// Wildcards of the patterns of LIKE.
const WILDCARDS: [char; 2] = ['%', '_'];

/// Size of a value that counts as one in the cost of an evaluation, in bytes.
pub(crate) const BYTES_PER_VALUE: u64 = 4;
/// Maximum cost of one step of an [`Evaluation`](crate::Evaluation), in computed values, of which four bytes each may be in memory.
/// The step of a single row may exceed it. A step takes some tens of milliseconds.
pub const SLICE_COST: u64 = 4 << 20;

/// A size in bytes that is linear in the number of rows and in the sizes of the input columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Bytes per row, independent of the inputs.
    row_bytes: u64,
    /// Bytes per byte of each input column, by the position of the column in the schema.
    columns: BTreeMap<usize, u64>,
}

/// Sizes of an expression.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sizes {
    /// Size of the result.
    result: Growth,
    /// Size of the results of all parts together, which are in memory during evaluation.
    work: Growth,
}

impl Growth {
    fn of_rows(row_bytes: u64) -> Self {
        Self { row_bytes, columns: BTreeMap::new() }
    }

    fn plus(mut self, other: &Self) -> Self {
        self.row_bytes = self.row_bytes.saturating_add(other.row_bytes);
        for (column, factor) in &other.columns {
            let sum = self.columns.entry(*column).or_default();
            *sum = sum.saturating_add(*factor);
        }
        self
    }

    fn times(mut self, factor: u64) -> Self {
        self.columns.values_mut().for_each(|of| *of = of.saturating_mul(factor));
        Self { row_bytes: self.row_bytes.saturating_mul(factor), ..self }
    }

    fn bytes(&self, rows: u64, bytes_of: impl Fn(usize) -> u64) -> u64 {
        let columns = self.columns.iter().map(|(column, factor)| bytes_of(*column).saturating_mul(*factor));
        columns.fold(rows.saturating_mul(self.row_bytes), u64::saturating_add)
    }
}

impl Sizes {
    /// Sizes of `expression` over columns of `schema`.
    ///
    /// # Errors
    /// If a part has no type.
    pub(crate) fn of(expression: &Expr, schema: &DFSchema, columns: &Schema) -> Result<Self> {
        let mut work = Growth::default();
        let result = result(expression, schema, columns, &mut work)?;
        Ok(Self { result, work })
    }

    /// Size of the results for `rows` rows, given the size of each input column.
    pub(crate) fn result_bytes(&self, rows: u64, bytes_of: impl Fn(usize) -> u64) -> u64 {
        self.result.bytes(rows, bytes_of)
    }

    /// Memory in bytes that evaluating the rows of `inputs` allocates. `inputs` contains only the input columns, in
    /// schema order.
    pub(crate) fn work_bytes(&self, inputs: &RecordBatch, positions: &[usize]) -> u64 {
        let bytes_of = |column: usize| {
            let found = positions.iter().position(|position| *position == column);
            let found = found.and_then(|found| inputs.columns().get(found));
            found.map_or(0, array_bytes)
        };
        self.work.bytes(inputs.num_rows() as u64, bytes_of)
    }
}

/// Splits a batch into halves, without a copy, until each is small or has one row.
pub fn slices(batch: RecordBatch, is_small: &impl Fn(&RecordBatch) -> bool) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    if rows <= 1 || is_small(&batch) {
        return vec![batch];
    }
    let mut halves = slices(batch.slice(0, rows / 2), is_small);
    halves.extend(slices(batch.slice(rows / 2, rows - rows / 2), is_small));
    halves
}

/// Size of the result of a part. Adds the sizes of the part and of its children to `work`.
fn result(part: &Expr, schema: &DFSchema, columns: &Schema, work: &mut Growth) -> Result<Growth> {
    let (mut children, mut types) = (Vec::new(), Vec::new());
    part.apply_children(|child| {
        children.push(result(child, schema, columns, work)?);
        types.push(child.get_type(schema)?);
        Ok(TreeNodeRecursion::Continue)
    })?;
    let data_type = part.get_type(schema)?;
    let sum = || children.iter().fold(Growth::default(), Growth::plus);
    let grown = match (part, width(&data_type)) {
        (Expr::Column(column), _) => {
            Growth { row_bytes: 0, columns: [(columns.index_of(&column.name)?, 1)].into() }
        }
        (Expr::Literal(value, _), _) => Growth::of_rows(literal_bytes(value)),
        (_, Some(width)) => Growth::of_rows(width),
        (Expr::Cast(_) | Expr::TryCast(_), None) => {
            sum().times(item_ratio(types.first(), &data_type)).plus(&Growth::of_rows(TEXT_BYTES))
        }
        (Expr::ScalarFunction(call), None) if call.name() == "list_pad" => {
            let pad_bytes = match &call.args[..] {
                [_, Expr::Literal(len, _), Expr::Literal(value, _)] => {
                    let len = match len {
                        ScalarValue::Int64(Some(len)) => u64::try_from(*len).unwrap_or(0),
                        _ => 0,
                    };
                    len.saturating_mul(literal_bytes(value).max(1))
                }
                _ => 0,
            };
            let list = children.first().cloned().unwrap_or_default();
            list.plus(&Growth::of_rows(pad_bytes.saturating_add(8)))
        }
        // Functions whose result is about as large as their first argument, or smaller.
        (Expr::ScalarFunction(call), None)
            if matches!(
                call.name(),
                "get_field"
                    | "list_truncate"
                    | "substr"
                    | "left"
                    | "right"
                    | "split_part"
                    | "btrim"
                    | "ltrim"
                    | "rtrim"
                    | "lower"
                    | "upper"
                    | "initcap"
                    | "reverse"
            ) =>
        {
            children.first().cloned().unwrap_or_default().plus(&Growth::of_rows(8))
        }
        // `||`. The results of all other operators have a fixed width.
        (Expr::BinaryExpr(_), None) => sum().plus(&Growth::of_rows(2 * TEXT_BYTES)),
        // A separator precedes each argument except the first.
        (Expr::ScalarFunction(call), None) if call.name() == "concat_ws" => {
            let (separators, args) =
                (children.len().saturating_sub(2) as u64, children.get(1..).unwrap_or_default());
            let separators = children.first().cloned().unwrap_or_default().times(separators);
            let text = args.iter().fold(separators, Growth::plus);
            text.plus(&Growth::of_rows(8 + TEXT_BYTES * args.len() as u64))
        }
        // A replaced character can have four bytes instead of one.
        (Expr::ScalarFunction(call), None) if call.name() == "translate" => {
            sum().times(4).plus(&Growth::of_rows(8))
        }
        // Branches of CASE, `concat`, `greatest` and the like.
        (_, None) => {
            let args = children.len() as u64;
            sum().plus(&Growth::of_rows(8 + TEXT_BYTES * args))
        }
    };
    *work = std::mem::take(work).plus(&grown);
    if let Expr::Like(like) = part {
        let text = children.into_iter().next().unwrap_or_default();
        *work = std::mem::take(work).plus(&text.times(pattern_states(like)));
    }
    Ok(grown)
}

/// Estimated cost of comparing one byte of text with a pattern. The unit is the cost of computing one byte. It is the number of states
/// of the regular expression that the pattern becomes, or 0 if it becomes a search for one text.
fn pattern_states(like: &Like) -> u64 {
    let Expr::Literal(value, _) = &*like.pattern else { return 0 };
    let pattern = text_of(value);
    let inner = pattern.strip_prefix('%').unwrap_or(pattern);
    let inner = inner.strip_suffix('%').unwrap_or(inner);
    if !like.case_insensitive && !inner.contains(WILDCARDS) && !inner.contains('\\') {
        return 0;
    }
    // A wildcard matches any character, which has one to four bytes of several ranges. A letter has up to three forms.
    let forms = if like.case_insensitive { 3 } else { 1 };
    10 * wildcards(value) as u64 + forms * pattern.chars().count() as u64
}

/// Number of wildcards in the pattern of LIKE.
pub(crate) fn wildcards(pattern: &ScalarValue) -> usize {
    text_of(pattern).matches(WILDCARDS).count()
}

/// Text of the pattern of LIKE; empty if it is null.
fn text_of(pattern: &ScalarValue) -> &str {
    pattern.try_as_str().flatten().unwrap_or_default()
}

/// Bytes of the rows of an array. Of a list that is a part of a longer one, only its own items count.
pub fn array_bytes(array: &ArrayRef) -> u64 {
    fn items<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, items: &ArrayRef) -> u64 {
        let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        size_of_val(&offsets[..]) as u64 + array_bytes(&items.slice(first, last - first))
    }
    let nulls = array.len().div_ceil(8) as u64;
    nulls
        + match array.data_type() {
            DataType::List(_) => items(array.as_list::<i32>().offsets(), array.as_list::<i32>().values()),
            DataType::LargeList(_) => {
                items(array.as_list::<i64>().offsets(), array.as_list::<i64>().values())
            }
            DataType::Map(..) => {
                let entries: ArrayRef = Arc::new(array.as_map().entries().clone());
                items(array.as_map().offsets(), &entries)
            }
            DataType::FixedSizeList(..) => {
                let list = array.as_fixed_size_list();
                let (start, width) = (list.value_offset(0) as usize, list.value_length() as usize);
                array_bytes(&list.values().slice(start, list.len() * width))
            }
            DataType::Struct(_) => array.as_struct().columns().iter().map(array_bytes).sum(),
            _ => array.to_data().get_slice_memory_size().unwrap_or(0) as u64,
        }
}

/// Bytes of a value of fixed width.
fn width(data_type: &DataType) -> Option<u64> {
    match data_type {
        DataType::Null => Some(0),
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => u64::try_from(*width).ok(),
        DataType::FixedSizeList(item, len) => {
            Some(width(item.data_type())?.saturating_mul(u64::try_from(*len).ok()?))
        }
        other => other.primitive_width().map(|width| width as u64),
    }
}

fn literal_bytes(value: &ScalarValue) -> u64 {
    let array = value.to_array();
    array.map_or(0, |array| array.to_data().get_slice_memory_size().unwrap_or(0) as u64)
}

/// Factor by which the items of a list grow in a cast, and 1 for other types.
fn item_ratio(from: Option<&DataType>, to: &DataType) -> u64 {
    match (from, to) {
        (Some(from), to) => match (item(from), item(to)) {
            (Some(from), Some(to)) => growth(from, to),
            _ => 1,
        },
        (None, _) => 1,
    }
}

fn item(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

/// Factor by which the values of a type grow in a cast, at any depth. At least 1.
fn growth(from: &DataType, to: &DataType) -> u64 {
    if let (Some(from), Some(to)) = (item(from), item(to)) {
        return growth(from, to);
    }
    if let (DataType::Struct(from), DataType::Struct(to)) = (from, to) {
        let fields = from.iter().zip(to).map(|(from, to)| growth(from.data_type(), to.data_type()));
        return fields.max().unwrap_or(1);
    }
    // A boolean takes a bit, and text at most `TEXT_BYTES` for a number.
    let bits = |data_type: &DataType, unknown: u64| match data_type {
        DataType::Boolean => 1,
        other => 8 * width(other).unwrap_or(unknown),
    };
    bits(to, TEXT_BYTES).div_ceil(bits(from, 1).max(1)).max(1)
}

#[cfg(test)]
mod tests;
