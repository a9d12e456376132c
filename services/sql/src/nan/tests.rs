use arrow_array::Float64Array;

use super::*;

#[test]
fn floats_with_one_nan_are_not_copied() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), Some(f64::NAN), None]));
    assert!(Arc::ptr_eq(&with_one_nan(&floats).unwrap(), &floats));
}
