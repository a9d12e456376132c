//! Medians and ranges of repeated measurements.

use serde::{Deserialize, Serialize};

/// The middle of repeated measurements, and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// The middle of `values`; not a number if there are none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

impl Spread {
    /// Of all values that are numbers; `None` if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self { median, least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        let spread = Spread::of([5.0, 1.0, 3.0]).expect("values");
        assert_eq!(spread, Spread { median: 3.0, least: 1.0, most: 5.0 });
    }

    #[test]
    fn an_even_number_of_values_meets_in_the_middle() {
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).expect("values").median, 3.0);
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
    }
}
