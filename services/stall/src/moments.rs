//! Streaming mean and variance.

/// Count, mean and sum of squared deviations of some numbers.
///
/// Each set of numbers is summed in two passes, and sets are merged by the formula of Chan, Golub and LeVeque (Algorithms for
/// Computing the Sample Variance, 1983), which keeps precision when the mean is large compared to the variance.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// Mean of the values, 0 if there are none.
    pub mean: f64,
    /// Sum of the squared deviations from the mean.
    pub squares: f64,
}

impl Moments {
    /// Computes the moments of `numbers`.
    pub fn of(numbers: impl Iterator<Item = f64> + Clone) -> Self {
        let (count, sum) = numbers.clone().fold((0, 0.0), |(count, sum), number| (count + 1, sum + number));
        let mean = if count == 0 { 0.0 } else { sum / count as f64 };
        let squares = numbers.map(|number| (number - mean) * (number - mean)).sum();
        Self { count, mean, squares }
    }

    /// Adds the values of `others`.
    pub fn merge(&mut self, others: &Self) {
        if others.count == 0 {
            return;
        }
        let (count, distance) = (self.count + others.count, others.mean - self.mean);
        let weight = others.count as f64 / count as f64;
        self.mean += distance * weight;
        self.squares += others.squares + distance * distance * self.count as f64 * weight;
        self.count = count;
    }

    /// Returns the population variance, 0 if there are no values.
    pub fn variance(&self) -> f64 {
        self.squares / self.count.max(1) as f64
    }

    /// True if all values are equal up to the rounding error of summing thousands of them.
    pub fn are_alike(&self) -> bool {
        self.variance() <= (16_384.0 * f64::EPSILON * self.mean).powi(2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn mean_and_variance_do_not_depend_on_how_numbers_are_grouped(
            numbers in prop::collection::vec(-1.0..1.0f64, 1..200), cut in 0.0..1.0f64, offset in -1e9..1e9f64,
        ) {
            let numbers: Vec<f64> = numbers.into_iter().map(|number| number + offset).collect();
            let (one, other) = numbers.split_at((cut * numbers.len() as f64) as usize);
            let of = |numbers: &[f64]| Moments::of(numbers.iter().copied());
            let mut merged = of(one);
            merged.merge(&of(other));
            let mut added = Moments::default();
            numbers.iter().for_each(|number| added.merge(&of(&[*number])));
            let count = numbers.len() as f64;
            let mean = offset + numbers.iter().map(|number| number - offset).sum::<f64>() / count;
            let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
            // Each of up to 200 merges rounds the mean.
            let rounding = 200.0 * f64::EPSILON * (1.0 + offset.abs());
            for moments in [merged, added, of(&numbers)] {
                prop_assert_eq!(moments.count, numbers.len() as u64);
                prop_assert!((moments.mean - mean).abs() < rounding, "{moments:?} {mean}");
                prop_assert!((moments.variance() - variance).abs() < 2.0 * rounding, "{moments:?} {variance}");
            }
        }
    }

    #[test]
    fn only_equal_numbers_are_alike_also_when_they_are_large() {
        for value in [0.0, 0.1, -1e9 / 3.0, 1e300] {
            assert!(Moments::of(std::iter::repeat_n(value, 10_000)).are_alike(), "{value}");
        }
        for offset in [0.0, 1e6, 1e9, 1e10] {
            let moments = Moments::of((0..10_000).map(|row| offset + f64::from(row % 2)));
            assert!(!moments.are_alike(), "{offset}");
        }
    }

    #[test]
    fn moments_of_no_numbers_are_zero() {
        let mut none = Moments::default();
        none.merge(&Moments::of(std::iter::empty()));
        assert_eq!((none, none.variance()), (Moments::default(), 0.0));
    }
}
