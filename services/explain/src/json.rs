//! Values that have no text in JSON.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, PrimitiveArray, RecordBatch,
    cast::AsArray,
    make_array,
    types::{Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType},
};
use arrow_buffer::NullBuffer;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType};

/// Checks that each value of `batch`, whose first row is row `first_row`, has a text. The writer of Arrow would write an error as the value of a
/// time without one, and drop the last digits of a decimal that has more than its type.
///
/// # Errors
/// A message with the column, the row and the value.
pub(crate) fn check_texts(batch: &RecordBatch, first_row: usize) -> Result<(), String> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let found = first_without_text(column).map_err(|error| error.to_string())?;
        if let Some((row, why)) = found {
            return Err(format!(
                "column '{}', row {}: {why}; write Parquet or Arrow instead",
                field.name(),
                first_row + row
            ));
        }
    }
    Ok(())
}

/// The first row of which a value has no text, and why.
fn first_without_text(array: &ArrayRef) -> Result<Option<(usize, String)>, ArrowError> {
    let of_items = |item: &dyn Fn(usize) -> ArrayRef| {
        for row in (0..array.len()).filter(|row| array.is_valid(*row)) {
            if let Some((_, why)) = first_without_text(&item(row))? {
                return Ok(Some((row, why)));
            }
        }
        Ok(None)
    };
    match array.data_type() {
        data_type if !can_be_without_text(data_type) => Ok(None),
        DataType::Decimal32(..) => Ok(decimal::<Decimal32Type>(array.as_primitive())),
        DataType::Decimal64(..) => Ok(decimal::<Decimal64Type>(array.as_primitive())),
        DataType::Decimal128(..) => Ok(decimal::<Decimal128Type>(array.as_primitive())),
        DataType::Decimal256(..) => Ok(decimal::<Decimal256Type>(array.as_primitive())),
        DataType::List(_) => of_items(&|row| array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => of_items(&|row| array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => of_items(&|row| array.as_fixed_size_list().value(row)),
        DataType::Map(..) => of_items(&|row| Arc::new(array.as_map().value(row))),
        DataType::Struct(_) => {
            let mut first: Option<(usize, String)> = None;
            for column in array.as_struct().columns() {
                // A value under a null struct is not written.
                let nulls = NullBuffer::union(column.nulls(), array.nulls());
                let column = make_array(column.to_data().into_builder().nulls(nulls).build()?);
                let found = first_without_text(&column)?;
                first = first.into_iter().chain(found).min_by_key(|(row, _)| *row);
            }
            Ok(first)
        }
        _ => {
            let formatter = ArrayFormatter::try_new(array, &FormatOptions::new().with_display_error(false))?;
            let failed = (0..array.len()).filter(|row| array.is_valid(*row)).find_map(|row| {
                let error = formatter.value(row).try_to_string().err()?;
                Some((row, without_kind(&error)))
            });
            Ok(failed)
        }
    }
}

/// True for times and decimals, also in lists and structs.
fn can_be_without_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => can_be_without_text(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| can_be_without_text(field.data_type())),
        DataType::Dictionary(_, value) => can_be_without_text(value),
        other => other.is_temporal() || other.is_decimal(),
    }
}

fn decimal<D: DecimalType>(decimals: &PrimitiveArray<D>) -> Option<(usize, String)> {
    let fits = |value: D::Native| D::is_valid_decimal_precision(value, decimals.precision());
    let row = (0..decimals.len()).find(|row| decimals.is_valid(*row) && !fits(decimals.value(*row)))?;
    let data_type = decimals.data_type();
    Some((row, format!("a value has more digits than its type {data_type} holds")))
}

fn without_kind(error: &ArrowError) -> String {
    let text = error.to_string();
    text.strip_prefix("Cast error: ").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests;
