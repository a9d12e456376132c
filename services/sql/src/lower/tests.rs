use arrow_schema::Field;

use crate::Expression;

use super::*;

fn schema() -> Schema {
    let time = |unit| DataType::Timestamp(unit, None);
    let fields = [
        ("i8", DataType::Int8),
        ("i32", DataType::Int32),
        ("i64", DataType::Int64),
        ("u16", DataType::UInt16),
        ("f16", DataType::Float16),
        ("f32", DataType::Float32),
        ("f64", DataType::Float64),
        ("s", time(TimeUnit::Second)),
        ("ms", time(TimeUnit::Millisecond)),
        ("us", time(TimeUnit::Microsecond)),
        ("ns", time(TimeUnit::Nanosecond)),
    ];
    Schema::new(fields.map(|(name, data_type)| Field::new(name, data_type, true)).to_vec())
}

#[test]
fn a_column_is_compared_with_a_constant_in_its_own_type_if_that_can_hold_the_constant() {
    let of_time = |unit: &str| format!("TIMESTAMP '2024-01-01 00:00:00{unit}'");
    for (text, expected) in [
        ("i8 > 3".to_owned(), "i8 > Int8(3)"),
        ("3 > i8".to_owned(), "i8 < Int8(3)"),
        ("i8 > 300".to_owned(), "i8 > Int8(127)"),
        ("i8 IN (3, 4)".to_owned(), "i8 IN ([Int8(3), Int8(4)])"),
        ("i8 IN (3, 300)".to_owned(), "i8 IN ([Int8(3)])"),
        ("i8 IN (3, NULL)".to_owned(), "i8 IN ([Int8(3), Int8(NULL)])"),
        ("u16 = 3".to_owned(), "u16 = UInt16(3)"),
        ("u16 = -1".to_owned(), "u16 < UInt16(0)"),
        ("i32 + 1".to_owned(), "CAST(i32 AS Int64) + Int64(1)"),
        ("i32 + 1 > 3".to_owned(), "CAST(i32 AS Int64) + Int64(1) > Int64(3)"),
        // This cast can fail.
        ("CAST(i64 AS INT) = CAST(5 AS INT)".to_owned(), "CAST(i64 AS Int32) = Int32(5)"),
        (format!("s > {}", of_time("")), "s > TimestampSecond(1704067200, None)"),
        (format!("ms > {}", of_time("")), "ms > TimestampMillisecond(1704067200000, None)"),
        (format!("us > {}", of_time("")), "us > TimestampMicrosecond(1704067200000000, None)"),
        (format!("ns > {}", of_time("")), "ns > TimestampNanosecond(1704067200000000000, None)"),
        (format!("s >= {}", of_time(".5")), "s > TimestampSecond(1704067200, None)"),
        ("s < TIMESTAMP '9999-12-31 00:00:00'".to_owned(), "s < TimestampSecond(253402214400, None)"),
        (
            "ns < TIMESTAMP '9999-12-31 00:00:00'".to_owned(),
            "ns <= TimestampNanosecond(9223372036854775807, None)",
        ),
        ("ms = DATE '2024-01-01'".to_owned(), "ms = TimestampMillisecond(1704067200000, None)"),
    ] {
        let compiled = Expression::column(&format!("{text} AS y"), &schema())
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(compiled.logical.to_string(), expected, "{text}");
    }
}

#[test]
fn a_timestamp_is_finer_only_than_one_with_the_same_time_zone() {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let units = [Second, Millisecond, Microsecond, Nanosecond];
    let time = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
    for (at, from) in units.into_iter().enumerate() {
        for (finer_at, to) in units.into_iter().enumerate() {
            for zone in [None, Some("UTC")] {
                assert_eq!(is_finer(&time(from, zone), &time(to, zone)), at < finer_at, "{from} {to}");
            }
            assert!(!is_finer(&time(from, None), &time(to, Some("UTC"))), "{from} {to}");
        }
    }
    assert!(!is_finer(&time(Second, None), &DataType::Int64));
}

#[test]
fn a_list_with_a_zero_gets_the_other_zero_and_nothing_else() {
    for column in ["f16", "f32", "f64"] {
        for (list, expected) in [("0e0, 1.5e0", 3), ("-0e0, 1.5e0", 3), ("1.5e0, 2.5e0", 2)] {
            let compiled = Expression::filter(&format!("{column} IN ({list})"), &schema()).unwrap();
            let Expr::InList(found) = &compiled.logical else { panic!("{:?}", compiled.logical) };
            assert_eq!(found.list.len(), expected, "{column} IN ({list}): {:?}", compiled.logical);
            let signs = found.list.iter().filter(|item| item.to_string().contains("(-0")).count();
            assert_eq!(signs, usize::from(expected == 3), "{column} IN ({list}): {:?}", compiled.logical);
        }
    }
}
