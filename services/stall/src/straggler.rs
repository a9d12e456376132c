//! The rank that a job waits for.

/// Smallest fraction of the time by which a straggler waits more than the other ranks of its job.
const LEAST_GAP: f64 = 0.1;

/// Returns the position of the straggler among the ranks of one job, by the fraction of the time that each rank waits for batches, 0 to 1;
/// `None` for a rank whose wait is unknown.
///
/// The ranks of a job synchronize in every step. A rank that waits for its batches therefore delays all others, whose own clients count that
/// delay as computation: in a synchronized job the rank that waits the most sets the pace. It is a straggler if it waits for at least 10% of
/// the time more than the median of the others. Fewer than two known ranks have no straggler.
pub fn straggler(waits: &[Option<f64>]) -> Option<usize> {
    let mut known: Vec<(f64, usize)> =
        waits.iter().enumerate().filter_map(|(at, wait)| wait.map(|wait| (wait, at))).collect();
    known.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (most, at) = known.pop()?;
    let median = known.get(known.len() / 2)?.0;
    (most - median >= LEAST_GAP).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_waits_while_the_others_do_not_is_the_straggler() {
        let known = |waits: &[f64]| waits.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(straggler(&known(&[0.02, 0.03, 0.85, 0.01])), Some(2));
        assert_eq!(straggler(&known(&[0.4, 0.0])), Some(0));
        assert_eq!(straggler(&[Some(0.01), None, Some(0.5), Some(0.02)]), Some(2));
    }

    #[test]
    fn ranks_that_all_wait_have_no_straggler() {
        let known = |waits: &[f64]| waits.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(straggler(&known(&[0.8, 0.82, 0.79, 0.85])), None);
        assert_eq!(straggler(&known(&[0.01, 0.02])), None);
        assert_eq!(straggler(&known(&[0.9])), None);
        assert_eq!(straggler(&[Some(0.9), None]), None);
        assert_eq!(straggler(&[]), None);
    }
}
