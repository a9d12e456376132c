use forebay_loader::Body;

use super::*;

fn message(pieces: &[usize]) -> (Vec<Bytes>, FlightData) {
    let batch = WireBatch {
        group_offsets: Vec::new(),
        rows: 3,
        header: Bytes::from_static(b"header"),
        body: Body::new(pieces.iter().map(|piece| Bytes::from(vec![7; *piece]))),
        hash: None,
    };
    let (first, rest) = frames(b"metadata", batch).unwrap();
    let frames: Vec<Bytes> = std::iter::once(first).chain(rest).collect();
    let bytes = frames.concat();
    assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
    (frames, FlightData::decode(&bytes[5..]).unwrap())
}

#[test]
fn a_framed_batch_is_the_flight_data_that_prost_reads() {
    for (pieces, frames_expected) in [
        (&[0][..], 1),
        (&[64], 1),
        (&[COALESCE_BYTES - 1], 1),
        (&[COALESCE_BYTES], 2),
        (&[1 << 20], 2),
        (&[64, 0, 64], 1),
        (&[1 << 20, 0, 3, 61], 4),
    ] {
        let (frames, data) = message(pieces);
        assert_eq!(data.data_header.as_ref(), b"header");
        assert_eq!(data.app_metadata.as_ref(), b"metadata");
        assert_eq!(data.data_body.len(), pieces.iter().sum::<usize>());
        assert!(data.data_body.iter().all(|byte| *byte == 7));
        assert!(frames.iter().all(|frame| !frame.is_empty()), "an empty frame ends h2 connections");
        assert_eq!(frames.len(), frames_expected);
    }
}
