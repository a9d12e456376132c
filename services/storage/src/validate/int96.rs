//! Range of INT96 timestamps. A value has a day of 32 bits and a nanosecond of 64 bits, and the decoder converts it to 64
//! bits without a check: values beyond would wrap around to wrong ones.

use std::sync::Arc;

use arrow_schema::{DataType, TimeUnit};
use chrono::DateTime;
use parquet::{
    column::{page::PageReader, reader::ColumnReaderImpl},
    data_type::{Int96, Int96Type},
    errors::ParquetError,
    schema::types::ColumnDescriptor,
};

/// Number of rows that are checked at once.
const ROWS: usize = 1024;
/// Julian day number of 1970-01-01.
const JULIAN_DAY_OF_EPOCH: i128 = 2_440_588;
const NANOSECONDS_PER_SECOND: i128 = 1_000_000_000;
const NANOSECONDS_PER_DAY: i128 = 86_400 * NANOSECONDS_PER_SECOND;

/// Returns a description of the first timestamp of a column chunk that is outside of the range of the type `delivered`; `None` if
/// all values are within it, or if the type is no timestamp.
///
/// # Errors
/// Errors of the decoder.
pub(crate) fn out_of_range(
    pages: impl PageReader + 'static,
    descriptor: &Arc<ColumnDescriptor>,
    delivered: &DataType,
) -> Result<Option<String>, ParquetError> {
    let DataType::Timestamp(unit, _) = delivered else { return Ok(None) };
    let (is_optional, is_repeated) = (descriptor.max_def_level() > 0, descriptor.max_rep_level() > 0);
    let mut reader = ColumnReaderImpl::<Int96Type>::new(Arc::clone(descriptor), Box::new(pages));
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        values.clear();
        definitions.clear();
        repetitions.clear();
        let definitions = is_optional.then_some(&mut definitions);
        let repetitions = is_repeated.then_some(&mut repetitions);
        let (rows, _, levels) = reader.read_records(ROWS, definitions, repetitions, &mut values)?;
        if let Some(value) = values.iter().find(|value| !fits(value, *unit)) {
            return Ok(Some(describe(value, delivered)));
        }
        if rows == 0 && levels == 0 {
            return Ok(None);
        }
    }
}

/// Number of nanoseconds since 1970.
fn nanoseconds(value: &Int96) -> i128 {
    let [low, high, day] = [0, 1, 2].map(|index| value.data()[index]);
    let nanosecond = (u64::from(high) << 32 | u64::from(low)).cast_signed();
    (i128::from(day.cast_signed()) - JULIAN_DAY_OF_EPOCH) * NANOSECONDS_PER_DAY + i128::from(nanosecond)
}

/// True if the number of units since 1970 has 64 bits.
fn fits(value: &Int96, unit: TimeUnit) -> bool {
    let unit = match unit {
        TimeUnit::Second => NANOSECONDS_PER_SECOND,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    i64::try_from(nanoseconds(value).div_euclid(unit)).is_ok()
}

fn describe(value: &Int96, delivered: &DataType) -> String {
    let nanoseconds = nanoseconds(value);
    let second = i64::try_from(nanoseconds.div_euclid(NANOSECONDS_PER_SECOND)).ok();
    let rest = nanoseconds.rem_euclid(NANOSECONDS_PER_SECOND) as u32;
    let time = second.and_then(|second| DateTime::from_timestamp(second, rest));
    let time = match time {
        Some(time) => time.format("%Y-%m-%dT%H:%M:%S%.f").to_string(),
        None => format!("{} days after 1970-01-01", nanoseconds.div_euclid(NANOSECONDS_PER_DAY)),
    };
    let unit = match delivered {
        DataType::Timestamp(TimeUnit::Nanosecond, _) => "timestamp[ns], 1677-09-21 to 2262-04-11",
        _ => "timestamps of its unit",
    };
    format!(
        "the INT96 timestamp {time} is outside of the range of {unit}; write the column as TIMESTAMP in microseconds, or \
         leave it out"
    )
}
