use arrow_array::{
    Date32Array, Decimal128Array, Int64Array, ListArray, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{Field, TimeUnit};

use super::*;

fn check(column: ArrayRef) -> Result<(), String> {
    check_texts(&RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap(), 100)
}

#[test]
fn a_time_without_a_text_is_refused_with_its_column_and_row() {
    let times = TimestampMicrosecondArray::from(vec![Some(0), None, Some(i64::MAX)]);
    let error = check(Arc::new(times.clone())).unwrap_err();
    assert!(error.starts_with("column 'c', row 102: Failed to convert 9223372036854775807"), "{error}");
    assert!(error.ends_with("; write Parquet or Arrow instead"), "{error}");
    check(Arc::new(times.slice(0, 2))).unwrap();
    assert!(check(Arc::new(Date32Array::from(vec![i32::MAX]))).unwrap_err().contains("row 100"));
    check(Arc::new(Int64Array::from(vec![i64::MAX]))).unwrap();
}

#[test]
fn a_time_without_a_text_is_found_in_lists_and_structs_unless_these_are_null() {
    let far = || Arc::new(TimestampMicrosecondArray::from(vec![0, i64::MAX])) as ArrayRef;
    let data_type = DataType::Timestamp(TimeUnit::Microsecond, None);
    let item = Arc::new(Field::new("item", data_type.clone(), true));
    let lists = ListArray::new(item, OffsetBuffer::from_lengths([1, 1]), far(), None);
    assert!(check(Arc::new(lists)).unwrap_err().starts_with("column 'c', row 101: "));
    let field = Arc::new(Field::new("at", data_type, true));
    let present = NullBuffer::from(vec![true, true]);
    let structs = |nulls| StructArray::new(vec![Arc::clone(&field)].into(), vec![far()], Some(nulls));
    assert!(check(Arc::new(structs(present))).unwrap_err().starts_with("column 'c', row 101: "));
    check(Arc::new(structs(NullBuffer::from(vec![true, false])))).unwrap();
    let dictionary =
        arrow_array::DictionaryArray::<arrow_array::types::Int8Type>::new(vec![0, 1].into(), far());
    assert!(check(Arc::new(dictionary)).unwrap_err().starts_with("column 'c', row 101: "));
}

#[test]
fn a_decimal_with_more_digits_than_its_type_is_refused() {
    let prices = Decimal128Array::from(vec![99_999, 12_345_678]).with_precision_and_scale(5, 2).unwrap();
    let error = check(Arc::new(prices.clone())).unwrap_err();
    assert!(error.starts_with("column 'c', row 101: a value has more digits than its type Decimal128(5, 2)"));
    check(Arc::new(prices.slice(0, 1))).unwrap();
}
