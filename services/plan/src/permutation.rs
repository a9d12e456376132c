use std::ops::Range;

use crate::Key;

/// Maximum size of the domain. Both halves of a position, and the sum of two halves, fit in 32 bits.
const MAX_LEN: u64 = 1 << 62;

const ROUNDS: usize = 12;

/// Number of rounds for small domains, where the width of the halves limits the randomness of a round. With halves of
/// two and three values, the distribution of the 720 orders of six items differs from uniform by 2% after 12 rounds and
/// by 0.002% after 32 (total variation, with truly random rounds). With halves of 64 values or more, 12 rounds suffice.
const SMALL_ROUNDS: usize = 32;
const SMALL_LEN: u64 = 64 * 64;

/// Number of positions that the batch form processes together.
const LANES: usize = 64;

/// Keyed bijection on `0..n`, evaluated at any index in constant time and without a table.
///
/// The construction is the generalised Feistel network of Black and Rogaway ("Ciphers with Arbitrary Finite Domains",
/// 2002). A position is a cell of a grid of `ceil(sqrt(n))` rows and the minimum number of columns. Each round adds a
/// keyed function of one coordinate to the other. The grid has fewer than `sqrt(n)` excess cells; a value on one of
/// these is encrypted again until it is below `n` (*cycle walking*).
///
/// On a grid with two odd sides the rounds generate only even permutations, because each round is a product of cycles
/// of odd length. A final keyed transposition of the values 0 and 1 generates the odd ones as well, so that all orders
/// of a few items are equally likely.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    rows: u32,
    columns: u32,
    rounds: usize,
    keys: [u64; SMALL_ROUNDS],
    /// 1 if the values 0 and 1 are swapped, else 0.
    swap: u64,
}

impl Permutation {
    /// Creates the permutation of `0..n` that `key` selects.
    ///
    /// # Panics
    /// If `n` is more than 2^62.
    #[must_use]
    pub fn new(n: u64, key: Key) -> Self {
        assert!(n <= MAX_LEN, "a permutation of {n} positions, more than 2^62");
        let root = n.isqrt();
        let rows = if root * root < n { root + 1 } else { root.max(1) };
        let columns = n.div_ceil(rows).max(1);
        let rounds = if n < SMALL_LEN { SMALL_ROUNDS } else { ROUNDS };

        let mut words = key.words();
        let swap = words.next().map_or(0, |word| if n < 2 { 0 } else { word & 1 });
        let mut keys = [0; SMALL_ROUNDS];
        for (key, word) in keys[..rounds].iter_mut().zip(words) {
            *key = word;
        }
        Self { len: n, rows: rows as u32, columns: columns as u32, rounds, keys, swap }
    }

    /// Returns the image of position `i`.
    ///
    /// # Panics
    /// If `i` is outside the domain.
    #[must_use]
    pub fn get(&self, i: u64) -> u64 {
        assert!(i < self.len, "position {i} of a permutation of {}", self.len);
        self.walk(self.encrypt(i))
    }

    /// Appends the images of `positions` to `out`. Equivalent to [`get`](Self::get) for each position, but several
    /// times faster.
    ///
    /// # Panics
    /// If `positions` ends outside the domain.
    pub fn fill(&self, positions: Range<u64>, out: &mut Vec<u64>) {
        if positions.is_empty() {
            return;
        }
        let Range { start, end } = positions;
        assert!(end <= self.len, "positions up to {end} of a permutation of {}", self.len);
        out.reserve((end - start) as usize);

        // One division for all positions, because consecutive positions are consecutive cells of the grid.
        let (mut row, mut column) = self.cell(start);
        let mut left = end - start;
        while left > 0 {
            let lanes = left.min(LANES as u64) as usize;
            let mut rows = [0; LANES];
            let mut columns = [0; LANES];
            for lane in 0..lanes {
                rows[lane] = row;
                columns[lane] = column;
                column += 1;
                if column == self.columns {
                    column = 0;
                    row += 1;
                }
            }
            encrypt_lanes(&self.keys[..self.rounds], self.rows, self.columns, &mut rows, &mut columns);
            let values = rows.iter().zip(&columns).map(|(&row, &column)| self.value(row, column));
            out.extend(values.take(lanes).map(|value| self.walk(value)));
            left -= lanes as u64;
        }
    }

    fn cell(&self, position: u64) -> (u32, u32) {
        let columns = u64::from(self.columns);
        ((position / columns) as u32, (position % columns) as u32)
    }

    fn value(&self, row: u32, column: u32) -> u64 {
        u64::from(row) * u64::from(self.columns) + u64::from(column)
    }

    /// Applies all rounds once: a bijection on the cells of the grid.
    fn encrypt(&self, position: u64) -> u64 {
        let (mut row, mut column) = self.cell(position);
        for pair in self.keys[..self.rounds].chunks_exact(2) {
            row = add(row, round(column, pair[0], self.rows), self.rows);
            column = add(column, round(row, pair[1], self.columns), self.columns);
        }
        self.value(row, column)
    }

    /// Maps a cell of the grid to a value below `len` by cycle walking and the final transposition.
    fn walk(&self, mut value: u64) -> u64 {
        while value >= self.len {
            value = self.encrypt(value);
        }
        if value < 2 { value ^ self.swap } else { value }
    }
}

/// [`Permutation::encrypt`] for many cells at once. The inner loop runs over the lanes and has no branch and no 64-bit
/// product, so that it is vectorized on every target. Benchmark `permutation/fill`: 9.4 ns per position with SSE2 and
/// 5.5 ns with AVX2, compared to 44 ns for `permutation/get`.
fn encrypt_lanes(
    keys: &[u64],
    row_count: u32,
    column_count: u32,
    rows: &mut [u32; LANES],
    columns: &mut [u32; LANES],
) {
    for pair in keys.chunks_exact(2) {
        for (row, &column) in rows.iter_mut().zip(columns.iter()) {
            *row = add(*row, round(column, pair[0], row_count), row_count);
        }
        for (column, &row) in columns.iter_mut().zip(rows.iter()) {
            *column = add(*column, round(row, pair[1], column_count), column_count);
        }
    }
}

/// Keyed function of a round, from one half to `0..range`: two multiplications to 64 bits, each folded to 32 bits by
/// XOR of its halves (as in wyhash), and a third one that scales the hash to the range.
#[inline(always)]
fn round(half: u32, key: u64, range: u32) -> u32 {
    let hash = fold(half ^ key as u32, 0x9e37_79b1) ^ (key >> 32) as u32;
    let hash = fold(hash, 0x85eb_ca77);
    ((u64::from(hash) * u64::from(range)) >> 32) as u32
}

#[inline(always)]
fn fold(word: u32, multiplier: u32) -> u32 {
    let product = u64::from(word) * u64::from(multiplier);
    product as u32 ^ (product >> 32) as u32
}

/// `a + b` modulo `range`, for operands below `range`. The sign of the difference masks the correction, because SSE2
/// has no unsigned comparison; emulating one costs a tenth of benchmark `permutation/fill`.
#[inline(always)]
fn add(a: u32, b: u32, range: u32) -> u32 {
    let over = (a + b).wrapping_sub(range) as i32;
    over.wrapping_add((over >> 31) & range as i32) as u32
}

#[cfg(test)]
mod tests;
