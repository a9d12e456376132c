use super::*;

#[test]
fn the_default_window_is_a_million_rows_or_four_global_batches() {
    assert_eq!(default_window_rows(4096, 10_000_000, 0), 1_048_576);
    assert_eq!(default_window_rows(1_000_000, 10_000_000, 1_000_000_000), 4_000_000);
}

#[test]
fn the_default_window_holds_no_more_than_a_gibibyte() {
    assert_eq!(default_window_rows(4096, 1_000_000, 4096 * 1_000_000), 262_144);
    assert_eq!(default_window_rows(u64::MAX, u64::MAX, u64::MAX), 1 << 30);
    assert_eq!(default_window_rows(u64::MAX, u64::MAX, 1), u64::MAX);
}

#[test]
fn the_default_window_is_never_empty() {
    assert_eq!(default_window_rows(0, 0, 0), 1_048_576);
    assert_eq!(default_window_rows(0, 0, 100), 1);
    assert_eq!(default_window_rows(1, 1, 1 << 40), 1);
}
