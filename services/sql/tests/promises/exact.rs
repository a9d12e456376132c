//! Numbers of all types are compared by their exact values.
//!
//! The expected results come from fractions of big integers.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Date32Array, Date64Array, Decimal32Array, Decimal64Array, Decimal128Array,
    Decimal256Array, Float16Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    RecordBatch, StringArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array, UInt64Array as Indexes,
    cast::AsArray,
};
use arrow_buffer::i256;
use arrow_schema::DataType;
use arrow_select::take::take;
use forebay_sql::{Bounds, Expression, ScalarValue, Verdict};
use half::f16;

mod fraction;
mod kinds;
mod lengths;
mod moments;
mod results;

use fraction::{Exact, nearest_half};

const OPERATORS: [&str; 8] = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"];

/// The result of a comparison; `None` for null.
fn compared<T: Ord>(left: Option<&T>, op: &str, right: Option<&T>) -> Option<bool> {
    let (Some(a), Some(b)) = (left, right) else {
        let differ = left.is_some() != right.is_some();
        return match op {
            "IS DISTINCT FROM" => Some(differ),
            "IS NOT DISTINCT FROM" => Some(!differ),
            _ => None,
        };
    };
    let order = a.cmp(b);
    Some(match op {
        "=" | "IS NOT DISTINCT FROM" => order.is_eq(),
        "<>" | "IS DISTINCT FROM" => order.is_ne(),
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        ">=" => order.is_ge(),
        other => panic!("{other} is no operator"),
    })
}

/// A column of each number type, with values at the ends of the type, around powers of two and ten, and a null.
fn columns() -> Vec<ArrayRef> {
    const TWO_53: i64 = 1 << 53;
    fn signed<T: TryFrom<i128>>() -> Vec<Option<T>> {
        let ends = [7, 8, 15, 16, 24, 31, 32, 53, 63].map(|bits| 1_i128 << bits);
        let near = ends.iter().flat_map(|end| [end - 1, *end, end + 1]).flat_map(|value| [value, -value]);
        let each = near.chain([0, 1, -1, 7, 71, 7104]).filter_map(|value| T::try_from(value).ok());
        each.map(Some).chain([None]).collect()
    }
    let decimals = |most: i128| {
        let values = [
            0,
            1,
            -1,
            7104,
            7105,
            -7104,
            10_014_648_437,
            9_007_199_254_740_993,
            i128::from(TWO_53),
            most,
            -most,
        ];
        values.map(|value| if value.abs() <= most { Some(value) } else { None }).to_vec()
    };
    let small = decimals(999_999_999);
    let (nine, eighteen) = (
        Decimal32Array::from(small.iter().map(|value| value.map(|value| value as i32)).collect::<Vec<_>>()),
        decimals(999_999_999_999_999_999),
    );
    let eighteen = Decimal64Array::from(
        eighteen.iter().map(|value| value.map(|value| value as i64)).collect::<Vec<_>>(),
    );
    let most = 10_i128.pow(38) - 1;
    let wide: Vec<Option<i256>> = [0, 1, -1, 7104, most, -most]
        .map(|value| Some(i256::from_i128(value)))
        .into_iter()
        .chain([
            i256::from_string(&"9".repeat(76)),
            i256::from_string(&format!("-{}", "9".repeat(76))),
            i256::from_string("71040000000000000000"),
            i256::from_string("71040000000000006252776074688882"),
            None,
        ])
        .collect();
    let floats = [
        0.0,
        -0.0,
        0.1,
        71.04,
        71.05,
        -71.04,
        1.5,
        5e-324,
        f64::MAX,
        f64::MIN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
        9_007_199_254_740_992.0,
        9_007_199_254_740_994.0,
        9.223_372_036_854_776e18,
        -9.223_372_036_854_776e18,
        1.844_674_407_370_955_2e19,
        1e37,
        1e38,
        1e76,
        65_504.0,
        16_777_216.0,
    ];
    let halves = floats.map(|value| Some(f16::from_f64(value))).into_iter().chain([None]);
    let singles = floats.map(|value| Some(value as f32)).into_iter().chain([None]);
    vec![
        Arc::new(Int8Array::from(signed::<i8>())),
        Arc::new(Int16Array::from(signed::<i16>())),
        Arc::new(Int32Array::from(signed::<i32>())),
        Arc::new(Int64Array::from(signed::<i64>())),
        Arc::new(UInt8Array::from(signed::<u8>())),
        Arc::new(UInt16Array::from(signed::<u16>())),
        Arc::new(UInt32Array::from(signed::<u32>())),
        Arc::new(UInt64Array::from(signed::<u64>())),
        Arc::new(nine.with_precision_and_scale(9, 2).unwrap()),
        Arc::new(eighteen.with_precision_and_scale(18, 4).unwrap()),
        Arc::new(Decimal128Array::from(decimals(most)).with_precision_and_scale(38, 0).unwrap()),
        Arc::new(Decimal128Array::from(decimals(most)).with_precision_and_scale(38, 38).unwrap()),
        Arc::new(Decimal128Array::from(small).with_precision_and_scale(9, 2).unwrap()),
        Arc::new(Decimal256Array::from(wide.clone()).with_precision_and_scale(76, 0).unwrap()),
        Arc::new(Decimal256Array::from(wide.clone()).with_precision_and_scale(76, 18).unwrap()),
        Arc::new(Decimal256Array::from(wide).with_precision_and_scale(76, 76).unwrap()),
        Arc::new(halves.collect::<Float16Array>()),
        Arc::new(singles.collect::<Float32Array>()),
        Arc::new(floats.map(Some).into_iter().chain([None]).collect::<Float64Array>()),
    ]
}

fn exact(column: &ArrayRef) -> Vec<Option<Exact>> {
    (0..column.len()).map(|row| Exact::of(&ScalarValue::try_from_array(column, row).unwrap())).collect()
}

fn conditions(text: &str, batch: &RecordBatch) -> Vec<Option<bool>> {
    let expression =
        Expression::filter(text, &batch.schema()).unwrap_or_else(|error| panic!("{text}: {error}"));
    let values = expression.evaluate(&batch.project(expression.inputs()).unwrap());
    let values = values.unwrap_or_else(|error| panic!("{text} of {}: {error}", batch.schema()));
    values.as_boolean().iter().collect()
}

#[test]
fn columns_of_any_two_number_types_are_compared_exactly() {
    let columns = columns();
    for (left_at, left) in columns.iter().enumerate() {
        for (right_at, right) in columns.iter().enumerate() {
            let rows = (left.len() * right.len()) as u64;
            let of = |column: &ArrayRef, index: fn(u64, u64) -> u64| {
                let other = right.len() as u64;
                take(column, &Indexes::from_iter_values((0..rows).map(|row| index(row, other))), None)
                    .unwrap()
            };
            let (a, b) = (of(left, |row, other| row / other), of(right, |row, other| row % other));
            let batch = RecordBatch::try_from_iter_with_nullable([("a", a, true), ("b", b, true)]).unwrap();
            let (left_values, right_values) = (exact(left), exact(right));
            // Each operator is tried with several pairs of types.
            for op in [left_at, left_at + right_at, right_at].map(|at| OPERATORS[at % OPERATORS.len()]) {
                let found = conditions(&format!("a {op} b"), &batch);
                for (row, found) in found.into_iter().enumerate() {
                    let (a, b) = (&left_values[row / right.len()], &right_values[row % right.len()]);
                    let expected = compared(a.as_ref(), op, b.as_ref());
                    let types = (left.data_type(), right.data_type());
                    assert_eq!(found, expected, "{a:?} {op} {b:?} of {types:?}");
                }
            }
        }
    }
}

const LITERALS: [&str; 40] = [
    "0",
    "-0.0",
    "1",
    "-1",
    "1.5",
    "-1.5",
    "0.1",
    "71.04",
    "71.040",
    "71.045",
    "-71.04",
    "71.050000000000000000000000001",
    "71.040000000000006252776074688881635665893554688",
    "127.5",
    "128",
    "-128.5",
    "255.5",
    "256",
    "65504",
    "65519.9999",
    "65520",
    "1.0014648437",
    "16777217",
    "2147483647.5",
    "9007199254740992.5",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e38",
    "1e300",
    "-1e300",
    "1e400",
    "1e-400",
    "3.5e38",
    "99999999999999999999999999999999999999.5",
    "5e-324",
];

/// Least and greatest value of a column without NaNs, presence of nulls, and presence of other values.
struct Ends(Option<(ScalarValue, ScalarValue)>, (bool, bool));

impl Bounds for Ends {
    fn range(&self, _: &str) -> Option<(ScalarValue, ScalarValue)> {
        self.0.clone()
    }

    fn nulls(&self, _: &str) -> Option<(bool, bool)> {
        Some(self.1)
    }

    fn may_hold(&self, _: &str, _: &ScalarValue) -> bool {
        true
    }
}

fn ends(rows: &ArrayRef) -> Ends {
    let values = (0..rows.len()).map(|row| ScalarValue::try_from_array(rows, row).unwrap());
    let mut numbers: Vec<ScalarValue> =
        values.filter(|value| !matches!(Exact::of(value), None | Some(Exact::Nan))).collect();
    numbers.sort_by_key(|value| Exact::of(value).unwrap());
    let range = numbers.first().cloned().zip(numbers.last().cloned());
    Ends(range, (rows.null_count() > 0, rows.null_count() < rows.len()))
}

#[test]
fn literals_are_exact_in_every_comparison_and_statistics_agree_with_the_rows() {
    for column in columns() {
        let data_type = column.data_type().clone();
        let batch = RecordBatch::try_from_iter_with_nullable([("x", Arc::clone(&column), true)]).unwrap();
        let values = exact(&column);
        for (index, text) in LITERALS.iter().enumerate() {
            let literal = Exact::literal_for(text, &data_type);
            let next = LITERALS[(index + 1) % LITERALS.len()];
            let next_literal = Exact::literal_for(next, &data_type);
            for (at, op) in OPERATORS.iter().enumerate().filter(|(at, _)| (at + index) % 2 == 0) {
                let (condition, swapped) = (format!("x {op} {text}"), at % 4 < 2);
                let condition = if swapped { format!("{text} {op} x") } else { condition };
                let expected = values.iter().map(|value| match swapped {
                    true => compared(Some(&literal), op, value.as_ref()),
                    false => compared(value.as_ref(), op, Some(&literal)),
                });
                let expected: Vec<Option<bool>> = expected.collect();
                assert_eq!(
                    conditions(&condition, &batch),
                    expected,
                    "{condition} of {data_type}: {values:?}"
                );
                let filter = Expression::filter(&condition, &batch.schema()).unwrap();
                for row in 0..column.len() {
                    let rows = column.slice(row, (column.len() - row).min(2));
                    let kept =
                        expected[row..row + rows.len()].iter().filter(|kept| **kept == Some(true)).count();
                    match filter.verdict(&ends(&rows)) {
                        Verdict::None => assert_eq!(kept, 0, "{condition} of {rows:?}"),
                        Verdict::All => assert_eq!(kept, rows.len(), "{condition} of {rows:?}"),
                        Verdict::Unknown => {}
                    }
                }
            }
            let equal = |value: &Option<Exact>, literal: &Exact| compared(value.as_ref(), "=", Some(literal));
            let either: Vec<_> = values
                .iter()
                .map(|value| Some(equal(value, &literal)? || equal(value, &next_literal)?))
                .collect();
            assert_eq!(conditions(&format!("x IN ({text}, {next})"), &batch), either, "{data_type}");
            let neither: Vec<_> = either.iter().map(|found| found.map(|found| !found)).collect();
            assert_eq!(conditions(&format!("x NOT IN ({text}, {next})"), &batch), neither, "{data_type}");
            let case = conditions(
                &format!("CASE x WHEN {text} THEN true WHEN {next} THEN true ELSE false END"),
                &batch,
            );
            let found: Vec<_> = either.iter().map(|found| Some(found.unwrap_or(false))).collect();
            assert_eq!(case, found, "CASE x WHEN {text} WHEN {next} of {data_type}");
            let nulled = conditions(&format!("nullif(x, {text}) IS NULL"), &batch);
            let null: Vec<_> =
                values.iter().map(|value| Some(equal(value, &literal) != Some(false))).collect();
            assert_eq!(nulled, null, "nullif(x, {text}) of {data_type}");
            let within = conditions(&format!("x BETWEEN {text} AND {next}"), &batch);
            let between = values.iter().map(|value| {
                let value = value.as_ref()?;
                Some(*value >= literal && *value <= next_literal)
            });
            assert_eq!(within, between.collect::<Vec<_>>(), "x BETWEEN {text} AND {next} of {data_type}");
        }
    }
}

#[test]
fn each_price_equals_its_own_literal_and_no_other() {
    let prices = Decimal128Array::from_iter_values(0..10_000).with_precision_and_scale(9, 2).unwrap();
    let batch = RecordBatch::try_from_iter([("price", Arc::new(prices) as ArrayRef)]).unwrap();
    let kept = |text: String| {
        let kept = conditions(&text, &batch);
        kept.iter()
            .enumerate()
            .filter(|(_, kept)| **kept == Some(true))
            .map(|(row, _)| row)
            .collect::<Vec<_>>()
    };
    for cents in (0..10_000).step_by(7) {
        let text = format!("{}.{:02}", cents / 100, cents % 100);
        assert_eq!(kept(format!("price = {text}")), [cents], "{text}");
        assert_eq!(kept(format!("price < {text}")).len(), cents, "{text}");
        assert_eq!(kept(format!("price IN ({text}, 1000.5)")), [cents], "{text}");
        assert_eq!(kept(format!("price BETWEEN {text} AND {text}")), [cents], "{text}");
    }
}

#[test]
fn literals_are_compared_with_each_other_exactly() {
    let batch = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    for a in LITERALS {
        for b in LITERALS {
            let expected = compared(Some(&Exact::literal(a)), "<", Some(&Exact::literal(b)));
            assert_eq!(conditions(&format!("x = 1 AND {a} < {b}"), &batch), [expected], "{a} < {b}");
        }
    }
}

#[test]
fn types_and_values_of_arithmetic_with_literals_stay() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("f", Arc::new(Float32Array::from(vec![0.1]))),
        ("d", Arc::new(Decimal128Array::from(vec![7104]).with_precision_and_scale(9, 2).unwrap())),
        ("i", Arc::new(Int64Array::from(vec![3]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for (text, data_type, value) in [
        ("f * 0.5", DataType::Float64, "0.05000000074505806"),
        ("d + 0.5", DataType::Float64, "71.54"),
        ("d + 1", DataType::Decimal128(23, 2), "72.04"),
        ("i * 1e-3", DataType::Float64, "0.003"),
        ("i / -0.5", DataType::Float64, "-6"),
        ("coalesce(d, 0.1)", DataType::Decimal128(9, 2), "71.04"),
        ("nullif(i, 0.5)", DataType::Int64, "3"),
        ("nullif(i, 3)", DataType::Int64, "NULL"),
        ("nullif(d, 71.04)", DataType::Decimal128(9, 2), "NULL"),
        ("CASE WHEN i = 3 THEN d ELSE 0.1 END", DataType::Decimal128(9, 2), "71.04"),
        ("CASE WHEN i = 4 THEN d ELSE 0.1 END", DataType::Decimal128(9, 2), "0.10"),
        (
            "CAST(12345678901234567890.125 AS DECIMAL(38, 2))",
            DataType::Decimal128(38, 2),
            "12345678901234567890.13",
        ),
        ("CAST(-0.1 AS DECIMAL(38, 20))", DataType::Decimal128(38, 20), "-0.10000000000000000000"),
        ("CAST(d AS DOUBLE)", DataType::Float64, "71.04"),
    ] {
        let expression = Expression::column(&format!("{text} AS y"), &batch.schema())
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        let values = expression.evaluate(&batch.project(expression.inputs()).unwrap()).unwrap();
        let found = ScalarValue::try_from_array(&values, 0).unwrap();
        let shown = match &found {
            ScalarValue::Decimal128(Some(_), ..) => {
                arrow_cast::display::array_value_to_string(&values, 0).unwrap()
            }
            other => other.to_string(),
        };
        assert_eq!((values.data_type(), shown.as_str()), (&data_type, value), "{text}");
    }
}

#[test]
fn decimals_of_any_width_keep_their_fraction_with_integers() {
    let (narrow, middle) = (Decimal32Array::from(vec![240]), Decimal64Array::from(vec![24_000]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("d", Arc::new(narrow.with_precision_and_scale(9, 2).unwrap())),
        ("e", Arc::new(middle.with_precision_and_scale(18, 4).unwrap())),
        ("i", Arc::new(Int64Array::from(vec![2]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for condition in [
        "d + 2 = 4.4",
        "e - i = 0.4",
        "i * d = 4.8",
        "d % 2 = 0.4",
        "coalesce(d, 0) = 2.4",
        "nullif(d, 2) = 2.4",
        "greatest(e, 1) = 2.4",
        "CASE WHEN i = 2 THEN d ELSE 0 END = 2.4",
        "CASE i WHEN 2 THEN 1 ELSE e END = 1",
        "i NOT BETWEEN d AND 16777216",
        "d BETWEEN i AND 3",
    ] {
        assert_eq!(conditions(condition, &batch), [Some(true)], "{condition}");
    }
}

#[test]
fn decimals_and_floats_of_which_one_is_the_result_become_doubles() {
    let far = Decimal128Array::from(vec![10_i128.pow(37)]).with_precision_and_scale(38, 0).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("d", Arc::new(Decimal128Array::from(vec![7104]).with_precision_and_scale(9, 2).unwrap())),
        ("none", Arc::new(Decimal128Array::from(vec![None]).with_precision_and_scale(9, 2).unwrap())),
        ("far", Arc::new(far)),
        ("i", Arc::new(Int64Array::from(vec![3]))),
        ("f", Arc::new(Float32Array::from(vec![0.1]))),
        ("x", Arc::new(Float64Array::from(vec![1e-20]))),
        ("large", Arc::new(Float64Array::from(vec![1e300]))),
        ("nan", Arc::new(Float64Array::from(vec![f64::NAN]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for (text, value) in [
        ("coalesce(none, x)", 1e-20),
        ("coalesce(none, large)", 1e300),
        ("coalesce(d, x)", 71.04),
        ("coalesce(none, 0.5, x)", 0.5),
        ("coalesce(none, f)", f64::from(0.1_f32)),
        ("nvl(none, nan)", f64::NAN),
        ("nvl2(x, d, x)", 71.04),
        ("greatest(far, large)", 1e300),
        ("greatest(far, x)", 1e37),
        ("least(d, x, i)", 1e-20),
        ("CASE WHEN i = 3 THEN far ELSE x END", 1e37),
        ("CASE WHEN i = 4 THEN d WHEN i = 5 THEN i ELSE large END", 1e300),
    ] {
        let expression = Expression::column(&format!("{text} AS y"), &batch.schema()).unwrap();
        let values = expression.evaluate(&batch.project(expression.inputs()).unwrap()).unwrap();
        assert_eq!(values.data_type(), &DataType::Float64, "{text}");
        let found = values.as_primitive::<arrow_array::types::Float64Type>().value(0);
        assert!(found == value || (found.is_nan() && value.is_nan()), "{text} is {found}, expected {value}");
    }
}

#[test]
fn a_timestamp_with_a_zone_is_an_instant() {
    let hour = arrow_array::TimestampMicrosecondArray::from(vec![3_600_000_000]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("paris", Arc::new(hour.clone().with_timezone("Europe/Paris"))),
        ("utc", Arc::new(hour.with_timezone("UTC"))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for column in ["paris", "utc"] {
        for (text, expected) in [
            ("= TIMESTAMPTZ '1970-01-01 01:00:00+00:00'", true),
            ("= TIMESTAMPTZ '1970-01-01 02:00:00+01:00'", true),
            ("IN (TIMESTAMPTZ '1970-01-01 01:00:00Z')", true),
            ("> TIMESTAMPTZ '1970-01-01 00:30:00+00:00'", true),
            ("= TIMESTAMPTZ '1970-01-01 02:00:00+00:00'", false),
        ] {
            assert_eq!(conditions(&format!("{column} {text}"), &batch), [Some(expected)], "{column} {text}");
        }
    }
}

#[test]
fn text_is_converted_to_the_type_of_the_number_that_it_is_compared_with() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("s", Arc::new(StringArray::from(vec!["71.045"]))),
        ("d", Arc::new(Decimal128Array::from(vec![7105]).with_precision_and_scale(9, 2).unwrap())),
        ("i", Arc::new(Int64Array::from(vec![5]))),
        ("x", Arc::new(Float64Array::from(vec![f64::NAN]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for condition in ["d = s", "d = '71.045'", "i = '5'", "x = 'NaN'", "s = 71.045", "i IN ('5', 1.5)"] {
        assert_eq!(conditions(condition, &batch), [Some(true)], "{condition}");
    }
    let fails = Expression::filter("i = s", &batch.schema()).unwrap();
    assert!(fails.evaluate(&batch.project(fails.inputs()).unwrap()).is_err());
}

#[test]
fn decimals_become_the_nearest_floats() {
    let unscaled = [
        7104,
        9_007_199_254_740_993,
        10_014_648_437,
        16_777_217,
        -1,
        123_456_789_012_345_678_901_234_567_890_123_456_i128,
    ];
    for (unscaled, scale) in
        unscaled.iter().flat_map(|value| [0, 2, 7, 10, 15, 23, 38].map(|scale| (*value, scale)))
    {
        let column = Decimal128Array::from(vec![unscaled]).with_precision_and_scale(38, scale).unwrap();
        let exact = Exact::decimal(unscaled, scale);
        let batch = RecordBatch::try_from_iter([("d", Arc::new(column) as ArrayRef)]).unwrap();
        for (data_type, nearest) in [
            ("DOUBLE", format!("{unscaled}e-{scale}").parse::<f64>().unwrap()),
            ("FLOAT", format!("{unscaled}e-{scale}").parse::<f32>().unwrap().into()),
        ] {
            for text in [format!("CAST(d AS {data_type})"), format!("TRY_CAST(d AS {data_type})")] {
                let expression =
                    Expression::column(&format!("CAST({text} AS DOUBLE) AS y"), &batch.schema()).unwrap();
                let found = expression.evaluate(&batch).unwrap();
                let found = found.as_primitive::<arrow_array::types::Float64Type>().value(0);
                assert_eq!(found, nearest, "{text} of {unscaled}e-{scale}");
            }
        }
        let array = forebay_sql::cast(batch.column(0), &DataType::Float16, &Default::default()).unwrap();
        let half = array.as_primitive::<arrow_array::types::Float16Type>().value(0);
        assert_eq!(half, nearest_half(&exact), "{unscaled}e-{scale}");
    }
}

#[test]
fn decimals_of_256_bits_become_integers_only_if_they_fit() {
    let all = [
        "0",
        "-7.9",
        "9223372036854775807.9",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551621",
        "9999999999999999999999999999999999.5555",
        "-170141183460469231731687303715884105733",
    ];
    let unscaled = all.map(|text| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        i256::from_string(&format!("{whole}{fraction:0<4}")).unwrap()
    });
    let column = Decimal256Array::from_iter_values(unscaled).with_precision_and_scale(60, 4).unwrap();
    let batch = RecordBatch::try_from_iter([("d", Arc::new(column) as ArrayRef)]).unwrap();
    for (row, text) in all.iter().enumerate() {
        let whole: i128 = text.split('.').next().unwrap().parse().unwrap_or(i128::MIN);
        let row = batch.slice(row, 1);
        for (data_type, fits) in [
            ("INT", i32::try_from(whole).is_ok()),
            ("BIGINT", i64::try_from(whole).is_ok()),
            ("BIGINT UNSIGNED", u64::try_from(whole).is_ok()),
        ] {
            let tried = format!("CAST(TRY_CAST(d AS {data_type}) AS VARCHAR) AS y");
            let tried = Expression::column(&tried, &row.schema()).unwrap().evaluate(&row).unwrap();
            let found = tried.is_valid(0).then(|| tried.as_string::<i32>().value(0).to_owned());
            assert_eq!(found, fits.then(|| whole.to_string()), "{text} as {data_type}");
            let cast = Expression::column(&format!("CAST(d AS {data_type}) AS y"), &row.schema()).unwrap();
            assert_eq!(cast.evaluate(&row).is_ok(), fits, "{text} as {data_type}");
        }
    }
}

#[test]
fn rounded_decimals_are_compared_in_the_type_that_they_have() {
    let column = Decimal128Array::from(vec![7105]).with_precision_and_scale(9, 2).unwrap();
    let batch = RecordBatch::try_from_iter([("d", Arc::new(column) as ArrayRef)]).unwrap();
    for condition in [
        "round(d, 1) IN (1.25, 71.1)",
        "round(d, 1) > 1.25",
        "round(d, 1) > d",
        "round(d, 2) = 71.05",
        "round(d, 3) = 71.05",
        "round(d, 1 + 1) = 71.05",
        "round(d, -1) = 70",
        "round(d, CAST(1 AS TINYINT)) BETWEEN 71.05 AND 71.15",
        "round(d) = 71",
        "COALESCE(round(d, 1), 5.55) = 71.1",
        "round(round(d, 1), 0) = 71",
    ] {
        assert_eq!(conditions(condition, &batch), [Some(true)], "{condition}");
    }
}

#[test]
fn dates_beyond_the_range_of_a_timestamp_are_null_in_try_cast() {
    const DAY: i64 = 86_400_000;
    let days = [i64::from(i32::MAX - 1), -i64::from(i32::MAX - 1), 19_782];
    let short: ArrayRef =
        Arc::new(Date32Array::from_iter_values(days.map(|day| i32::try_from(day).unwrap())));
    let long: ArrayRef = Arc::new(Date64Array::from_iter_values(days.map(|day| day * DAY)));
    for dates in [short, long] {
        let batch = RecordBatch::try_from_iter([("day", dates)]).unwrap();
        for data_type in ["TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP"] {
            let condition = format!("TRY_CAST(day AS {data_type}) = TIMESTAMP '2024-02-29 00:00:00'");
            assert_eq!(conditions(&condition, &batch), [None, None, Some(true)], "{data_type}");
            let cast =
                Expression::column(&format!("CAST(day AS {data_type}) AS y"), &batch.schema()).unwrap();
            assert!(cast.evaluate(&batch).is_err(), "{data_type}");
        }
        let missing = conditions("TRY_CAST(day AS TIMESTAMPTZ) IS NULL", &batch);
        assert_eq!(missing, [Some(true), Some(true), Some(false)]);
        let condition = "CAST(TRY_CAST(day AS TIMESTAMP(3)) AS DATE) = day";
        let known = batch.slice(2, 1);
        assert_eq!(conditions(condition, &known), [Some(true)]);
    }
}
