use proptest::prelude::*;

use super::*;

const SHAPE: Shape = Shape::Struct(&[INT, Shape::List(&BINARY), Shape::Struct(&[BOOL])]);

fn conform(bytes: &[u8]) -> Result<usize, Malformed> {
    let mut walker = Walker::new(bytes);
    walker.conform(&SHAPE)?;
    Ok(walker.offset())
}

fn rejection(bytes: &[u8]) -> String {
    conform(bytes).unwrap_err().detail
}

#[test]
fn a_value_of_the_expected_shape_is_walked_to_its_end() {
    // 1: -1; 2: ["ab", ""]; 3: {1: true}; stop; and a byte after the struct.
    let bytes = [0x15, 0x01, 0x19, 0x28, 2, b'a', b'b', 0, 0x1c, 0x11, 0, 0, 0xff];
    assert_eq!(conform(&bytes), Ok(bytes.len() - 1));
}

#[test]
fn unknown_fields_may_hold_anything() {
    // 9: double; 10: map of two ints to ints; 11: byte; 12: uuid; 13: an empty map.
    let mut bytes = vec![0x97, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0x1b, 2, 0x55, 1, 2, 3, 4, 0x13, 7, 0x1d]);
    bytes.extend([0; 16]);
    bytes.extend([0x1b, 0, 0]);
    assert_eq!(conform(&bytes), Ok(bytes.len()));
}

#[test]
fn integers_are_zigzag_of_at_most_64_bits() {
    for (bytes, value) in [(&[0][..], 0), (&[1], -1), (&[2], 1), (&[0x80, 1], 64)] {
        assert_eq!(Walker::new(bytes).int(), Ok(value));
    }
    let longest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(Walker::new(&longest).int(), Ok(i64::MIN));
    assert!(Walker::new(&[0xff; 11]).int().is_err());
    assert!(Walker::new(&[1]).size("a size").is_err());
    assert!(Walker::new(&longest).size("a size").is_err());
}

#[test]
fn lengths_beyond_the_input_are_rejected() {
    assert!(rejection(&[0x29, 0xf8, 0xff, 0xff, 0xff, 0x7f, 0]).contains("a list of length 268435455"));
    assert!(rejection(&[0x29, 0x18, 5, b'a']).contains("a binary of length 5"));
    assert!(rejection(&[0x9b, 0x7f, 0x55, 0]).contains("a map of length 127"));
    assert!(rejection(&[0x97, 0, 0]).contains("unexpected end"));
    assert!(rejection(&[]).contains("unexpected end"));
}

#[test]
fn known_fields_of_another_wire_type_are_rejected() {
    assert!(rejection(&[0x18, 0, 0]).contains("a field is Binary, expected Int"));
    assert!(rejection(&[0x29, 0x15, 0, 0]).contains("a list element is Int, expected Binary"));
}

#[test]
fn values_that_decoders_read_differently_are_rejected() {
    assert!(rejection(&[0x99, 0x11, 1, 0]).contains("booleans"));
    assert!(rejection(&[0x9b, 1, 0x15, 1, 1, 0]).contains("booleans"));
    assert!(rejection(&[0x9f, 0]).contains("unknown wire type"));
}

#[test]
fn nesting_is_bounded() {
    let lists = [&[0x99][..], &[0x19; 10_000]].concat();
    assert!(rejection(&lists).contains("deeper"));
    let structs = vec![0x9c; 10_000];
    assert!(rejection(&structs).contains("deeper"));
}

proptest! {
    #[test]
    fn any_bytes_are_walked_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(end) = conform(&bytes) {
            prop_assert!(end <= bytes.len());
        }
    }

    #[test]
    fn plausible_bytes_are_walked_or_rejected(
        bytes in prop::collection::vec(prop::sample::select(&[0, 1, 5, 0x15, 0x19, 0x1c, 0x2c, 0x1b, 0x55, 0xf9][..]), 0..400),
    ) {
        if let Ok(end) = conform(&bytes) {
            prop_assert!(end <= bytes.len());
        }
    }
}
