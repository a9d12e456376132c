use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use arrow_array::{RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};

use super::*;
use crate::{Bounds, Expression, ScalarValue, Verdict};

/// Encodes a set, as a client does.
fn encoded(kind: u8, scale: i8, width: u8, values: &[Vec<u8>]) -> Buffer {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([kind, scale.to_le_bytes()[0], width, 0]);
    bytes.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| bytes.extend(value));
    Buffer::from(bytes)
}

fn numbers(scale: i8, values: &[i64]) -> Buffer {
    let values: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    encoded(u8::from(!values.is_empty()), scale, if values.is_empty() { 0 } else { 8 }, &values)
}

fn text(kind: u8, values: &[&str]) -> Buffer {
    let prefixed = |value: &&str| [&(value.len() as u32).to_le_bytes(), value.as_bytes()].concat();
    encoded(kind, 0, 0, &values.iter().map(prefixed).collect::<Vec<_>>())
}

fn floats(values: &[f64]) -> Buffer {
    encoded(2, 0, 8, &values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>())
}

/// Evaluates `filter` with the set `:ids` over the rows of a column `x`, which are written as text.
fn evaluate(filter: &str, set: Buffer, data_type: &DataType, rows: &[Option<&str>]) -> Vec<Option<bool>> {
    let set = Arc::new(ValueSet::read(set).unwrap());
    let schema = Arc::new(Schema::new(vec![Field::new("x", data_type.clone(), true)]));
    let text: arrow_array::ArrayRef = Arc::new(arrow_array::StringArray::from(rows.to_vec()));
    let column = arrow_cast::cast(&text, data_type).unwrap();
    let filter = Expression::filter_with(filter, &schema, &[("ids".into(), set)]).unwrap();
    let held = filter.evaluate(&RecordBatch::try_new(schema, vec![column]).unwrap()).unwrap();
    held.as_boolean().iter().collect()
}

#[test]
fn values_are_members_of_a_set_exactly_in_each_type() {
    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);
    let in_set = |set: &Buffer, data_type: DataType, rows: &[Option<&str>]| {
        evaluate("x IN (:ids)", set.clone(), &data_type, rows)
    };
    let integers = numbers(0, &[-1, 2, 300, 1 << 53, (1 << 53) + 1]);
    for data_type in [DataType::Int8, DataType::Int32, DataType::Int64] {
        assert_eq!(
            in_set(&integers, data_type, &[Some("-1"), Some("44"), None, Some("2")]),
            [YES, NO, None, YES]
        );
    }
    assert_eq!(in_set(&integers, DataType::UInt64, &[Some("18446744073709551615"), Some("300")]), [NO, YES]);
    assert_eq!(
        in_set(
            &integers,
            DataType::Decimal128(20, 2),
            &[Some("2.00"), Some("2.01"), Some("9007199254740993")]
        ),
        [YES, NO, YES]
    );
    assert_eq!(in_set(&integers, DataType::Decimal256(40, 3), &[Some("-1"), Some("-1.001")]), [YES, NO]);
    // As literals, numbers are rounded to float types.
    assert_eq!(
        in_set(&integers, DataType::Float64, &[Some("9007199254740992"), Some("2.5"), Some("NaN")]),
        [YES, NO, NO]
    );
    let cents = numbers(2, &[7104, 10_101]);
    for data_type in
        [DataType::Decimal128(15, 2), DataType::Decimal64(15, 3), DataType::Float32, DataType::Float64]
    {
        assert_eq!(in_set(&cents, data_type, &[Some("71.04"), Some("71.05")]), [YES, NO]);
    }
    assert_eq!(in_set(&cents, DataType::Int32, &[Some("71"), Some("101")]), [NO, NO]);
    let doubles = floats(&[-0.5, 0.0, 0.1, 3.0, f64::INFINITY]);
    assert_eq!(in_set(&doubles, DataType::Int16, &[Some("3"), Some("0"), Some("1")]), [YES, YES, NO]);
    // The double 0.1 is greater than the decimal.
    assert_eq!(
        in_set(&doubles, DataType::Decimal128(10, 1), &[Some("0.1"), Some("-0.5"), Some("3")]),
        [NO, YES, YES]
    );
    assert_eq!(
        in_set(&doubles, DataType::Float64, &[Some("-0"), Some("inf"), Some("-inf"), Some("NaN")]),
        [YES, YES, NO, NO]
    );
    let names = text(3, &["", "ann", "b\u{f6}b"]);
    for data_type in [DataType::Utf8, DataType::LargeUtf8] {
        assert_eq!(in_set(&names, data_type, &[Some(""), Some("an"), Some("b\u{f6}b")]), [YES, NO, YES]);
    }
    assert_eq!(in_set(&text(4, &["a"]), DataType::Binary, &[Some("a"), Some("")]), [YES, NO]);
    let days = encoded(5, 0, 8, &[19_000_i64.to_le_bytes().to_vec()]);
    assert_eq!(in_set(&days, DataType::Date32, &[Some("2022-01-08"), Some("2022-01-09")]), [YES, NO]);
    let times = encoded(
        6,
        0,
        8,
        &[1_500_000_000_i64.to_le_bytes().to_vec(), 2_000_000_000_i64.to_le_bytes().to_vec()],
    );
    let rows = [Some("1970-01-01T00:00:01"), Some("1970-01-01T00:00:02")];
    assert_eq!(in_set(&times, DataType::Timestamp(TimeUnit::Second, None), &rows), [NO, YES]);
    assert_eq!(in_set(&numbers(0, &[]), DataType::Utf8, &[Some("a"), None]), [NO, None]);
    // Nothing is in a set without values, whatever the type.
    assert_eq!(in_set(&numbers(0, &[]), DataType::Boolean, &[Some("true"), None]), [NO, None]);
    let time = DataType::Time64(TimeUnit::Microsecond);
    assert_eq!(in_set(&numbers(0, &[]), time, &[Some("12:00:00"), None]), [NO, None]);
}

#[test]
fn a_null_is_neither_in_a_set_nor_outside_of_it() {
    let set = || numbers(0, &[1, 2]);
    let rows = [Some("1"), Some("3"), None];
    let outside = evaluate("x NOT IN (:ids)", set(), &DataType::Int64, &rows);
    assert_eq!(outside, [Some(false), Some(true), None]);
    let both = evaluate(
        "x IN (:ids) OR x + 1 IN (:ids)",
        set(),
        &DataType::Int64,
        &[Some("0"), Some("2"), Some("5")],
    );
    assert_eq!(both, [Some(true), Some(true), Some(false)]);
}

#[test]
fn sets_are_refused_where_they_have_no_meaning() {
    let fields = [("x", DataType::Utf8), ("b", DataType::Boolean), ("i", DataType::Int64)];
    let schema = Schema::new(fields.map(|(name, data_type)| Field::new(name, data_type, true)).to_vec());
    let set = Arc::new(ValueSet::read(numbers(0, &[1])).unwrap());
    let sets = [("ids".to_owned(), set)];
    for (filter, reason) in [
        ("x IN (:ids)", ":ids has integers, and x is of type Utf8, expected text"),
        ("b IN (:ids)", "expected a number, text, bytes, a date or a timestamp"),
        ("x IN (:other)", "there are no values ':other' here; there are ':ids'"),
        ("x = :ids", "':ids' stands outside of a list, expected a set of values only as in x IN (:ids)"),
        ("x IN (:ids, 'a')", "':ids' must be alone in its list, as in x IN (:ids)"),
        ("i IN (:ids) IN (:ids)", ":ids has integers, and the result of IN (:ids) is of type Boolean"),
        ("x IN ($1)", "'$1' is not an expression of one row"),
    ] {
        let error = Expression::filter_with(filter, &schema, &sets).unwrap_err().to_string();
        assert!(error.contains(reason), "{filter}: {error}");
    }
    let error = Expression::column("x IN (:ids) AS y", &schema).unwrap_err().to_string();
    assert!(error.contains("there are no values ':ids' here; there are none"), "{error}");
}

#[test]
fn the_identity_of_a_filter_contains_the_values_and_not_their_name() {
    let schema = Schema::new(vec![Field::new("x", DataType::Int64, true)]);
    let identity = |filter: &str, name: &str, values: &[i64]| {
        let set = Arc::new(ValueSet::read(numbers(0, values)).unwrap());
        let filter = Expression::filter_with(filter, &schema, &[(name.into(), Arc::clone(&set))]).unwrap();
        assert_eq!(filter.sets(), [set.sha256()]);
        filter.identity()
    };
    let one = identity("x IN (:ids)", "ids", &[1, 2]);
    assert_eq!(one, identity("x IN (:a)", "a", &[1, 2]));
    assert_ne!(one, identity("x IN (:ids)", "ids", &[1, 3]));
    assert_ne!(one, identity("x NOT IN (:ids)", "ids", &[1, 2]));
}

#[test]
fn only_the_canonical_form_is_read() {
    let set = ValueSet::read(numbers(0, &[1, 2])).unwrap();
    assert_eq!(set.sha256(), "47daa971473a64ee5fb73900de8e6fc6c66c024668bb1a43fb7268ef080bfd6f");
    for (wrong, reason) in [
        (Buffer::from(b"FBV1".to_vec()), "has 4 bytes"),
        (Buffer::from(vec![b'x'; 40]), "does not begin with the header"),
        (numbers(0, &[2, 1]), "value number 2 is not greater than the one before"),
        (numbers(0, &[1, 1]), "value number 2 is not greater than the one before"),
        (numbers(1, &[10, 20]), "not their shortest form"),
        (numbers(77, &[1]), "has scale 77"),
        (encoded(1, 0, 16, &[1_i128.to_le_bytes().to_vec()]), "not their shortest form"),
        (encoded(1, 0, 4, &[vec![0; 4]]), "expected 8, 16 or 32"),
        (encoded(1, 0, 8, &[vec![0; 7]]), "1 values of 8 bytes take 7 bytes"),
        (encoded(9, 0, 8, &[vec![0; 8]]), "is of kind 9"),
        (encoded(1, 0, 8, &[]), "is empty and of kind 1"),
        (encoded(0, 0, 0, &[vec![1]]), "1 values of 0 bytes"),
        (floats(&[-0.0]), "value number 1 is NaN or -0"),
        (floats(&[f64::NAN]), "value number 1 is NaN or -0"),
        (text(3, &["b", "a"]), "value number 2 is not greater than the one before"),
        (encoded(3, 0, 0, &[vec![1, 0, 0, 0, 0xff]]), "value number 1 is not UTF-8"),
        (encoded(3, 0, 0, &[vec![9, 0, 0, 0, b'a']]), "value number 1 is cut off"),
        (encoded(3, 0, 0, &[vec![0, 0, 0, 0, b'a']]), "1 bytes after its last value"),
    ] {
        let error = ValueSet::read(wrong).unwrap_err();
        assert!(error.contains(reason), "{error}, expected {reason}");
    }
}

/// Any bytes are read or refused, and what is read can be compared with each type.
#[test]
fn altered_sets_are_read_or_refused() {
    let sets =
        [numbers(2, &[-5, 7, 901]), floats(&[-1.5, 0.0, 2.0]), text(3, &["a", "bc"]), text(4, &["", "x"])];
    let types =
        [DataType::Int8, DataType::UInt64, DataType::Decimal256(50, 4), DataType::Float16, DataType::Utf8];
    let mut read = 0;
    for set in &sets {
        for at in 0..set.len() {
            for change in [1, 0x7f, 0x80, 0xff] {
                let mut bytes = set.to_vec();
                bytes[at] ^= change;
                let Ok(changed) = ValueSet::read(Buffer::from(bytes)) else { continue };
                read += 1;
                let changed = Arc::new(changed);
                assert_ne!(changed.sha256(), ValueSet::read(set.clone()).unwrap().sha256());
                for data_type in &types {
                    if let Ok(typed) = super::typed::TypedSet::new(&changed, data_type) {
                        let nothing = arrow_array::new_null_array(data_type, 1);
                        assert!(typed.len() <= changed.len() && typed.search(&nothing).is_ok());
                    }
                }
            }
            assert!(ValueSet::read(set.slice_with_length(0, at)).is_err());
        }
    }
    assert!(read > 50, "{read}");
}

/// Memory that has room for `most` bytes.
struct Room {
    most: u64,
    held: Arc<Mutex<u64>>,
}

struct Part(u64, Arc<Mutex<u64>>);

impl SetMemory for Room {
    fn take(&self, bytes: u64) -> Result<Box<dyn Any + Send + Sync>, String> {
        let mut held = self.held.lock().unwrap();
        if *held + bytes > self.most {
            return Err(format!("needs {bytes} bytes, {held} of {} are in use", self.most));
        }
        *held += bytes;
        Ok(Box::new(Part(bytes, Arc::clone(&self.held))))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        *self.1.lock().unwrap() -= self.0;
    }
}

#[test]
fn expressions_share_the_values_of_a_type_which_are_charged_until_the_last_one_is_dropped() {
    let held = Arc::new(Mutex::new(0));
    let room = Room { most: 3000, held: Arc::clone(&held) };
    let set = numbers(0, &(0..100).collect::<Vec<_>>());
    assert_eq!(ValueSet::memory_bytes(&set), 816);
    assert_eq!(ValueSet::memory_bytes(&text(3, &["a", "bc"])), 16 + 4 + 1 + 4 + 2 + 8);
    assert_eq!(ValueSet::memory_bytes(b"FBV1\x03"), 5);
    let set = Arc::new(ValueSet::read(set).unwrap().charged_to(Box::new(room)));
    let schema = Schema::new(vec![Field::new("x", DataType::Int64, true)]);
    let filter = |text: &str| Expression::filter_with(text, &schema, &[("ids".to_owned(), Arc::clone(&set))]);
    let many = vec!["x + 1 IN (:ids)"; 20].join(" OR ");
    let filters = [filter("x IN (:ids)").unwrap(), filter(&many).unwrap()];
    assert_eq!(*held.lock().unwrap(), 800);
    let wide = filter("CAST(x AS DECIMAL(38, 2)) IN (:ids)").unwrap();
    assert_eq!(*held.lock().unwrap(), 800 + 1600);
    let error = filter("CAST(x AS DECIMAL(38, 3)) IN (:ids)").unwrap_err();
    assert_eq!(error, crate::Error::Memory(":ids: needs 1600 bytes, 2400 of 3000 are in use".to_owned()));
    drop(wide);
    assert_eq!(*held.lock().unwrap(), 800);
    drop(filters);
    assert_eq!(*held.lock().unwrap(), 0);
}

/// Bounds of the only column.
struct Between(ScalarValue, ScalarValue, bool);

impl Bounds for Between {
    fn range(&self, _: &str) -> Option<(ScalarValue, ScalarValue)> {
        Some((self.0.clone(), self.1.clone()))
    }

    fn nulls(&self, _: &str) -> Option<(bool, bool)> {
        Some((self.2, true))
    }

    fn may_hold(&self, _: &str, value: &ScalarValue) -> bool {
        *value != ScalarValue::Int64(Some(30))
    }
}

#[test]
fn bounds_exclude_blocks_without_a_member_and_decide_those_of_one_value() {
    let verdict = |filter: &str, set: Buffer, bounds: Between| {
        let schema = Schema::new(vec![Field::new("x", bounds.0.data_type(), true)]);
        let sets = [("ids".to_owned(), Arc::new(ValueSet::read(set).unwrap()))];
        Expression::filter_with(filter, &schema, &sets).unwrap().verdict(&bounds)
    };
    let integers = |least, greatest, nulls| {
        Between(ScalarValue::Int64(Some(least)), ScalarValue::Int64(Some(greatest)), nulls)
    };
    let many = || numbers(0, &(0..1000).map(|number| 10 * number).collect::<Vec<_>>());
    for (least, greatest, nulls, expected, opposite) in [
        (11, 19, true, Verdict::None, Verdict::Unknown),
        (11, 19, false, Verdict::None, Verdict::All),
        (11, 20, false, Verdict::Unknown, Verdict::Unknown),
        (10, 19, false, Verdict::Unknown, Verdict::Unknown),
        (20, 20, false, Verdict::All, Verdict::None),
        (20, 20, true, Verdict::Unknown, Verdict::None),
        (-9, -1, false, Verdict::None, Verdict::All),
        (9991, i64::MAX, false, Verdict::None, Verdict::All),
    ] {
        assert_eq!(
            verdict("x IN (:ids)", many(), integers(least, greatest, nulls)),
            expected,
            "{least} to {greatest}"
        );
        assert_eq!(verdict("x NOT IN (:ids)", many(), integers(least, greatest, nulls)), opposite);
    }
    // Few values are tested against Bloom filters, which exclude 30 here.
    assert_eq!(verdict("x IN (:ids)", numbers(0, &[30, 90]), integers(20, 40, false)), Verdict::Unknown);
    assert_eq!(verdict("x IN (:ids)", numbers(0, &[30]), integers(20, 40, false)), Verdict::None);
    let texts = |least: &str, greatest: &str| Between(least.into(), greatest.into(), false);
    assert_eq!(verdict("x IN (:ids)", text(3, &["b", "d"]), texts("bb", "c")), Verdict::None);
    assert_eq!(verdict("x IN (:ids)", text(3, &["b", "d"]), texts("b", "c")), Verdict::Unknown);
    // A float column may have NaNs in addition to its bounds.
    let zeros = || Between(ScalarValue::Float64(Some(-0.0)), ScalarValue::Float64(Some(0.0)), false);
    assert_eq!(verdict("x IN (:ids)", floats(&[0.0]), zeros()), Verdict::Unknown);
    assert_eq!(verdict("x IN (:ids)", floats(&[1.0]), zeros()), Verdict::None);
    assert_eq!(verdict("x IN (:ids)", numbers(0, &[]), integers(0, 9, true)), Verdict::None);
}
