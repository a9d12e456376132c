//! Replay of a corpus in a test, without a fuzzer.

use std::{fs, path::Path};

/// Prints the input when a check fails.
struct Named<'a> {
    name: &'a str,
    change: String,
    input: &'a [u8],
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the check failed for {} {}: {}", self.name, self.change, self.input.escape_ascii());
        }
    }
}

/// Calls `check` with every file in `fuzz/corpus/<target>`, and with `changes` truncations and flipped bits of each. The
/// changes are the same in every run.
pub(crate) fn replay(target: &str, changes: usize, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("fuzz/corpus"));
    let folder =
        folder.into_iter().find(|folder| folder.is_dir()).expect("the repository has a corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for path in paths {
        check_changes(&path.display().to_string(), &fs::read(&path).unwrap(), changes, &check);
    }
}

/// Calls `check` with `sound`, and with `changes` truncations and flipped bits of it. The changes are the same in every run.
pub(crate) fn check_changes(name: &str, sound: &[u8], changes: usize, check: &impl Fn(&[u8])) {
    let checked = |change: String, input: &[u8]| {
        let _named = Named { name, change, input };
        check(input);
    };
    checked("as it is".to_owned(), sound);
    let mut random = sound.len() as u64 + 1;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) % limit.max(1) as u64) as usize
    };
    for change in 0..if sound.is_empty() { 0 } else { changes } {
        if change % 4 == 0 {
            let length = below(sound.len());
            checked(format!("cut to {length} bytes"), &sound[..length]);
        } else {
            let (mut input, at, bit) = (sound.to_vec(), below(sound.len()), below(8));
            input[at] ^= 1 << bit;
            checked(format!("with bit {bit} of byte {at} flipped"), &input);
        }
    }
}
