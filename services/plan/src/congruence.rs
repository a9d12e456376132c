/// The numbers `e` = 0, 1, ... for which `first + e * stride` is `residue` modulo `modulus`. They form an arithmetic
/// progression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solutions {
    smallest: u64,
    period: u64,
}

impl Solutions {
    /// Returns `None` if there are no solutions. `modulus` must be at least 1 and `residue` below it.
    pub(crate) fn new(first: u64, stride: u64, residue: u32, modulus: u32) -> Option<Self> {
        let (modulus, residue) = (u64::from(modulus), u64::from(residue));
        let distance = (residue + modulus - first % modulus) % modulus;
        let (divisor, inverse) = gcd_and_inverse(stride % modulus, modulus);
        if !distance.is_multiple_of(divisor) {
            return None;
        }
        // All factors are below 2^32, so their products do not overflow.
        let period = modulus / divisor;
        let smallest = (distance / divisor) * inverse % period;
        Some(Self { smallest, period })
    }

    /// Number of solutions below `end`.
    pub(crate) fn below(&self, end: u64) -> u64 {
        end.saturating_sub(self.smallest).div_ceil(self.period)
    }
}

/// Extended Euclidean algorithm. Returns the greatest common divisor `d` of `a` and `modulus`, and the `x` in
/// `0..modulus / d` with `a * x` = `d` modulo `modulus`. Requires `a < modulus <= 2^32`.
fn gcd_and_inverse(a: u64, modulus: u64) -> (u64, u64) {
    let (mut remainder, mut next_remainder) = (modulus as i64, a as i64);
    let (mut factor, mut next_factor) = (0, 1);
    while next_remainder != 0 {
        let quotient = remainder / next_remainder;
        (remainder, next_remainder) = (next_remainder, remainder - quotient * next_remainder);
        (factor, next_factor) = (next_factor, factor - quotient * next_factor);
    }
    let period = modulus as i64 / remainder;
    (remainder as u64, i64::rem_euclid(factor, period) as u64)
}

#[cfg(test)]
mod tests;
