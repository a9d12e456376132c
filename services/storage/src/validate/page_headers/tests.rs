use super::*;

const LIMITS: Limits = Limits { codec: Compression::UNCOMPRESSED, min_value_bytes: 4, max_page_bytes: 100 };

/// A page header with a type, uncompressed and compressed sizes, and a type-specific header.
fn header(kind: u8, uncompressed: u8, compressed: u8, field: u8, body: &[u8]) -> Vec<u8> {
    let head = [0x15, kind * 2, 0x15, uncompressed * 2, 0x15, compressed * 2, (field - 3) << 4 | 0x0c];
    [&head[..], body, &[0, 0]].concat()
}

fn data(values: u8, encoding: u8) -> Vec<u8> {
    let body = [0x15, values * 2, 0x15, encoding * 2, 0x15, 6, 0x15, 6];
    [header(0, 8, 4, 5, &body), vec![0; 4]].concat()
}

fn dictionary(values: u8) -> Vec<u8> {
    [header(2, 20, 3, 7, &[0x15, values * 2, 0x15, 0]), vec![0; 3]].concat()
}

fn rejection(chunk: &[u8]) -> String {
    match walk_pages(chunk, LIMITS) {
        Err(Rejection::Malformed(malformed)) => malformed.detail,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_and_dictionaries_are_counted() {
    let index = header(1, 1, 0, 6, &[]);
    let chunk = [dictionary(5), data(10, 8), index, data(7, 7)].concat();
    let expected = Summary {
        values: 17,
        dictionary_bytes: 20,
        dictionary_values: 10,
        prefix_bytes: 8,
        prefix_values: 7,
        stored_bytes: 0,
        page_bytes: 8,
        stored_pages: vec![StoredPage { values: 7, bytes: 8 }],
    };
    assert_eq!(walk_pages(&chunk, LIMITS), Ok(expected));
    assert_eq!(walk_pages(&[], LIMITS), Ok(Summary::default()));
}

#[test]
fn the_bytes_of_plain_values_are_counted_without_their_lengths() {
    let page = |values: u8| [header(0, 30, 4, 5, &[0x15, values * 2, 0x15, 0]), vec![0; 4]].concat();
    let summary = walk_pages(&[page(2), page(7), page(50)].concat(), LIMITS).unwrap();
    assert_eq!((summary.stored_bytes, summary.page_bytes), (22 + 2, 30));
}

#[test]
fn a_page_occupies_at_least_the_bytes_that_it_is_stored_in() {
    let dictionary = [header(2, 4, 30, 7, &[0x15, 2, 0x15, 0]), vec![0; 30]].concat();
    let page = [header(0, 4, 20, 5, &[0x15, 2, 0x15, 16]), vec![0; 20]].concat();
    let chunk = [dictionary, page].concat();
    let summary = walk_pages(&chunk, LIMITS).unwrap();
    assert_eq!((summary.dictionary_bytes, summary.page_bytes), (30, 20));
    assert_eq!(walk_pages(&chunk, Limits { max_page_bytes: 29, ..LIMITS }), Err(Rejection::TooLarge(30)));
}

#[test]
fn a_chunk_begins_with_its_only_dictionary() {
    let index = header(1, 1, 0, 6, &[]);
    assert!(walk_pages(&[index, dictionary(5), data(10, 8)].concat(), LIMITS).is_ok());
    for first in [dictionary(5), data(10, 8)] {
        assert!(rejection(&[first, dictionary(5)].concat()).contains("a dictionary after another page"));
    }
}

#[test]
fn pages_are_within_their_chunk_and_limit() {
    let chunk = data(10, 0);
    assert!(rejection(&chunk[..chunk.len() - 1]).contains("a page of 4 bytes, but 3 bytes remain"));
    assert!(rejection(&[&chunk[..], &[0xff]].concat()).contains("wire type"));
    assert_eq!(walk_pages(&chunk, Limits { max_page_bytes: 7, ..LIMITS }), Err(Rejection::TooLarge(8)));
}

#[test]
fn inconsistent_pages_are_rejected() {
    assert!(rejection(&dictionary(6)).contains("a dictionary of 6 values in 20 bytes"));
    assert!(rejection(&header(9, 0, 0, 5, &[])).contains("a page of type 9"));
    assert!(rejection(&header(3, 0, 0, 5, &[])).contains("a page of type 3 with the header of another type"));
    let both = [&header(0, 0, 0, 5, &[])[..8], &[0x3c, 0, 0]].concat();
    assert!(rejection(&both).contains("a page with two type-specific headers"));
    let levels = header(3, 8, 0, 8, &[0x55, 6, 0x15, 6]);
    assert!(rejection(&levels).contains("6 bytes of levels"));
    // Sizes of -1.
    assert!(rejection(&[0x15, 0, 0x15, 1, 0x15, 0, 0]).contains("uncompressed page size is -1"));
    assert!(rejection(&[0x15, 0, 0x15, 0, 0x15, 1, 0]).contains("compressed page size is -1"));
}

#[test]
fn pages_that_decompress_beyond_their_claimed_size_are_rejected() {
    use std::io::Write;
    let mut compressed = Vec::new();
    brotli::CompressorWriter::new(&mut compressed, 4096, 9, 22).write_all(&[0; 50]).unwrap();
    let limits = Limits { codec: Compression::BROTLI(parquet::basic::BrotliLevel::default()), ..LIMITS };
    let page = |claimed| [header(0, claimed, compressed.len() as u8, 5, &[]), compressed.clone()].concat();
    assert!(walk_pages(&page(50), limits).is_ok());
    assert!(matches!(walk_pages(&page(49), limits), Err(Rejection::Malformed(_))));
}
