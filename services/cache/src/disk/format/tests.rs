use super::*;

fn sections() -> Vec<Parts> {
    vec![
        (1, vec![Bytes::from_static(b"one"), Bytes::from_static(b" and more")]),
        (2, vec![]),
        (u128::MAX, vec![Bytes::from(vec![7; 1000])]),
    ]
}

#[test]
fn a_table_is_read_back_and_every_section_is_aligned() {
    let sections = sections();
    let table = Table::new(42, &sections, Duration::from_nanos(1_234_567_890));
    let header = table.header();
    let file = table.file(&header, &sections).concat();
    assert_eq!(file.len() as u64, file_bytes(&sections));
    assert_eq!(Table::parse(&file, file.len() as u64), Ok(table.clone()));
    for (record, (_, parts)) in table.records.iter().zip(&sections) {
        assert_eq!(record.offset % ALIGNMENT, 0);
        let (start, end) = (record.offset as usize, (record.offset + record.length) as usize);
        assert_eq!(file[start..end], parts.concat());
    }
}

#[test]
fn a_header_with_any_flipped_bit_is_rejected() {
    let sections = sections();
    let table = Table::new(42, &sections, Duration::from_nanos(1_234_567_890));
    let header = table.header();
    let file_bytes = table.file_bytes;
    for bit in 0..header.len() * 8 {
        let mut damaged = header.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Table::parse(&damaged, file_bytes).is_err(), "bit {bit}");
    }
    for length in 0..header.len() {
        assert!(Table::parse(&header[..length], file_bytes).is_err(), "{length} bytes");
    }
    assert_eq!(Table::parse(&header, file_bytes - 1), Err(IoErrorKind::Length));
}

proptest::proptest! {
    #[test]
    fn no_header_panics(mut bytes in proptest::collection::vec(0u8.., 0..300), sections in 0u32..8, file_bytes in 0u64..) {
        if bytes.len() >= PREAMBLE_BYTES {
            bytes[..8].copy_from_slice(MAGIC);
            bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            bytes[32..40].copy_from_slice(&file_bytes.to_le_bytes());
            bytes[12..16].copy_from_slice(&sections.to_le_bytes());
            if let Some(header) = bytes.get(..header_bytes(sections as usize)) {
                let checksum = header_checksum(header).to_le_bytes();
                bytes[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum);
            }
        }
        drop(Table::parse(&bytes, file_bytes));
    }
}
