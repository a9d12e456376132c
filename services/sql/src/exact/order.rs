//! Exact order of integers, decimals and floats of different types.

use std::cmp::Ordering;

use arrow_array::ArrowNativeTypeOp;
use arrow_buffer::i256;

use super::floats::nearest;

/// A value of a number type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    /// An integer, or a decimal with its scale.
    Small(i128, i8),
    /// A decimal of 256 bits with its scale.
    Large(i256, i8),
    /// A float. All NaNs are equal, and greater than all other values. Both zeros are equal.
    Float(f64),
}

impl Value {
    /// Exact order of two values.
    pub(crate) fn cmp(self, other: Self) -> Ordering {
        use Value::{Float, Large, Small};
        match (self, other) {
            (Float(a), Float(b)) => cmp_floats(a, b),
            (Float(a), b) => b.cmp(Float(a)).reverse(),
            (Small(a, scale), Float(b)) => cmp_with_float(a.into(), scale, b, || nearest(a, scale)),
            (Large(a, scale), Float(b)) => cmp_with_float(a, scale, b, || nearest(a, scale)),
            (Small(a, scale), Small(b, other)) => cmp_scaled(a, scale, b, other),
            (a, b) => {
                let ((a, scale), (b, other)) = (a.large(), b.large());
                cmp_scaled(a, scale, b, other)
            }
        }
    }

    /// The unscaled integer and the scale; 0 for floats, which are compared before.
    fn large(self) -> (i256, i8) {
        match self {
            Self::Small(value, scale) => (value.into(), scale),
            Self::Large(value, scale) => (value, scale),
            Self::Float(_) => (i256::ZERO, 0),
        }
    }
}

fn cmp_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Order of two integers, each divided by ten to the power of its scale.
fn cmp_scaled<T: ArrowNativeTypeOp + Ord + From<i64>>(a: T, a_scale: i8, b: T, b_scale: i8) -> Ordering {
    if a_scale > b_scale {
        return cmp_scaled(b, b_scale, a, a_scale).reverse();
    }
    let zero = T::from(0);
    if a == zero || a_scale == b_scale {
        return a.cmp(&b);
    }
    let power = T::from(10).pow_checked(u32::from(a_scale.abs_diff(b_scale)));
    match power.and_then(|power| a.mul_checked(power)) {
        Ok(scaled) => scaled.cmp(&b),
        // The absolute value of the product is greater than that of every `T`.
        Err(_) => a.cmp(&zero),
    }
}

/// Order of a decimal and a float. `nearest` is the double that is nearest to the decimal. Rounding keeps the order, so only an
/// equal double needs an exact comparison.
fn cmp_with_float(decimal: i256, scale: i8, float: f64, nearest: impl FnOnce() -> f64) -> Ordering {
    if float.is_nan() {
        return Ordering::Less;
    }
    match cmp_floats(nearest(), float) {
        Ordering::Equal => cmp_close(decimal, scale, float),
        unequal => unequal,
    }
}

/// Order of a decimal and the double that is nearest to it.
///
/// Both sides become integers by multiplication with powers of 2 and 5. They differ by a factor close to 1, so each has at most the
/// bits of the smaller form of the other one, which [`Wide`] holds for every scale.
fn cmp_close(decimal: i256, scale: i8, float: f64) -> Ordering {
    if decimal == i256::ZERO || float == 0.0 {
        return decimal.cmp(&i256::ZERO);
    }
    let (mantissa, exponent) = parts(float);
    let scale = i32::from(scale);
    // decimal / (2^scale * 5^scale) against mantissa * 2^exponent
    let shift = exponent + scale;
    let (mut left, mut right) = (Wide::of(decimal), Wide::from(mantissa));
    if scale > 0 {
        right = right.times_5(scale.unsigned_abs());
    } else {
        left = left.times_5(scale.unsigned_abs());
    }
    if shift > 0 {
        right = right.shifted(shift.unsigned_abs());
    } else {
        left = left.shifted(shift.unsigned_abs());
    }
    let order = left.cmp(&right);
    if decimal.is_negative() { order.reverse() } else { order }
}

/// Mantissa and exponent of a finite double: its absolute value is the mantissa times two to the power of the exponent.
fn parts(float: f64) -> (u64, i32) {
    let bits = float.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i32 & 0x7ff, bits & ((1 << 52) - 1));
    if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) }
}

/// An unsigned integer of 640 bits, most significant word first. A decimal of 256 bits times 5 to the power of 128, the greatest
/// scale, has at most 554 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wide([u64; 10]);

impl Wide {
    /// The absolute value of an integer.
    fn of(value: i256) -> Self {
        let (low, high) = if value.is_negative() { value.wrapping_neg() } else { value }.to_parts();
        let high = high.cast_unsigned();
        let mut words = [0; 10];
        words[6..].copy_from_slice(&[(high >> 64) as u64, high as u64, (low >> 64) as u64, low as u64]);
        Self(words)
    }

    fn times_5(mut self, power: u32) -> Self {
        for _ in 0..power {
            let mut carry = 0;
            for word in self.0.iter_mut().rev() {
                let product = u128::from(*word) * 5 + carry;
                (*word, carry) = (product as u64, product >> 64);
            }
        }
        self
    }

    fn shifted(self, bits: u32) -> Self {
        let (words, bits) = ((bits / 64) as usize, bits % 64);
        let word = |index: usize| self.0.get(index).copied().unwrap_or(0);
        let shifted = |index: usize| {
            let below = word(index + words + 1).checked_shr(64 - bits).unwrap_or(0);
            word(index + words) << bits | below
        };
        Self(std::array::from_fn(shifted))
    }
}

impl From<u64> for Wide {
    fn from(value: u64) -> Self {
        let mut words = [0; 10];
        words[9] = value;
        Self(words)
    }
}
