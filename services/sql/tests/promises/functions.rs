//! Functions for feature engineering, for each type of their arguments.

use std::sync::Arc;

use arrow_array::{types::*, *};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields, Schema};
use forebay_sql::{Error, Expression, ScalarValue};
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn compiled(text: &str, schema: &Schema) -> Result<Expression, Error> {
    Expression::column(&format!("{text} AS y"), schema)
}

/// The values of `text` over the column x.
fn evaluate(text: &str, x: &ArrayRef) -> ArrayRef {
    let rows = RecordBatch::try_from_iter_with_nullable([("x", Arc::clone(x), true)]).unwrap();
    let failed = |error: Error| -> Expression { panic!("{text} of {}: {error}", x.data_type()) };
    let expression = compiled(text, &rows.schema()).unwrap_or_else(failed);
    let values = expression.evaluate(&rows.project(expression.inputs()).unwrap()).unwrap();
    assert_eq!(values.data_type(), expression.field().data_type(), "{text} of {}", x.data_type());
    values
}

fn shown(array: &ArrayRef) -> Vec<String> {
    (0..array.len()).map(|row| ScalarValue::try_from_array(array, row).unwrap().to_string()).collect()
}

/// A value and a null.
fn numbers<T: ArrowPrimitiveType>(value: T::Native) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter([Some(value), None]))
}

#[test]
fn hash_bucket_hashes_the_documented_bytes_of_every_type() {
    let integer = |value: i64| value.to_le_bytes().to_vec();
    let float = |value: f64| value.to_le_bytes().to_vec();
    let (text, binary) = ([Some("\u{e9}"), None], [Some(&[0_u8, 255][..]), None]);
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(binary.into_iter(), 2).unwrap();
    let zoned = TimestampMicrosecondArray::from(vec![Some(-1), None]).with_timezone("Europe/Berlin");
    let half = half::f16::from_f32;
    // The buckets were computed with Python: xxhash.xxh3_64_intdigest(bytes) % 1000.
    let cases: Vec<(ArrayRef, Vec<u8>, &str)> = vec![
        (numbers::<Int8Type>(-7), integer(-7), "204"),
        (numbers::<Int16Type>(-300), integer(-300), "842"),
        (numbers::<Int32Type>(-70_000), integer(-70_000), "546"),
        (numbers::<Int64Type>(-5_000_000_000), integer(-5_000_000_000), "807"),
        (numbers::<UInt8Type>(200), integer(200), "559"),
        (numbers::<UInt16Type>(60_000), integer(60_000), "978"),
        (numbers::<UInt32Type>(4_000_000_000), integer(4_000_000_000), "534"),
        (numbers::<UInt64Type>(4_000_000_000), integer(4_000_000_000), "534"),
        (numbers::<UInt64Type>(u64::MAX), u64::MAX.to_le_bytes().to_vec(), "627"),
        (Arc::new(BooleanArray::from(vec![Some(true), None])), integer(1), "78"),
        (Arc::new(BooleanArray::from(vec![Some(false), None])), integer(0), "897"),
        (numbers::<Date32Type>(19_782), integer(19_782), "224"),
        (numbers::<Date64Type>(1_700_000_000_123), integer(1_700_000_000_123), "284"),
        (numbers::<Time32SecondType>(3_661), integer(3_661), "222"),
        (numbers::<Time32MillisecondType>(3_661_001), integer(3_661_001), "46"),
        (numbers::<Time64MicrosecondType>(3_661_000_002), integer(3_661_000_002), "594"),
        (numbers::<Time64NanosecondType>(3_661_000_000_003), integer(3_661_000_000_003), "104"),
        (numbers::<TimestampSecondType>(-1), integer(-1), "627"),
        (numbers::<TimestampMillisecondType>(1_700_000_000_123), integer(1_700_000_000_123), "284"),
        (Arc::new(zoned), integer(-1), "627"),
        (numbers::<TimestampNanosecondType>(86_400), integer(86_400), "707"),
        (numbers::<DurationSecondType>(-7), integer(-7), "204"),
        (numbers::<DurationNanosecondType>(86_400), integer(86_400), "707"),
        (numbers::<Float16Type>(half(1.5)), float(1.5), "384"),
        (numbers::<Float32Type>(0.1), float(f64::from(0.1_f32)), "446"),
        (numbers::<Float64Type>(0.1), float(0.1), "309"),
        (numbers::<Float64Type>(-0.0), float(0.0), "897"),
        (Arc::new(StringArray::from_iter(text)), "\u{e9}".into(), "795"),
        (Arc::new(LargeStringArray::from_iter(text)), "\u{e9}".into(), "795"),
        (Arc::new(StringViewArray::from_iter(text)), "\u{e9}".into(), "795"),
        (Arc::new(BinaryArray::from_iter(binary)), vec![0, 255], "83"),
        (Arc::new(LargeBinaryArray::from_iter(binary)), vec![0, 255], "83"),
        (Arc::new(BinaryViewArray::from_iter(binary)), vec![0, 255], "83"),
        (Arc::new(fixed), vec![0, 255], "83"),
    ];
    for (x, bytes, bucket) in cases {
        let of = x.data_type();
        assert_eq!(shown(&evaluate("hash_bucket(x, 1000)", &x)), [bucket, "NULL"], "{of}");
        for (text, seed, buckets) in [
            ("hash_bucket(x, 1000)", 0, 1000),
            ("hash_bucket(x, 7, -3)", -3_i64 as u64, 7),
            ("hash_bucket(x, 9223372036854775807, 5)", 5, i64::MAX as u64),
        ] {
            let expected = xxh3_64_with_seed(&bytes, seed) % buckets;
            assert_eq!(shown(&evaluate(text, &x)), [expected.to_string().as_str(), "NULL"], "{text} of {of}");
        }
    }
}

#[test]
fn clip_keeps_the_type_unless_integers_have_fractional_bounds() {
    fn column<T: ArrowPrimitiveType>(values: [T::Native; 4]) -> ArrayRef {
        Arc::new(values.into_iter().map(Some).chain([None]).collect::<PrimitiveArray<T>>())
    }
    for x in [
        column::<Int8Type>([1, 2, 3, 4]),
        column::<Int16Type>([1, 2, 3, 4]),
        column::<Int32Type>([1, 2, 3, 4]),
        column::<Int64Type>([1, 2, 3, 4]),
        column::<UInt8Type>([1, 2, 3, 4]),
        column::<UInt16Type>([1, 2, 3, 4]),
        column::<UInt32Type>([1, 2, 3, 4]),
        column::<UInt64Type>([1, 2, 3, 4]),
        column::<Float32Type>([1.0, 2.0, 3.0, 4.0]),
        column::<Float64Type>([1.0, 2.0, 3.0, 4.0]),
    ] {
        let of = x.data_type();
        let fractional = if of.is_floating() { of } else { &DataType::Float64 };
        for (text, data_type, expected) in [
            ("clip(x, 2, 3)", of, ["2", "2", "3", "3", "NULL"]),
            ("clip(x, 2, 2)", of, ["2", "2", "2", "2", "NULL"]),
            ("clip(x, 2, 2.5)", fractional, ["2", "2", "2.5", "2.5", "NULL"]),
            ("clip(x, 1.5, 3)", fractional, ["1.5", "2", "3", "3", "NULL"]),
            ("clip(x, 1.5, 2.5)", fractional, ["1.5", "2", "2.5", "2.5", "NULL"]),
        ] {
            let clipped = evaluate(text, &x);
            assert_eq!(clipped.data_type(), data_type, "{text} of {of}");
            assert_eq!(shown(&clipped), expected, "{text} of {of}");
        }
    }
}

#[test]
fn clip_changes_no_value_that_is_equal_to_a_bound() {
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0]));
    for text in ["clip(x, -1.0, -0.0)", "clip(x, 0.0, 1.0)", "clip(x, -0.0, 0.0)"] {
        assert_eq!(shown(&evaluate(text, &zeros)), ["0", "-0"], "{text}");
    }
}

#[test]
fn numbers_of_every_type_are_standardized_and_divided_into_buckets_as_doubles() {
    for x in [
        numbers::<Int8Type>(-3),
        numbers::<Int64Type>(-3),
        numbers::<Float16Type>(half::f16::from_f32(-3.0)),
        numbers::<Float32Type>(-3.0),
        numbers::<Float64Type>(-3.0),
    ] {
        for (text, expected) in [
            ("standardize(x, 1, 8)", "-0.5"),
            ("standardize(x, -1, -8)", "0.25"),
            ("log1p(x + 3.5)", "0.4054651081081644"),
            ("bucketize(x, -2.9)", "0"),
            ("bucketize(x, -3)", "1"),
            ("bucketize(x, -4, -3, -2)", "2"),
        ] {
            assert_eq!(shown(&evaluate(text, &x)), [expected, "NULL"], "{text} of {}", x.data_type());
        }
    }
    let largest = numbers::<UInt64Type>(u64::MAX);
    assert_eq!(shown(&evaluate("standardize(x, 0, 1)", &largest)), ["18446744073709552000", "NULL"]);
    // The bound is 2^64.
    assert_eq!(shown(&evaluate("bucketize(x, 0, 1.8446744073709552e19)", &largest)), ["1", "NULL"]);
}

#[test]
fn bounds_beyond_the_type_limit_nothing() {
    let tiny: ArrayRef = Arc::new(Int8Array::from(vec![i8::MIN, 0, i8::MAX]));
    for (text, expected) in [
        ("clip(x, -1000, 1000)", ["-128", "0", "127"]),
        ("clip(x, -1000, 5)", ["-128", "0", "5"]),
        ("clip(x, -5, 18446744073709551615)", ["-5", "0", "127"]),
        ("clip(x, CAST(-1 AS SMALLINT), CAST(1 AS INT UNSIGNED))", ["-1", "0", "1"]),
    ] {
        let clipped = evaluate(text, &tiny);
        assert_eq!(clipped.data_type(), &DataType::Int8, "{text}");
        assert_eq!(shown(&clipped), expected, "{text}");
    }
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![0, 9_007_199_254_740_993, u64::MAX]));
    for (text, expected) in [
        ("clip(x, -1, 1)", ["0", "1", "1"]),
        ("clip(x, -1, 18446744073709551615)", ["0", "9007199254740993", "18446744073709551615"]),
        (
            "clip(x, 9007199254740994, 18446744073709551614)",
            ["9007199254740994", "9007199254740994", "18446744073709551614"],
        ),
    ] {
        assert_eq!(shown(&evaluate(text, &large)), expected, "{text}");
    }
}

#[test]
fn buckets_of_integers_are_exact() {
    let signed: ArrayRef = Arc::new(Int64Array::from(vec![(1 << 53), (1 << 53) + 1, i64::MAX, i64::MIN]));
    let unsigned: ArrayRef = Arc::new(UInt64Array::from(vec![(1 << 53), (1 << 53) + 1, u64::MAX, 0]));
    for (text, x, expected) in [
        ("bucketize(x, 9007199254740993)", &signed, ["0", "1", "1", "0"]),
        ("bucketize(x, 9007199254740992.0, 9007199254740993)", &signed, ["1", "2", "2", "0"]),
        ("bucketize(x, -9223372036854775808, 9223372036854775807)", &signed, ["1", "1", "2", "1"]),
        ("bucketize(x, -1e300, 1e300)", &signed, ["1", "1", "1", "1"]),
        ("bucketize(x, 9007199254740993, 18446744073709551615)", &unsigned, ["0", "1", "2", "0"]),
        ("bucketize(x, -1, 0.5)", &unsigned, ["2", "2", "2", "1"]),
    ] {
        assert_eq!(shown(&evaluate(text, x)), expected, "{text}");
    }
    // The double below the bound, and the one above.
    let doubles: ArrayRef =
        Arc::new(Float64Array::from(vec![9_007_199_254_740_992.0, 9_007_199_254_740_994.0]));
    assert_eq!(shown(&evaluate("bucketize(x, 9007199254740993)", &doubles)), ["0", "1"]);
}

#[test]
fn the_seed_of_hash_bucket_can_be_any_64_bit_integer() {
    let x = numbers::<Int64Type>(-7);
    let largest = shown(&evaluate("hash_bucket(x, 1000, 18446744073709551615)", &x));
    let expected = xxh3_64_with_seed(&(-7_i64).to_le_bytes(), u64::MAX) % 1000;
    assert_eq!(largest, [expected.to_string().as_str(), "NULL"]);
    assert_eq!(largest, shown(&evaluate("hash_bucket(x, 1000, -1)", &x)));
}

#[test]
fn functions_of_constants_have_a_value_for_each_row() {
    let x: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    for (text, expected) in [
        ("log1p(0.5)", "0.4054651081081644"),
        ("standardize(3, 1, 2)", "1"),
        ("bucketize(3, 1, 2)", "2"),
        ("clip(3, 1, 2)", "2"),
        ("hash_bucket(-7, 1000)", "204"),
    ] {
        assert_eq!(shown(&evaluate(text, &x)), [expected; 3], "{text}");
    }
}

#[test]
fn lists_of_every_type_are_resized_and_only_padded_items_can_be_null() {
    let numbers = || Arc::new(Int32Array::from_iter_values(1..10)) as ArrayRef;
    let nulls = || Some(NullBuffer::from(vec![true, false, true]));
    let item = |nullable| Arc::new(Field::new("item", DataType::Int32, nullable));
    for nullable in [false, true] {
        let list =
            ListArray::new(item(nullable), OffsetBuffer::from_repeated_length(3, 3), numbers(), nulls());
        let large =
            LargeListArray::new(item(nullable), OffsetBuffer::from_repeated_length(3, 3), numbers(), nulls());
        let fixed = FixedSizeListArray::new(item(nullable), 3, numbers(), nulls());
        for x in [Arc::new(list) as ArrayRef, Arc::new(large), Arc::new(fixed)] {
            let is_large = matches!(x.data_type(), DataType::LargeList(_));
            let list_of = if is_large { DataType::LargeList } else { DataType::List };
            for (text, item_nullable, expected) in [
                ("list_truncate(x, 2)", nullable, ["[1, 2]", "", "[7, 8]"]),
                ("list_truncate(x, 0)", nullable, ["[]", "", "[]"]),
                ("list_truncate(x, 100000)", nullable, ["[1, 2, 3]", "", "[7, 8, 9]"]),
                ("list_pad(x, 2, 0)", true, ["[1, 2, 3]", "", "[7, 8, 9]"]),
                ("list_pad(x, 4, 0)", true, ["[1, 2, 3, 0]", "", "[7, 8, 9, 0]"]),
                ("list_pad(x, 4, NULL)", true, ["[1, 2, 3, ]", "", "[7, 8, 9, ]"]),
            ] {
                let resized = evaluate(text, &x);
                assert_eq!(*resized.data_type(), list_of(item(item_nullable)), "{text} of {}", x.data_type());
                assert_eq!(shown(&resized), expected, "{text} of {}", x.data_type());
            }
        }
    }
}

#[test]
fn a_field_can_be_null_if_its_struct_or_the_field_itself_can() {
    for (of, field) in [(false, false), (false, true), (true, false), (true, true)] {
        let fields = Fields::from(vec![Field::new("f", DataType::Int32, field)]);
        let schema = Schema::new(vec![Field::new("x", DataType::Struct(fields), of)]);
        let nullable = compiled("x['f']", &schema).unwrap().field().is_nullable();
        assert_eq!(nullable, of || field, "struct: {of}, field: {field}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_their_reason_when_the_expression_is_compiled() {
    let schema = Schema::new(vec![
        Field::new("x", DataType::Float64, true),
        Field::new("half", DataType::Float16, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("tiny", DataType::Int8, true),
        Field::new("l", DataType::new_list(DataType::Int32, true), true),
    ]);
    for (text, reason) in [
        ("clip(x, CAST(NULL AS DOUBLE), 1)", "clip: a bound must be a constant and not null"),
        (
            "clip(x, CAST(NULL AS DOUBLE), CAST(NULL AS DOUBLE))",
            "clip: a bound must be a constant and not null",
        ),
        ("clip(x, NULL, 1)", "clip: expected integers and floats, not Float64, Null and Int64"),
        ("clip(x, 1)", "clip: expected a number and two bounds"),
        ("clip(half, 1, 2)", "clip: expected integers and floats, not Float16"),
        ("clip(name, 1, 2)", "clip: expected integers and floats, not Utf8"),
        ("standardize(x, NULL, 1)", "standardize: the mean must be a constant and not null"),
        ("standardize(x, 1, NULL)", "standardize: the deviation must be a constant and not null"),
        ("standardize(x, 1e999, 1)", "expected finite numbers"),
        ("standardize(x, -1e999, 1)", "expected finite numbers"),
        ("standardize(x, CAST('NaN' AS DOUBLE), 1)", "expected finite numbers"),
        ("standardize(x, 0, 1e999)", "expected finite numbers"),
        ("standardize(x, 0, CAST('NaN' AS DOUBLE))", "expected finite numbers"),
        ("standardize(x, 0, -0e0)", "a deviation other than 0"),
        ("bucketize(x)", "bucketize: expected a number and at least one bound"),
        ("bucketize(x, NULL)", "bucketize: a bound must be a constant and not null"),
        ("bucketize(x, 1, 1)", "bucketize: the bounds [1, 1] are not ascending"),
        ("bucketize(x, 1.0, 1)", "bucketize: the bounds [1.0, 1] are not ascending"),
        ("bucketize(x, 9007199254740993, 9007199254740992.0)", "are not ascending"),
        ("bucketize(name, 1)", "bucketize: expected numbers, not Utf8"),
        ("clip(tiny, 1000, 2000)", "clip: the bound 1000 is beyond all values of type Int8"),
        ("clip(tiny, -2000, -1000)", "clip: the bound -1000 is beyond all values of type Int8"),
        ("clip(tiny, 1000, -1000)", "clip: low is 1000, expected at most high, -1000"),
        (
            "hash_bucket(x, 10.9)",
            "hash_bucket: the number of buckets is of type Float64, expected an integer",
        ),
        ("hash_bucket(x, '10')", "hash_bucket: the number of buckets is of type Utf8, expected an integer"),
        ("hash_bucket(x, 10, 1.9)", "hash_bucket: the seed is of type Float64, expected an integer"),
        (
            "hash_bucket(x, 9223372036854775808)",
            "hash_bucket: the number of buckets is 9223372036854775808, expected at most 9223372036854775807",
        ),
        ("list_pad(l, 2, 'x')", "list_pad: the value is of type Utf8, expected Int32, the type of the items"),
        (
            "list_pad(l, 2, 1.5)",
            "list_pad: the value is of type Float64, expected Int32, the type of the items",
        ),
        ("list_pad(l, 2, 3000000000)", "Can't cast value 3000000000 to type Int32"),
        ("list_pad(l, 2.5, 0)", "list_pad: the length is of type Float64, expected an integer"),
        ("list_truncate(l, 1.5)", "list_truncate: the length is of type Float64, expected an integer"),
        ("bucketize(x, CAST('NaN' AS DOUBLE))", "are not ascending"),
        ("hash_bucket(x)", "hash_bucket: expected a value, the number of buckets and an optional seed"),
        (
            "hash_bucket(x, 1, 2, 3)",
            "hash_bucket: expected a value, the number of buckets and an optional seed",
        ),
        ("hash_bucket(x, NULL)", "hash_bucket: the number of buckets must be a constant and not null"),
        ("hash_bucket(x, 10, NULL)", "hash_bucket: the seed must be a constant and not null"),
        ("hash_bucket(x, -1)", "hash_bucket: the number of buckets is -1, expected at least 1"),
        ("list_truncate(l, NULL)", "list_truncate: the length must be a constant and not null"),
        ("list_truncate(l, -1)", "list_truncate: the length is -1"),
        ("list_truncate(l)", "list_truncate: expected a list and a length"),
        ("list_truncate(x, 1)", "list_truncate: expected a list and a length"),
        ("list_pad(l, NULL, 0)", "list_pad: the length must be a constant and not null"),
        ("list_pad(l, 65537, 0)", "list_pad: the length is 65537, expected 0 to 65536"),
        ("list_pad(l, 1)", "list_pad: expected a list, a length and a value"),
        ("list_pad(x, 1, 0)", "list_pad: expected a list, a length and a value"),
    ] {
        match compiled(text, &schema) {
            Err(Error::Invalid(error)) => assert!(error.contains(reason), "{text}: {error}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}
