use std::ops::Range;

/// Assignment of an epoch's groups to packs. Every epoch has the same number of packs, and each has a bounded number of
/// rows.
///
/// Groups stay whole and in order. The group whose first row is the epoch's n-th (from 0) is in pack `n * count /
/// rows`, so each pack has the groups that begin in its share of the rows. A share is short enough that its last group
/// ends within the bound for any order. The number of packs therefore does not depend on the order.
///
/// The assignment occupies 8 bytes per pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packs {
    /// First position of each pack, followed by the end of the last one.
    starts: Vec<u64>,
}

impl Packs {
    /// Returns the number of packs of at most `max_rows` rows for `rows` rows in groups of at most `longest` rows; 0
    /// if there are no rows. Returns `None` if `max_rows` is 0 or less than three times `longest`, because a pack
    /// could then be empty or a group too long for any pack.
    #[must_use]
    pub fn count(rows: u64, longest: u64, max_rows: u64) -> Option<u64> {
        if max_rows == 0 || longest.checked_mul(3)? > max_rows {
            return None;
        }
        // The first group of a pack may begin anywhere in its share, and the last one at the end of the share.
        Some(rows.div_ceil(max_rows - longest.max(1) + 1))
    }

    /// Cuts an epoch of `rows` rows into `count` packs. `lengths` are the numbers of rows of its groups, in the order
    /// of the epoch.
    #[must_use]
    pub fn cut(lengths: impl IntoIterator<Item = u32>, rows: u64, count: u64) -> Self {
        let share_of = |pack: u64| {
            let begin = (u128::from(pack) * u128::from(rows)).div_ceil(u128::from(count.max(1)));
            begin as u64
        };
        let mut starts = Vec::with_capacity(usize::try_from(count).map_or(0, |count| count + 1));
        let (mut groups, mut row, mut share) = (0, 0, 0);
        for length in lengths {
            while (starts.len() as u64) < count && row >= share {
                starts.push(groups);
                share = share_of(starts.len() as u64);
            }
            row += u64::from(length);
            groups += 1;
        }
        starts.resize(starts.len().max(count as usize) + 1, groups);
        Self { starts }
    }

    /// Number of packs.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    /// True if there are no packs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the positions of the groups in `packs`.
    ///
    /// # Panics
    /// If `packs` ends past [`len`](Self::len).
    #[must_use]
    pub fn groups(&self, packs: Range<u64>) -> Range<u64> {
        self.starts[packs.start as usize]..self.starts[packs.end as usize]
    }
}

#[cfg(test)]
mod tests;
