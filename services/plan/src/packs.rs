use std::ops::Range;

/// How an epoch's groups are put into packs: as many packs in every epoch, with a bound on the rows of each.
///
/// Groups stay whole and in order. The group whose first row is the epoch's n-th (from 0) is in pack `n * count / rows`, so that
/// each pack has the groups that begin in its share of the rows. A share is so narrow that the last of them
/// ends within the bound, however long it is and whatever the order: that is what keeps the number of packs out of the
/// order's hands.
///
/// Memory is 8 bytes a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packs {
    /// The first position of each, and last where the last one ends.
    starts: Vec<u64>,
}

impl Packs {
    /// How many packs of at most `most_rows` rows there are of `rows` rows in groups of at most `longest`; 0 without rows.
    /// `None` if one of them could be empty, or a group could be too long for any: expected are three times as many rows as
    /// the longest group has.
    #[must_use]
    pub fn count(rows: u64, longest: u64, most_rows: u64) -> Option<u64> {
        if most_rows == 0 || longest.checked_mul(3)? > most_rows {
            return None;
        }
        // A pack begins anywhere in its share, and its last group may begin at the end of it.
        Some(rows.div_ceil(most_rows - longest.max(1) + 1))
    }

    /// Cuts an epoch of `rows` rows into `count` packs. `lengths` are the rows of its groups, in the order of the epoch.
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

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions of the groups in these packs.
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
