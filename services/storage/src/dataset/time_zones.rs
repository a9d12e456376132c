//! Time zones of timestamps in seconds.
//!
//! Parquet has no timestamps in seconds. Writers store them in milliseconds and record the original type in the
//! embedded Arrow schema. The `parquet` crate takes the time zone from that schema only if the units are equal, so the
//! zone of these timestamps is restored here.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, TimeUnit};

/// Names of UTC in the database of time zones, and as an offset.
const UTC: [&str; 19] = [
    "UTC",
    "Etc/UTC",
    "UCT",
    "Etc/UCT",
    "Universal",
    "Etc/Universal",
    "Zulu",
    "Etc/Zulu",
    "Z",
    "GMT",
    "Etc/GMT",
    "GMT0",
    "Etc/GMT0",
    "Greenwich",
    "Etc/Greenwich",
    "+00:00",
    "-00:00",
    "+0000",
    "+00",
];

/// True if timestamps have the same dates and hours in both zones. The names of UTC stand for one zone. `None` is no zone.
pub(crate) fn is_same_zone(first: Option<&str>, second: Option<&str>) -> bool {
    let is_utc = |zone: Option<&str>| zone.is_some_and(|zone| UTC.contains(&zone));
    first == second || (is_utc(first) && is_utc(second))
}

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
