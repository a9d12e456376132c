#![allow(clippy::disallowed_types)] // Only the size and the members of these sets are compared.

use std::collections::HashSet;

use super::*;

#[test]
fn every_field_of_a_place_changes_its_key() {
    let mut keys = HashSet::new();
    let mut places = 0;
    for plan_version in [0, 1, 2] {
        for seed in [0, 1, 2, 1 << 32, u64::MAX] {
            for epoch in [0, 1, 2, 1 << 32, u64::MAX] {
                for level in [Level::Blocks, Level::Rows] {
                    for window in [0, 1, 2, 1 << 32, u64::MAX] {
                        keys.insert(Key::derive(plan_version, seed, epoch, level, window));
                        places += 1;
                    }
                }
            }
        }
    }
    assert_eq!(keys.len(), places);
}

#[test]
fn words_are_splitmix64() {
    // Published first outputs for seed 1234567.
    let words: Vec<u64> = Key(1_234_567).words().take(3).collect();
    assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
}
