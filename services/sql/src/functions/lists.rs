//! `list_truncate` and `list_pad`.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, GenericListArray, OffsetSizeTrait, UInt64Array, cast::AsArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use arrow_select::{concat::concat, take::take};
use datafusion_common::{Result, exec_err, plan_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use super::arguments::{constant, integer, integer_type};

/// Maximum length to which lists are padded.
const MAX_LEN: i128 = 65_536;

pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    let function = |pads| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Resize { pads, signature }))
    };
    vec![function(false), function(true)]
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Resize {
    pads: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Resize {
    fn name(&self) -> &'static str {
        if self.pads { "list_pad" } else { "list_truncate" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        let list = match arguments.first() {
            Some(list @ (DataType::List(item) | DataType::LargeList(item))) => Some((list.clone(), item)),
            // The result has no fixed size.
            Some(DataType::FixedSizeList(item, _)) => Some((DataType::List(Arc::clone(item)), item)),
            _ => None,
        };
        match (self.pads, arguments, list) {
            (false, [_, len], Some((list, _))) => {
                integer_type(name, "the length", len)?;
                Ok(vec![list, DataType::Int64])
            }
            (true, [_, len, value], Some((list, item))) => {
                integer_type(name, "the length", len)?;
                let item = item.data_type();
                if !converts(value, item) {
                    return plan_err!(
                        "{name}: the value is of type {value}, expected {item}, the type of the items"
                    );
                }
                Ok(vec![list, DataType::Int64, item.clone()])
            }
            (false, ..) => plan_err!("{name}: expected a list and a length"),
            (true, ..) => plan_err!("{name}: expected a list, a length and a value"),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        // The padding value or the items can be null.
        let nullable = |item: &Arc<Field>| Arc::new(item.as_ref().clone().with_nullable(true));
        Ok(match &arguments[0] {
            DataType::List(item) if self.pads => DataType::List(nullable(item)),
            DataType::LargeList(item) if self.pads => DataType::LargeList(nullable(item)),
            other => other.clone(),
        })
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let name = self.name();
        let len = constant(name, "the length", &call.args[1])?;
        let len = match integer(&len) {
            Some(len @ 0..) if len <= MAX_LEN || !self.pads => usize::try_from(len).unwrap_or(usize::MAX),
            _ if self.pads => return exec_err!("{name}: the length is {len}, expected 0 to {MAX_LEN}"),
            _ => return exec_err!("{name}: the length is {len}, expected at least 0"),
        };
        let pad = match call.args.get(2) {
            Some(ColumnarValue::Scalar(value)) => Some(value.to_array()?),
            Some(ColumnarValue::Array(_)) => return exec_err!("{name}: the value must be a constant"),
            None => None,
        };
        let lists = call.args[0].clone().into_array(call.number_rows)?;
        let resized = match lists.data_type() {
            DataType::LargeList(_) => resize::<i64>(name, &lists, len, pad.as_ref(), call.return_type())?,
            _ => resize::<i32>(name, &lists, len, pad.as_ref(), call.return_type())?,
        };
        Ok(ColumnarValue::Array(resized))
    }
}

/// Returns true if a value of type `from` can be converted to an item of type `to` without a loss, unless it is out of range.
fn converts(from: &DataType, to: &DataType) -> bool {
    from == to
        || from.is_null()
        || (from.is_integer() && to.is_numeric())
        || (from.is_decimal() && to.is_decimal())
        || (from.is_numeric() && to.is_floating())
        || (from.is_string() && (to.is_string() || to.is_temporal()))
        || (from.is_temporal() && to.is_temporal())
        || (is_binary(from) && is_binary(to))
        || (from.is_nested() && to.is_nested())
}

fn is_binary(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
    )
}

/// Without `pad`: truncates each list to `len` items. With `pad`: extends each list with `pad` to `len` items.
fn resize<O: OffsetSizeTrait>(
    name: &str,
    lists: &ArrayRef,
    len: usize,
    pad: Option<&ArrayRef>,
    data_type: &DataType,
) -> Result<ArrayRef> {
    let lists = lists.as_list::<O>();
    let (offsets, padding) = (lists.value_offsets(), lists.values().len() as u64);
    let (mut items, mut lengths) = (Vec::<u64>::new(), Vec::with_capacity(lists.len()));
    for row in 0..lists.len() {
        let (from, to) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        let given = if lists.is_null(row) { 0 } else { to - from };
        let kept = if pad.is_some() { given } else { given.min(len) };
        let padded = if pad.is_some() && lists.is_valid(row) { len.saturating_sub(given) } else { 0 };
        items.extend(from as u64..(from + kept) as u64);
        items.extend(std::iter::repeat_n(padding, padded));
        lengths.push(kept + padded);
    }
    let values = match pad {
        Some(pad) => concat(&[lists.values().as_ref(), pad.as_ref()])?,
        None => Arc::clone(lists.values()),
    };
    let values = take(&values, &UInt64Array::from(items), None)?;
    let (DataType::List(item) | DataType::LargeList(item)) = data_type else {
        return exec_err!("{name}: {data_type} is not a list");
    };
    let offsets = OffsetBuffer::from_lengths(lengths);
    let resized = GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, lists.nulls().cloned())?;
    Ok(Arc::new(resized))
}
