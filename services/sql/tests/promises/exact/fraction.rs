//! Numbers as fractions of big integers.

use std::cmp::Ordering;

use arrow_schema::DataType;
use forebay_sql::ScalarValue;
use half::f16;
use num_bigint::BigInt;

/// A value as a fraction with a positive denominator, or one of the values of floats that are no numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Exact {
    Fraction(BigInt, BigInt),
    Infinite { is_positive: bool },
    Nan,
}

impl Exact {
    fn integer(value: impl Into<BigInt>) -> Self {
        Self::Fraction(value.into(), 1.into())
    }

    pub(super) fn decimal(unscaled: impl Into<BigInt>, scale: i8) -> Self {
        Self::Fraction(unscaled.into(), BigInt::from(10).pow(scale.unsigned_abs().into()))
    }

    fn float(value: f64) -> Self {
        if value.is_nan() {
            return Self::Nan;
        }
        if value.is_infinite() {
            return Self::Infinite { is_positive: value > 0.0 };
        }
        let bits = value.to_bits();
        let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
        let (mantissa, exponent) =
            if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) };
        let mantissa = if value < 0.0 { -BigInt::from(mantissa) } else { mantissa.into() };
        let power = BigInt::from(2).pow(exponent.unsigned_abs());
        if exponent < 0 { Self::Fraction(mantissa, power) } else { Self::integer(mantissa * power) }
    }

    /// The value of a literal with digits, a sign, a point and an exponent.
    pub(super) fn literal(text: &str) -> Self {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let fraction = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len() as i64);
        let exponent = exponent.parse::<i64>().unwrap() - fraction;
        let digits: BigInt = mantissa.replace('.', "").parse().unwrap();
        let power = BigInt::from(10).pow(exponent.unsigned_abs() as u32);
        if exponent < 0 { Self::Fraction(digits, power) } else { Self::integer(digits * power) }
    }

    /// A literal as it is compared with a type: floats round it, unless it is beyond their range.
    pub(super) fn literal_for(text: &str, data_type: &DataType) -> Self {
        let rounded = match data_type {
            DataType::Float16 => nearest_half(&Self::literal(text)).to_f64(),
            DataType::Float32 => text.parse::<f32>().unwrap().into(),
            DataType::Float64 => text.parse::<f64>().unwrap(),
            _ => return Self::literal(text),
        };
        if rounded.is_finite() { Self::float(rounded) } else { Self::literal(text) }
    }

    pub(super) fn of(value: &ScalarValue) -> Option<Self> {
        if value.is_null() {
            return None;
        }
        Some(match value {
            ScalarValue::Int8(Some(value)) => Self::integer(*value),
            ScalarValue::Int16(Some(value)) => Self::integer(*value),
            ScalarValue::Int32(Some(value)) => Self::integer(*value),
            ScalarValue::Int64(Some(value)) => Self::integer(*value),
            ScalarValue::UInt8(Some(value)) => Self::integer(*value),
            ScalarValue::UInt16(Some(value)) => Self::integer(*value),
            ScalarValue::UInt32(Some(value)) => Self::integer(*value),
            ScalarValue::UInt64(Some(value)) => Self::integer(*value),
            ScalarValue::Decimal32(Some(value), _, scale) => Self::decimal(*value, *scale),
            ScalarValue::Decimal64(Some(value), _, scale) => Self::decimal(*value, *scale),
            ScalarValue::Decimal128(Some(value), _, scale) => Self::decimal(*value, *scale),
            ScalarValue::Decimal256(Some(value), _, scale) => {
                Self::decimal(value.to_string().parse::<BigInt>().unwrap(), *scale)
            }
            ScalarValue::Float16(Some(value)) => Self::float(value.to_f64()),
            ScalarValue::Float32(Some(value)) => Self::float((*value).into()),
            ScalarValue::Float64(Some(value)) => Self::float(*value),
            other => panic!("{other} is no number"),
        })
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |value: &Self| match value {
            Self::Infinite { is_positive: false } => 0,
            Self::Fraction(..) => 1,
            Self::Infinite { is_positive: true } => 2,
            Self::Nan => 3,
        };
        match (self, other) {
            (Self::Fraction(a, b), Self::Fraction(c, d)) => (a * d).cmp(&(c * b)),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

/// The float of 16 bits that is nearest to a fraction.
pub(super) fn nearest_half(number: &Exact) -> f16 {
    let Exact::Fraction(numerator, denominator) = number else { panic!("{number:?} is no literal") };
    let magnitude = Exact::Fraction(numerator.magnitude().clone().into(), denominator.clone());
    let of = |bits: u16| Exact::float(f16::from_bits(bits).to_f64());
    // Positive floats have the order of their bits. The value after the greatest one would be 65536.
    let greatest = f16::MAX.to_bits();
    let (mut low, mut high) = (0, greatest + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if of(middle) <= magnitude { low = middle } else { high = middle }
    }
    let above = if high > greatest { Exact::integer(65_536) } else { of(high) };
    let (Exact::Fraction(a, b), Exact::Fraction(c, d)) = (of(low), above) else { panic!("they are finite") };
    let middle = Exact::Fraction(a * &d + c * &b, b * d * 2);
    let bits = match magnitude.cmp(&middle) {
        Ordering::Less => low,
        Ordering::Equal => low + (low & 1),
        Ordering::Greater => high,
    };
    f16::from_bits(if *numerator < 0.into() { bits | 0x8000 } else { bits })
}
