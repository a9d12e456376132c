//! Time zones of timestamps in seconds.
//!
//! Parquet has no timestamps in seconds. Writers store them in milliseconds and record the original type in the
//! embedded Arrow schema. The `parquet` crate takes the time zone from that schema only if the units are equal, so the
//! zone of these timestamps is restored here.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, TimeUnit};

/// Returns `field` with the time zones of timestamps that are in seconds in `embedded`.
pub(crate) fn with_zones(field: &FieldRef, embedded: &Field) -> FieldRef {
    let data_type = zoned(field.data_type(), embedded.data_type());
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

fn zoned(read: &DataType, embedded: &DataType) -> DataType {
    match (read, embedded) {
        (
            DataType::Timestamp(TimeUnit::Millisecond, Some(_)),
            DataType::Timestamp(TimeUnit::Second, Some(zone)),
        ) => DataType::Timestamp(TimeUnit::Millisecond, Some(Arc::clone(zone))),
        (DataType::List(item), DataType::List(as_embedded)) => DataType::List(with_zones(item, as_embedded)),
        (DataType::LargeList(item), DataType::LargeList(as_embedded)) => {
            DataType::LargeList(with_zones(item, as_embedded))
        }
        (DataType::Struct(fields), DataType::Struct(as_embedded)) if fields.len() == as_embedded.len() => {
            let fields = fields.iter().zip(as_embedded);
            DataType::Struct(fields.map(|(field, as_embedded)| with_zones(field, as_embedded)).collect())
        }
        (read, _) => read.clone(),
    }
}
