use std::sync::Arc;

use arrow_array::{
    BooleanArray, Date32Array, Decimal128Array, FixedSizeListArray, Float32Array, Int64Array, ListArray,
    StringArray, Time32SecondArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, UInt64Array,
    types::{Float32Type, Int64Type},
};
use serde_json::json;

use super::*;

fn of(array: impl Array + 'static) -> serde_json::Value {
    let array: ArrayRef = Arc::new(array);
    let field = Field::new("c", array.data_type().clone(), true);
    let mut column = serde_json::to_value(Column::new(&field, &array).unwrap()).unwrap();
    column.as_object_mut().unwrap().retain(|name, _| name != "name" && name != "type");
    column
}

#[test]
fn numbers_are_exact_and_what_json_has_no_number_for_is_named() {
    let ints = Int64Array::from(vec![Some(i64::MAX), None, Some(-3)]);
    assert_eq!(of(ints)["max"], json!(i64::MAX));
    assert_eq!(
        of(UInt64Array::from(vec![u64::MAX, 1])),
        json!({"nulls": 0, "nans": null, "min": 1, "max": u64::MAX, "mean": 2f64.powi(63)})
    );
    let floats = Float32Array::from(vec![Some(f32::NAN), Some(f32::INFINITY), Some(0.5), None]);
    assert_eq!(of(floats), json!({"nulls": 1, "nans": 1, "min": 0.5, "max": "inf", "mean": "inf"}));
    let flags = BooleanArray::from(vec![Some(true), Some(false), None, Some(true), Some(true)]);
    assert_eq!(of(flags), json!({"nulls": 1, "nans": null, "min": false, "max": true, "mean": 0.75}));
    let decimals = Decimal128Array::from(vec![150, -25]).with_precision_and_scale(10, 2).unwrap();
    assert_eq!(of(decimals), json!({"nulls": 0, "nans": null, "min": "-0.25", "max": "1.50", "mean": 0.625}));
}

#[test]
fn of_lists_and_tensors_the_items_are_told_of() {
    let tensor = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        [[1.0, 2.0], [3.0, 6.0]].map(|row| Some(row.map(Some))),
        2,
    );
    assert_eq!(of(tensor), json!({"nulls": 0, "nans": 0, "min": 1.0, "max": 6.0, "mean": 3.0}));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(9)]),
        None,
        Some(vec![Some(1), None, Some(5)]),
        Some(vec![]),
    ]);
    // Of a part, the items of that part.
    assert_eq!(of(lists.slice(1, 3)), json!({"nulls": 1, "nans": null, "min": 1, "max": 5, "mean": 3.0}));
}

#[test]
fn text_and_times_have_a_first_and_a_last_and_nothing_has_none() {
    let long = "z".repeat(100);
    let text = of(StringArray::from(vec![Some("b"), None, Some(&long), Some("a")]));
    assert_eq!((&text["min"], text["max"].as_str().map(str::len)), (&json!("a"), Some(67)));
    let times = of(TimestampMillisecondArray::from(vec![86_400_000, 0]));
    assert_eq!(
        (&times["min"], &times["max"]),
        (&json!("1970-01-01T00:00:00"), &json!("1970-01-02T00:00:00"))
    );
    let empty = json!({"nulls": 0, "nans": null, "min": null, "max": null, "mean": null});
    assert_eq!(of(Int64Array::from(Vec::<i64>::new())), empty);
    assert_eq!(of(arrow_array::NullArray::new(2))["nulls"], 2);
}

#[test]
fn a_time_that_has_no_text_is_shown_as_its_number() {
    fn extremes(array: impl Array + 'static) -> [serde_json::Value; 2] {
        let column = of(array);
        ["min", "max"].map(|name| column[name].clone())
    }
    // DuckDB stores the date 'infinity' as this number.
    let dates = Date32Array::from(vec![Some(0), None, Some(i32::MAX)]);
    assert_eq!(extremes(dates), ["1970-01-01", "2147483647"]);
    let timestamps = TimestampMicrosecondArray::from(vec![0, i64::MAX]);
    assert_eq!(extremes(timestamps), ["1970-01-01T00:00:00", "9223372036854775807"]);
    let midnight = Time64MicrosecondArray::from(vec![0, 86_400_000_000]);
    assert_eq!(extremes(midnight), ["00:00:00", "86400000000"]);
    let midnight = Time32SecondArray::from(vec![0, 86_400]);
    assert_eq!(extremes(midnight), ["00:00:00", "86400"]);
    let nowhere = TimestampMicrosecondArray::from(vec![5, -1]).with_timezone("Mars/Olympus");
    assert_eq!(extremes(nowhere), ["-1", "5"]);
}
