use bytes::Bytes;

use super::*;

fn page(encoding: Encoding, num_values: u32, values: &[u8]) -> Page {
    let levels = [2, 0, 0, 0, 3, 1];
    Page::DataPage {
        buf: Bytes::from([&levels[..], values].concat()),
        num_values,
        encoding,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    }
}

/// A run of `count` equal lengths: blocks of 128 values in 4 miniblocks, all of width 0.
fn equal(count: u8) -> Vec<u8> {
    let mut bytes = vec![0x80, 1, 4, count, 2];
    if count > 1 {
        bytes.extend([0, 0, 0, 0, 0]);
    }
    bytes
}

#[test]
fn the_number_of_lengths_is_compared_to_the_number_of_values() {
    let (once, twice) = (Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY);
    assert_eq!(check_page(&page(once, 3, &equal(3)), 0, 1), Ok(()));
    assert_eq!(check_page(&page(twice, 3, &[equal(3), equal(3)].concat()), 0, 1), Ok(()));
    assert_eq!(check_page(&page(once, 3, &[]), 0, 1), Ok(()));

    assert_eq!(check_page(&page(once, 3, &equal(4)), 0, 1), Err("4 lengths for 3 values".to_owned()));
    let suffixes = [equal(3), equal(100)].concat();
    assert_eq!(check_page(&page(twice, 3, &suffixes), 0, 1), Err("100 lengths for 3 values".to_owned()));
}

#[test]
fn a_claimed_number_of_lengths_is_checked() {
    let huge = [0x80, 1, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 2, 0, 0, 0, 0, 0];
    assert!(check_page(&page(Encoding::DELTA_LENGTH_BYTE_ARRAY, 3, &huge), 0, 1).is_err());
    let (no_parts, no_block) = ([0x80, 1, 0, 3, 2], [0, 4, 3, 2, 0]);
    for bytes in [&no_parts[..], &no_block, &[0xff; 20], &[0x80]] {
        assert!(check_page(&page(Encoding::DELTA_BYTE_ARRAY, 3, bytes), 0, 1).is_err(), "{bytes:?}");
    }
}

#[test]
fn other_encodings_pass() {
    assert_eq!(check_page(&page(Encoding::PLAIN, 3, &[0xff; 20]), 0, 1), Ok(()));
}

/// A run of lengths that differ by `delta` and begin with `first`; both are encoded in one byte.
fn ascending(count: u8, first: u8, delta: u8) -> Vec<u8> {
    vec![0x80, 1, 4, count, first * 2, delta * 2, 0, 0, 0, 0]
}

#[test]
fn values_with_common_prefixes_are_counted_whole() {
    // Prefixes of 0, 5 and 10 bytes before suffixes of 8, 9 and 10 bytes.
    let runs = [ascending(3, 0, 5), ascending(3, 8, 1)].concat();
    let bytes = |runs: &[u8]| value_bytes(&page(Encoding::DELTA_BYTE_ARRAY, 3, runs), 0, 1);
    assert_eq!(bytes(&runs), Some(8 + (5 + 9) + (10 + 10)));
    assert_eq!(bytes(&[]), Some(0));
    // A prefix is not longer than the value before.
    assert_eq!(bytes(&[ascending(3, 60, 0), ascending(3, 8, 0)].concat()), Some(8 + 16 + 24));
    // A prefix of -1 byte.
    let negative = [0x80, 1, 4, 3, 1, 0, 0, 0, 0, 0].to_vec();
    assert_eq!(bytes(&[negative.clone(), ascending(3, 8, 0)].concat()), Some(8 + 16 + 24));
    assert_eq!(bytes(&[ascending(3, 0, 0), negative].concat()), None);
    assert_eq!(bytes(&[ascending(4, 0, 0), ascending(3, 0, 0)].concat()), None);
}

#[test]
fn integers_of_any_width_are_unpacked() {
    let bytes = [0b1010_0110, 0b0000_0001, 0xff, 0xff, 0xff];
    assert_eq!(
        (0..4).map(|index| unpack(&bytes, index, 3)).collect::<Option<Vec<_>>>(),
        Some(vec![6, 4, 6, 0])
    );
    assert_eq!(unpack(&bytes, 0, 32), Some(0xffff_01a6));
    assert_eq!(unpack(&bytes, 1, 32), None);
    assert_eq!(unpack(&bytes, 7, 0), Some(0));
    assert_eq!(unpack(&[0; 20], 0, 33), None);
}
