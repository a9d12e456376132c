//! Keys that were computed to have one home make no table slow.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use super::KeyHash;
use crate::{
    index::{
        block_keys::BlockKeys,
        narrow_table,
        sharding::home_of,
        wide_table::{self, StoredKeys},
    },
    keys::KeyType,
};

/// Keys of a table, fewer than a shard has.
const KEYS: u64 = 100_000;
/// Keys of a table in which all have one home, which takes quadratic time.
const FEW: u64 = 5000;

/// Part of the constant secret of XXH3, from byte 8.
const SECRET: [u64; 6] = [
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
];

/// Hashes with one home in every table of up to a shard of keys. The bits of fingerprints differ.
fn hashes(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|number| number << 8)
}

/// Returns the factor that undoes a multiplication by the odd number `factor`.
fn inverse(factor: u64) -> u64 {
    // Newton's method doubles the number of correct bits.
    (0..6).fold(1, |inverse: u64, _| inverse.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(inverse))))
}

/// Undoes `value ^ f(value)`, where `f` depends on higher bits only.
fn undone(mixed: u64, f: impl Fn(u64) -> u64) -> u64 {
    (0..64).fold(mixed, |value, _| mixed ^ f(value))
}

/// Returns the key of 8 bytes with this hash in XXH3-64 without a seed.
fn key_of_8_bytes(hash: u64) -> i64 {
    const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
    let value = undone(hash, |value| value >> 28).wrapping_mul(inverse(FACTOR));
    let value = undone(value, |value| (value >> 35) + 8).wrapping_mul(inverse(FACTOR));
    // The mixing of rotations is linear; applied 64 times it is the identity.
    let value = (0..63).fold(value, |value, _| value ^ value.rotate_left(49) ^ value.rotate_left(24));
    (value ^ SECRET[0] ^ SECRET[1]).rotate_left(32) as i64
}

/// Returns a key of 16 bytes with this hash in XXH3-64 without a seed.
fn key_of_16_bytes(hash: u64) -> [i64; 2] {
    const FACTOR: u64 = 0x1656_6791_9e37_79f9;
    let value = undone(hash, |value| value >> 32).wrapping_mul(inverse(FACTOR));
    let value = undone(value, |value| value >> 37).wrapping_sub(16);
    // The first half is multiplied by the second, so that 0 leaves the second as it is.
    [(SECRET[2] ^ SECRET[3]) as i64, (value ^ SECRET[4] ^ SECRET[5]) as i64]
}

fn block(columns: &[Vec<i64>], hash: KeyHash) -> Vec<BlockKeys> {
    let names: Vec<String> = (0..columns.len()).map(|number| format!("k{number}")).collect();
    let arrays = columns.iter().map(|values| Arc::new(Int64Array::from(values.clone())) as ArrayRef);
    let batch = RecordBatch::try_from_iter(names.iter().zip(arrays)).unwrap();
    let key = KeyType::new(&names, &batch.schema()).unwrap();
    vec![BlockKeys::new(&key, &[batch], None, 0, (hash, 1)).unwrap()]
}

/// Number of buckets that a search reads in addition to the first, on average over the keys.
fn narrow_probes(count: u64, hash: KeyHash) -> f64 {
    let blocks = block(&[hashes(count).map(key_of_8_bytes).collect()], hash);
    let (filled, keys) = narrow_table::fill::<8, 12>(&blocks, 0);
    assert_eq!(keys, count);
    filled.probes::<8, 12>(hash) as f64 / count as f64
}

/// Number of slots that a search reads in addition to the first, on average over the keys.
fn wide_probes(count: u64, hash: KeyHash) -> f64 {
    let keys: Vec<[i64; 2]> = hashes(count).map(key_of_16_bytes).collect();
    let blocks = block(&[0, 1].map(|at| keys.iter().map(|key| key[at]).collect()), hash);
    let (slots, found) = wide_table::fill(&blocks, &StoredKeys::new(&blocks).unwrap(), 0);
    assert_eq!(found, count);
    let mut probes = 0;
    for (at, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != wide_table::EMPTY) {
        let bytes = keys[(slot & wide_table::MAX_ROWS) as usize].map(i64::to_le_bytes);
        let home = home_of(hash.hash(bytes.as_flattened()), slots.len());
        probes += (at + slots.len() - home) % slots.len();
    }
    probes as f64 / count as f64
}

#[test]
fn the_keys_of_these_tests_have_one_home_without_a_seed() {
    for hash in hashes(KEYS) {
        assert_eq!(KeyHash::unkeyed().hash(&key_of_8_bytes(hash).to_le_bytes()), hash);
        let key = key_of_16_bytes(hash).map(i64::to_le_bytes);
        assert_eq!(KeyHash::unkeyed().hash(key.as_flattened()), hash);
    }
    let (narrow, wide) = (narrow_probes(FEW, KeyHash::unkeyed()), wide_probes(FEW, KeyHash::unkeyed()));
    assert!(narrow > 400.0 && wide > 2000.0, "{narrow} and {wide} of {FEW} keys");
}

#[test]
fn keys_that_share_a_home_without_a_seed_take_a_normal_number_of_probes() {
    let hash = KeyHash::random();
    // At this load, keys of any other kind take 0.3 and 2 on average.
    let (narrow, wide) = (narrow_probes(KEYS, hash), wide_probes(KEYS, hash));
    assert!(narrow < 1.0 && wide < 6.0, "{narrow} and {wide} of {KEYS} keys with {hash:?}");
}

#[test]
fn every_index_has_a_seed_of_its_own() {
    assert_ne!(KeyHash::random(), KeyHash::random());
}
