use arrow_array::{Float32Array, Int32Array, types::Float32Type};

use super::*;

fn distinct(rows: usize, width: i32) -> ArrayRef {
    let values = Float32Array::from_iter_values((0..rows * width as usize).map(|value| value as f32));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    Arc::new(FixedSizeListArray::try_new(item, width, Arc::new(values), None).unwrap())
}

fn index(numbers: Vec<i32>) -> ArrayRef {
    Arc::new(Int32Array::from(numbers))
}

#[test]
fn expand_returns_the_row_of_each_index() {
    let all = expand(&distinct(3, 2).slice(1, 2), &index(vec![1, 0, 1])).unwrap();
    let values = all.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(values, [4.0, 5.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(expand(&distinct(0, 2), &index(vec![])).unwrap().len(), 0);
}

#[test]
fn an_index_outside_the_distinct_rows_is_an_error() {
    for numbers in [vec![0, 3], vec![-1]] {
        assert!(expand(&distinct(3, 2), &index(numbers)).unwrap_err().contains("below 3"));
    }
    assert!(expand(&distinct(0, 2), &index(vec![0])).unwrap_err().contains("below 0"));
    assert!(expand(&index(vec![0]), &index(vec![0])).unwrap_err().contains("expected a tensor"));
}
