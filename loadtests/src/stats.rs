//! Medians and ranges of repeated measurements.

use serde::{Deserialize, Serialize};

/// Median and range of repeated measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Returns the median of `values`, or NaN without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

impl Spread {
    /// Returns the spread of all values that are not NaN, or `None` without such values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        let spread = Spread::of([5.0, 1.0, 3.0]).expect("values");
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 5.0 });
    }

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_ones() {
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).expect("values").median, 3.0);
    }

    #[test]
    fn an_empty_set_has_no_median() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
    }
}
