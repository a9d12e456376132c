//! Types of plain values in NumPy, Arrow and DLPack.

use arrow_schema::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};

use crate::dlpack::Element;

/// NumPy type string, Arrow type and DLPack type of plain values. The DLPack type is `None` for times.
static TYPES: [(&str, DataType, Option<Element>); 19] = [
    ("|i1", DataType::Int8, Some(Element::int(8))),
    ("<i2", DataType::Int16, Some(Element::int(16))),
    ("<i4", DataType::Int32, Some(Element::int(32))),
    ("<i8", DataType::Int64, Some(Element::int(64))),
    ("|u1", DataType::UInt8, Some(Element::uint(8))),
    ("<u2", DataType::UInt16, Some(Element::uint(16))),
    ("<u4", DataType::UInt32, Some(Element::uint(32))),
    ("<u8", DataType::UInt64, Some(Element::uint(64))),
    ("<f2", DataType::Float16, Some(Element::float(16))),
    ("<f4", DataType::Float32, Some(Element::float(32))),
    ("<f8", DataType::Float64, Some(Element::float(64))),
    ("<M8[s]", DataType::Timestamp(TimeUnit::Second, None), None),
    ("<M8[ms]", DataType::Timestamp(TimeUnit::Millisecond, None), None),
    ("<M8[us]", DataType::Timestamp(TimeUnit::Microsecond, None), None),
    ("<M8[ns]", DataType::Timestamp(TimeUnit::Nanosecond, None), None),
    ("<m8[s]", DataType::Duration(TimeUnit::Second), None),
    ("<m8[ms]", DataType::Duration(TimeUnit::Millisecond), None),
    ("<m8[us]", DataType::Duration(TimeUnit::Microsecond), None),
    ("<m8[ns]", DataType::Duration(TimeUnit::Nanosecond), None),
];

/// Returns the NumPy type string and the DLPack type of a type of plain values; `None` for other types.
pub(crate) fn plain(data_type: &DataType) -> Option<(&'static str, Option<Element>)> {
    let without_zone = match data_type {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, None),
        DataType::Date64 => DataType::Timestamp(TimeUnit::Millisecond, None),
        other => other.clone(),
    };
    let found = TYPES.iter().find(|(_, data_type, _)| *data_type == without_zone);
    found.map(|(typestr, _, element)| (*typestr, *element))
}

/// Returns the Arrow type of a type name of `forebay/sending.py`: a NumPy type string, or the name of a type that NumPy lacks.
pub(crate) fn data_type(kind: &str) -> Option<DataType> {
    match kind {
        "|b1" => Some(DataType::Boolean),
        // Four bytes wide, unlike `<M8[D]` of NumPy.
        "date32" => Some(DataType::Date32),
        "<M8[us] UTC" => Some(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        "null" => Some(DataType::Null),
        decimal if decimal.starts_with("decimal128(") => {
            let scale = decimal.strip_prefix("decimal128(")?.strip_suffix(')')?;
            Some(DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale.parse().ok()?))
        }
        _ => TYPES.iter().find(|(typestr, ..)| *typestr == kind).map(|(_, data_type, _)| data_type.clone()),
    }
}

/// Returns true if `data_type` is a list whose items may be null, or a list of such lists.
pub(crate) fn has_nullable_items(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.is_nullable() || has_nullable_items(item.data_type())
        }
        _ => false,
    }
}
