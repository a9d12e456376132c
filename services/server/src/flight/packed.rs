//! Batches for clients without Arrow: columns as plain bytes, without a copy where the layout allows.

use arrow_array::{Array, ArrayRef, GenericByteArray, RecordBatch, cast::AsArray, types::ByteArrayType};
use arrow_schema::{DataType, SchemaRef, TimeUnit};
use bytes::Bytes;
use forebay_loader::WireBatch;
use forebay_proto::v1::PackedColumn;

use crate::Error;

/// Packs the columns of a batch.
///
/// # Errors
/// Invalid if the type of a column has no packed form.
pub(super) fn pack(schema: &SchemaRef, batch: WireBatch) -> Result<Vec<PackedColumn>, Error> {
    let body = batch.body.into_bytes();
    pack_columns(&WireBatch::decode(schema, &batch.header, &body)?, &body)
}

/// Packs the columns of `rows`; buffers outside of `body` are copied.
pub(super) fn pack_columns(rows: &RecordBatch, body: &Bytes) -> Result<Vec<PackedColumn>, Error> {
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns());
    columns.map(|(field, column)| packed(field.name(), column, body)).collect()
}

fn packed(name: &str, column: &ArrayRef, body: &Bytes) -> Result<PackedColumn, Error> {
    let rows = column.len() as u64;
    let mut packed = PackedColumn { name: name.to_owned(), shape: vec![rows], ..PackedColumn::default() };
    if let Some(nulls) = column.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
        packed.valid = nulls.iter().map(u8::from).collect::<Vec<_>>().into();
    }
    let (dtype, values) = match column.data_type() {
        DataType::Utf8 => ("string", byte_values(column.as_string::<i32>(), body)),
        DataType::LargeUtf8 => ("string", byte_values(column.as_string::<i64>(), body)),
        DataType::Binary => ("binary", byte_values(column.as_binary::<i32>(), body)),
        DataType::LargeBinary => ("binary", byte_values(column.as_binary::<i64>(), body)),
        DataType::Null => ("null", Vec::new()),
        _ => {
            let (dtype, data, width) = matrix(name, column, body)?;
            packed.shape.extend(width);
            return Ok(PackedColumn { dtype, data, ..packed });
        }
    };
    Ok(PackedColumn { dtype: dtype.to_owned(), values, ..packed })
}

/// Type name and bytes of fixed-width values, and for lists the number of values per row.
fn matrix(name: &str, column: &ArrayRef, body: &Bytes) -> Result<(String, Bytes, Option<u64>), Error> {
    let refused = |why: &str| Error::invalid(format!("columns: '{name}' {why}"));
    let unfit = || {
        let of = column.data_type();
        refused(&format!(
            "is of type {of}, which has no packed form; ask for it over DoGet or DoExchange, or for a tensor of it"
        ))
    };
    let Some(list) = column.as_fixed_size_list_opt() else {
        let dtype = dtype(column.data_type()).ok_or_else(unfit)?;
        return Ok((dtype, fixed(column, body), None));
    };
    let width = usize::try_from(list.value_length()).unwrap_or(0);
    let dtype = dtype(&list.value_type()).ok_or_else(unfit)?;
    let has_hole = |row: usize| {
        let nulls = list.values().nulls();
        list.is_valid(row) && nulls.is_some_and(|nulls| nulls.slice(row * width, width).null_count() > 0)
    };
    if (0..list.len()).any(has_hole) {
        return Err(refused(
            "has a null inside of a list, which has no packed form; ask for it over DoGet or DoExchange, or for a tensor of \
             it with `null_value`",
        ));
    }
    Ok((dtype, fixed(list.values(), body), Some(width as u64)))
}

/// Values of an array with a [`dtype`], little-endian.
fn fixed(array: &ArrayRef, body: &Bytes) -> Bytes {
    if let Some(bools) = array.as_boolean_opt() {
        return bools.values().iter().map(u8::from).collect::<Vec<_>>().into();
    }
    let data = array.to_data();
    let width = match data.data_type() {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or(0),
        other => other.primitive_width().unwrap_or(0),
    };
    let values = data.buffers().first().map_or(&[][..], |buffer| buffer.as_slice());
    let (start, end) = (data.offset() * width, (data.offset() + data.len()) * width);
    shared(body, values.get(start..end).unwrap_or_default())
}

fn byte_values<T: ByteArrayType>(array: &GenericByteArray<T>, body: &Bytes) -> Vec<Bytes> {
    let value = |row| {
        let value: &[u8] = if array.is_valid(row) { array.value(row).as_ref() } else { &[] };
        shared(body, value)
    };
    (0..array.len()).map(value).collect()
}

/// Returns `part`, without a copy if it is inside of `whole`.
fn shared(whole: &Bytes, part: &[u8]) -> Bytes {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr());
    match start.map(|start| start..start + part.len()) {
        Some(range) if range.end <= whole.len() => whole.slice(range),
        _ => Bytes::copy_from_slice(part),
    }
}

/// Name of a fixed-width type: NumPy names for numbers, Arrow names for others.
fn dtype(data_type: &DataType) -> Option<String> {
    Some(match data_type {
        DataType::Boolean => "uint8".to_owned(),
        number if number.is_numeric() && !number.is_decimal() => number.to_string().to_lowercase(),
        DataType::Date32 => "date32[day]".to_owned(),
        DataType::Date64 => "date64[ms]".to_owned(),
        DataType::Time32(of) => format!("time32[{}]", unit(*of)),
        DataType::Time64(of) => format!("time64[{}]", unit(*of)),
        DataType::Duration(of) => format!("duration[{}]", unit(*of)),
        DataType::Timestamp(of, None) => format!("timestamp[{}]", unit(*of)),
        DataType::Timestamp(of, Some(zone)) => format!("timestamp[{}, tz={zone}]", unit(*of)),
        DataType::Decimal32(digits, scale) => format!("decimal32({digits}, {scale})"),
        DataType::Decimal64(digits, scale) => format!("decimal64({digits}, {scale})"),
        DataType::Decimal128(digits, scale) => format!("decimal128({digits}, {scale})"),
        DataType::Decimal256(digits, scale) => format!("decimal256({digits}, {scale})"),
        DataType::FixedSizeBinary(width) => format!("fixed_size_binary[{width}]"),
        _ => return None,
    })
}

fn unit(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

#[cfg(test)]
mod tests;
