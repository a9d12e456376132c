//! Keys are equal by value, whatever type they come in; a value that the column cannot hold matches no row.

use arrow_array::{
    BinaryArray, BinaryViewArray, Date32Array, Date64Array, Decimal32Array, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, Float64Array, Int8Array, Int32Array, LargeStringArray, RunArray, StringArray,
    StringViewArray, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray, UInt64Array,
    types::{Int8Type, Int32Type},
};

use super::*;

/// Positions of the keys that `to` can hold, and their values.
fn held(keys: impl Array + 'static, to: &DataType) -> (Vec<usize>, ArrayRef) {
    let converted = converted(&(Arc::new(keys) as ArrayRef), to).unwrap();
    assert_eq!(converted.data_type(), to);
    ((0..converted.len()).filter(|row| converted.is_valid(*row)).collect(), converted)
}

fn refusal(keys: impl Array + 'static, to: &DataType) -> String {
    converted(&(Arc::new(keys) as ArrayRef), to).unwrap_err()
}

fn decimal(values: &[i128], precision: u8, scale: i8) -> Decimal128Array {
    Decimal128Array::from(values.to_vec()).with_precision_and_scale(precision, scale).unwrap()
}

fn zoned(unit: TimeUnit, zone: &str) -> DataType {
    DataType::Timestamp(unit, Some(zone.into()))
}

#[test]
fn integers_beyond_the_range_of_the_column_are_not_found_and_never_wrapped() {
    let wide = Int64Array::from(vec![1, -1, 1 << 32, (1 << 32) + 1, i64::MIN, 255, 256, 127]);
    assert_eq!(held(wide.clone(), &DataType::Int8).0, [0, 1, 7]);
    assert_eq!(held(wide.clone(), &DataType::UInt8).0, [0, 5, 7]);
    assert_eq!(held(wide.clone(), &DataType::Int32).0, [0, 1, 5, 6, 7]);
    assert_eq!(held(wide, &DataType::UInt64).0, [0, 2, 3, 5, 6, 7]);
    let unsigned = UInt64Array::from(vec![1, u64::MAX, 1 << 63, (1 << 63) - 1]);
    assert_eq!(held(unsigned.clone(), &DataType::Int64).0, [0, 3]);
    assert_eq!(held(unsigned, &DataType::Decimal128(20, 0)).0, [0, 1, 2, 3]);
}

#[test]
fn decimals_are_equal_by_value_across_scales_and_to_integers() {
    // 1.00, 1.50, 1.05, 300.00
    let keys = decimal(&[100, 150, 105, 30_000], 9, 2);
    let (rows, values) = held(keys.clone(), &DataType::Decimal128(4, 1));
    assert_eq!(rows, [0, 1, 3]);
    assert_eq!(values.as_primitive::<arrow_array::types::Decimal128Type>().value(1), 15);
    assert_eq!(held(keys.clone(), &DataType::Decimal128(20, 5)).0, [0, 1, 2, 3]);
    assert_eq!(held(keys.clone(), &DataType::Int64).0, [0, 3]);
    assert_eq!(held(keys.clone(), &DataType::Int8).0, [0], "300 is out of range");
    assert_eq!(held(keys, &DataType::Decimal256(50, 2)).0, [0, 1, 2, 3]);
    let integers = Int64Array::from(vec![0, 9, 10, -10, i64::MAX]);
    assert_eq!(held(integers.clone(), &DataType::Decimal128(3, 2)).0, [0, 1], "10.00 has four digits");
    assert_eq!(held(integers, &DataType::Decimal32(3, 2)).0, [0, 1]);
    let small = Decimal32Array::from(vec![5, 50]).with_precision_and_scale(3, 1).unwrap();
    assert_eq!(held(small, &DataType::UInt8).0, [1], "0.5 is no integer");
}

#[test]
fn floats_are_refused_in_every_column_with_the_reason() {
    let floats = || Float64Array::from(vec![1.0, f64::NAN, -0.0, 9_007_199_254_740_992.0]);
    let why = refusal(floats(), &DataType::Int64);
    assert!(why.starts_with("is of type Float64, expected Int64") && why.contains("send integers"), "{why}");
    assert!(refusal(floats(), &DataType::Decimal128(9, 2)).contains("expected Decimal128(9, 2)"));
    assert_eq!(kind(&DataType::Float32), None);
}

#[test]
fn text_is_equal_in_every_layout_but_not_to_binary() {
    let words = || vec![Some("ä"), None, Some("a text of more than twelve bytes"), Some("")];
    let plain: ArrayRef = Arc::new(StringArray::from(words()));
    let dictionary: DictionaryArray<Int8Type> = words().into_iter().collect();
    let runs: RunArray<Int32Type> = words().into_iter().collect();
    let views = DictionaryArray::<Int8Type>::new(
        Int8Array::from(vec![Some(0), None, Some(1), Some(2)]),
        Arc::new(StringViewArray::from(vec!["ä", "a text of more than twelve bytes", ""])),
    );
    let layouts: [ArrayRef; 5] = [
        Arc::new(LargeStringArray::from(words())),
        Arc::new(StringViewArray::from(words())),
        Arc::new(dictionary),
        Arc::new(runs),
        Arc::new(views),
    ];
    for keys in layouts {
        assert_eq!(&converted(&keys, &DataType::Utf8).unwrap(), &plain, "{}", keys.data_type());
        assert_eq!(&converted(&keys.slice(1, 2), &DataType::Utf8).unwrap(), &plain.slice(1, 2));
        let large = converted(&keys, &DataType::LargeUtf8).unwrap();
        assert_eq!(large.data_type(), &DataType::LargeUtf8);
    }
    assert_eq!(refusal(StringArray::from(words()), &DataType::Binary), "is of type Utf8, expected Binary");
    assert_eq!(
        refusal(BinaryArray::from(vec![&b"a"[..]]), &DataType::Utf8),
        "is of type Binary, expected Utf8"
    );
}

#[test]
fn binary_keys_of_another_length_than_a_fixed_one_are_not_found() {
    let fixed = DataType::FixedSizeBinary(2);
    let keys = || vec![Some(&b"ab"[..]), Some(b"a"), None, Some(b"abc"), Some(b"")];
    assert_eq!(held(BinaryArray::from(keys()), &fixed).0, [0]);
    assert_eq!(held(BinaryViewArray::from(keys()), &fixed).0, [0]);
    let two = || FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].into_iter()).unwrap();
    assert_eq!(held(two(), &DataType::FixedSizeBinary(3)).0.len(), 0);
    assert_eq!(held(two(), &DataType::Binary).0, [0, 1]);
    assert_eq!(held(two(), &DataType::LargeBinary).0, [0, 1]);
}

#[test]
fn times_of_another_unit_are_compared_exactly_and_never_truncated() {
    let seconds = DataType::Timestamp(TimeUnit::Second, None);
    let nanoseconds = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let micros = || TimestampMicrosecondArray::from(vec![1_000_000, 1_000_001, -1_000_000, -1, i64::MAX]);
    assert_eq!(held(micros(), &seconds).0, [0, 2]);
    assert_eq!(held(micros(), &nanoseconds).0, [0, 1, 2, 3], "the last one overflows");
    assert_eq!(held(TimestampSecondArray::from(vec![0, i64::MAX / 1_000_000_000 + 1]), &nanoseconds).0, [0]);
    let days = || Date32Array::from(vec![1, -1, i32::MAX]);
    let (rows, values) = held(days(), &DataType::Timestamp(TimeUnit::Millisecond, None));
    assert_eq!(rows, [0, 1, 2]);
    assert_eq!(
        &values,
        &(Arc::new(TimestampMillisecondArray::from(vec![86_400_000, -86_400_000, 185_542_587_100_800_000]))
            as ArrayRef)
    );
    assert_eq!(held(days(), &nanoseconds).0, [0, 1]);
    let midnights =
        Date64Array::from(vec![86_400_000, 86_400_001, -86_400_000, i64::MAX - i64::MAX % 86_400_000]);
    assert_eq!(held(midnights, &DataType::Date32).0, [0, 2], "the last one is beyond the range of days");
}

#[test]
fn instants_are_equal_across_time_zones_and_times_without_a_zone_are_refused() {
    let keys = || TimestampMicrosecondArray::from(vec![1_700_000_000_000_000, 1]);
    let berlin = || keys().with_timezone("Europe/Berlin");
    let (rows, values) = held(berlin(), &zoned(TimeUnit::Second, "UTC"));
    assert_eq!(rows, [0]);
    let expected = TimestampSecondArray::from(vec![Some(1_700_000_000), None]).with_timezone("UTC");
    assert_eq!(&values, &(Arc::new(expected) as ArrayRef));
    assert_eq!(held(berlin(), &zoned(TimeUnit::Nanosecond, "no zone at all")).0, [0, 1]);
    let why = refusal(keys(), &zoned(TimeUnit::Microsecond, "UTC"));
    assert!(why.ends_with("times without a time zone name no instant"), "{why}");
    let why = refusal(keys().with_timezone("UTC"), &DataType::Timestamp(TimeUnit::Microsecond, None));
    assert!(why.ends_with("the times of the dataset have no time zone"), "{why}");
    assert!(refusal(Date32Array::from(vec![1]), &zoned(TimeUnit::Second, "UTC")).contains("name no instant"));
    assert!(refusal(TimestampNanosecondArray::from(vec![1]), &DataType::Int64).contains("expected Int64"));
}

#[test]
fn keys_that_share_their_bytes_are_refused_before_they_take_more_memory_than_any_message() {
    let long = "x".repeat(1 << 20);
    let same = Int32Array::from(vec![0; 1000]);
    let dictionary =
        DictionaryArray::<Int32Type>::new(same, Arc::new(StringArray::from(vec![long.as_str()])));
    let why = refusal(dictionary, &DataType::Utf8);
    assert!(why.contains("1048576000 bytes") && why.contains("16777216"), "{why}");
    let runs = RunArray::try_new(&Int32Array::from(vec![1000]), &StringArray::from(vec![long.as_str()]));
    assert!(refusal(runs.unwrap(), &DataType::Utf8).contains("1048576000 bytes"));
    let mut views = arrow_array::builder::StringViewBuilder::new();
    let block = views.append_block(long.into_bytes().into());
    (0..1000).for_each(|_| views.try_append_view(block, 0, 1 << 20).unwrap());
    assert!(refusal(views.finish(), &DataType::Utf8).contains("1048576000 bytes"));
}
