//! Numbers of any size and any number of digits, as they are written.

use std::cmp::Ordering;

use arrow_buffer::i256;
use half::f16;

/// Bound of exponents. Larger ones are written only for numbers that are beyond every type in any case.
const MAX_EXPONENT: i64 = 1 << 40;
/// Maximum number of digits of a 256-bit integer.
const MAX_DIGITS: i64 = 77;

/// An exact decimal number: the digits as an integer, times ten to the power of the exponent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Number {
    is_negative: bool,
    /// ASCII digits without zeros at either end; empty for 0.
    digits: Vec<u8>,
    exponent: i64,
}

/// The greatest integer that is at most a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Below all 256-bit integers.
    Below,
    /// The number is this integer.
    Equal(i256),
    /// The number lies between this integer and the next.
    Between(i256),
    /// Above all 256-bit integers.
    Above,
}

impl Number {
    /// Parses digits with an optional sign, point and exponent, such as `-12.5e-3`; `None` for other texts.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(unsigned) => (true, unsigned),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, power) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let power_digits = power.strip_prefix(['+', '-']).unwrap_or(power);
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = is_digits(whole) && is_digits(fraction) && is_digits(power_digits);
        if !is_number || (whole.is_empty() && fraction.is_empty()) || power_digits.is_empty() {
            return None;
        }
        // More than 18 digits are beyond the bound.
        let power = match power.trim_start_matches('+').parse::<i64>() {
            Ok(power) => power.clamp(-MAX_EXPONENT, MAX_EXPONENT),
            Err(_) if power.starts_with('-') => -MAX_EXPONENT,
            Err(_) => MAX_EXPONENT,
        };
        let digits = [whole.as_bytes(), fraction.as_bytes()].concat();
        Some(Self::new(is_negative, &digits, power - fraction.len() as i64))
    }

    fn new(is_negative: bool, digits: &[u8], exponent: i64) -> Self {
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        let digits = &digits[zeros..];
        let len = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
        let exponent = if len == 0 { 0 } else { exponent + (digits.len() - len) as i64 };
        Self { is_negative: is_negative && len > 0, digits: digits[..len].to_vec(), exponent }
    }

    /// The number with the other sign.
    pub(crate) fn negated(self) -> Self {
        Self { is_negative: !self.is_negative && !self.digits.is_empty(), ..self }
    }

    /// The number with ten to the power of `exponent` as a factor.
    pub(crate) fn scaled(&self, exponent: i8) -> Self {
        let moved = if self.digits.is_empty() { 0 } else { i64::from(exponent) };
        Self { exponent: self.exponent + moved, ..self.clone() }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Number of digits before the point; 0 or less below 1.
    pub(crate) fn whole_digits(&self) -> i64 {
        self.digits.len() as i64 + self.exponent
    }

    /// Number of digits after the point; less than 0 for an integer that ends with zeros.
    pub(crate) fn fraction_digits(&self) -> i64 {
        -self.exponent
    }

    pub(crate) fn floor(&self) -> Floor {
        let beyond = if self.is_negative { Floor::Below } else { Floor::Above };
        let whole = self.whole_digits();
        if whole > MAX_DIGITS {
            return beyond;
        }
        let kept = self.digits.len().min(usize::try_from(whole).unwrap_or(0));
        let zeros = usize::try_from(whole).unwrap_or(0) - kept;
        let digits = self.digits[..kept].iter().map(|digit| char::from(*digit));
        let digits: String =
            std::iter::once('0').chain(digits).chain(std::iter::repeat_n('0', zeros)).collect();
        let signed = if self.is_negative { format!("-{digits}") } else { digits };
        let Some(towards_zero) = i256::from_string(&signed) else { return beyond };
        match (kept == self.digits.len(), self.is_negative) {
            (true, _) => Floor::Equal(towards_zero),
            (false, false) => Floor::Between(towards_zero),
            (false, true) => towards_zero.checked_sub(i256::ONE).map_or(Floor::Below, Floor::Between),
        }
    }

    /// The nearest integer, of two equally near ones that with the greater absolute value; `None` if it has more than 256 bits.
    pub(crate) fn rounded(&self) -> Option<i256> {
        let magnitude = Self { is_negative: false, ..self.clone() };
        let rounded = match magnitude.floor() {
            Floor::Equal(integer) => integer,
            Floor::Between(below) => {
                // The first digit after the point is missing if it is 0.
                let first =
                    usize::try_from(magnitude.whole_digits()).ok().and_then(|at| magnitude.digits.get(at));
                let is_up = first.is_some_and(|digit| *digit >= b'5');
                below.checked_add(if is_up { i256::ONE } else { i256::ZERO })?
            }
            Floor::Below | Floor::Above => return None,
        };
        Some(if self.is_negative { rounded.wrapping_neg() } else { rounded })
    }

    /// The nearest double, infinite beyond the range of doubles. Of two equally near ones, that with an even mantissa.
    pub(crate) fn nearest(&self) -> f64 {
        self.text().parse().expect("digits and an exponent are a number")
    }

    /// The nearest float of 32 bits, as [`nearest`](Self::nearest).
    pub(crate) fn nearest_f32(&self) -> f32 {
        self.text().parse().expect("digits and an exponent are a number")
    }

    /// The nearest float of 16 bits, as [`nearest`](Self::nearest).
    pub(crate) fn nearest_f16(&self) -> f16 {
        // Two roundings to the nearest float can differ from one. The first one takes the neighbour with an odd mantissa instead.
        let nearest = self.nearest_f32();
        let odd = match self.cmp_float(nearest.into()) {
            Ordering::Less if nearest.to_bits() & 1 == 0 => nearest.next_down(),
            Ordering::Greater if nearest.to_bits() & 1 == 0 => nearest.next_up(),
            _ => nearest,
        };
        f16::from_f32(odd)
    }

    /// Exact order of the number and a float, which is not NaN.
    pub(crate) fn cmp_float(&self, float: f64) -> Ordering {
        if float.is_infinite() {
            return if float > 0.0 { Ordering::Less } else { Ordering::Greater };
        }
        // 767 digits are enough for each double.
        let exact = Self::parse(&format!("{float:.766e}")).expect("a finite float is written as digits");
        self.cmp(&exact)
    }

    fn text(&self) -> String {
        let digits = std::str::from_utf8(&self.digits).expect("digits are ASCII");
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}0{digits}e{}", self.exponent)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.digits.is_empty(), number.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let magnitude =
            || self.whole_digits().cmp(&other.whole_digits()).then_with(|| self.digits.cmp(&other.digits));
        sign(self).cmp(&sign(other)).then_with(|| match sign(self) {
            0 => Ordering::Equal,
            1 => magnitude(),
            _ => magnitude().reverse(),
        })
    }
}
