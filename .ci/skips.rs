//! Skips of Rust tests, a module of the test binaries that have some. libtest counts a test that returns early as passed.

/// Prints why a test is skipped. The caller then returns from the test.
///
/// # Panics
/// If FOREBAY_STRICT_SKIPS is 1 and `.ci/skips.txt` does not allow the reason, as for the Python tests (`skips.py`).
pub(crate) fn skip(reason: &str) {
    println!("skipped: {reason}");
    let is_strict = std::env::var_os("FOREBAY_STRICT_SKIPS").is_some_and(|value| value == "1");
    assert!(
        !is_strict || is_allowed(reason),
        "FOREBAY_STRICT_SKIPS=1 and .ci/skips.txt does not allow: {reason}"
    );
}

/// Returns true if a line of the list begins with exactly this reason. Reasons of Rust tests are plain text, not patterns.
pub(crate) fn is_allowed(reason: &str) -> bool {
    let lines = include_str!("skips.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" # ")).any(|(allowed, _)| allowed.trim() == reason)
}
