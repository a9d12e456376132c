use super::*;

/// Version 1, a schema of a root with one integer column, no rows, no row groups.
const SCHEMA_OF_ONE: &[u8] = &[0x19, 0x2c, 0x48, 1, b'm', 0x15, 2, 0, 0x15, 2, 0x25, 0, 0x18, 1, b'x', 0];

fn footer(parts: &[&[u8]]) -> Vec<u8> {
    [&[&[0x15, 2][..]], parts].concat().concat()
}

fn rejection(footer: &[u8]) -> String {
    check_footer(footer).unwrap_err().detail
}

#[test]
fn a_valid_footer_passes() {
    assert_eq!(check_footer(&footer(&[SCHEMA_OF_ONE, &[0x16, 0, 0x19, 0x0c, 0]])), Ok(false));
}

#[test]
fn a_claimed_number_of_row_groups_is_checked() {
    // This input once made a decoder allocate 206 GB.
    let hostile =
        [0x15, 2, 0x19, 0x1c, 0x48, 1, b'm', 0x15, 0, 0, 0x16, 0, 0x19, 0xfc, 255, 255, 255, 255, 7, 0];
    assert!(rejection(&hostile).contains("a list of length 2147483647"));
}

#[test]
fn a_claimed_number_of_schema_elements_is_checked() {
    assert!(
        rejection(&[0x15, 2, 0x19, 0xfc, 255, 255, 255, 255, 7, 0]).contains("a list of length 2147483647")
    );
}

#[test]
fn a_list_declared_as_an_integer_is_rejected() {
    // Field 4 as an integer whose bytes are the head of a huge list.
    let hostile = footer(&[SCHEMA_OF_ONE, &[0x16, 0, 0x16, 0xfc, 255, 255, 255, 255, 7, 0]]);
    assert!(rejection(&hostile).contains("a field is Int, expected List"));
}

fn schema(children: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0x15, 2, 0x19, 0xfc];
    varint(&mut bytes, children.len() as u64);
    for count in children {
        bytes.extend([0x48, 1, b'x', 0x15]);
        varint(&mut bytes, u64::from(*count) * 2);
        bytes.push(0);
    }
    bytes.extend([0x16, 0, 0x19, 0x0c, 0]);
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[test]
fn the_schema_is_one_tree() {
    assert_eq!(check_footer(&schema(&[2, 0, 2, 0, 0])), Ok(false));
    assert!(rejection(&schema(&[0, 0])).contains("second root"));
    assert!(rejection(&schema(&[1, 0, 0])).contains("second root"));
    assert!(rejection(&schema(&[2, 2, 0])).contains("a group of 2 children"));
    assert!(rejection(&schema(&[2, 1, 0])).contains("lacks elements"));
    assert!(rejection(&schema(&[1 << 30, 0])).contains("a group of 1073741824 children"));
}

#[test]
fn the_depth_of_the_schema_is_bounded() {
    let deep = |groups: usize| schema(&[vec![1; groups], vec![0]].concat());
    assert_eq!(check_footer(&deep(60)), Ok(false));
    assert!(rejection(&deep(100_000)).contains("deeper than 64"));
}

#[test]
fn encryption_is_detected() {
    let encrypted = footer(&[SCHEMA_OF_ONE, &[0x16, 0, 0x19, 0x0c, 0x4c, 0, 0]]);
    assert_eq!(check_footer(&encrypted), Ok(true));
    // A row group of a column chunk with crypto_metadata.
    let column = footer(&[SCHEMA_OF_ONE, &[0x16, 0, 0x19, 0x1c, 0x19, 0x1c, 0x8c, 0, 0, 0, 0]]);
    assert_eq!(check_footer(&column), Ok(true));
    // An encrypted file with a plain footer, which is followed by its signature.
    let signed = [encrypted, vec![0xab; 28]].concat();
    assert_eq!(check_footer(&signed), Ok(true));
}

#[test]
fn bytes_after_a_footer_are_rejected() {
    assert!(rejection(&footer(&[SCHEMA_OF_ONE, &[0x16, 0, 0x19, 0x0c, 0, 0]])).contains("after the end"));
}
