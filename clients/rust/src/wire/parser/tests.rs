use arrow_flight::FlightData;
use bytes::{BufMut, BytesMut};
use proptest::prelude::*;
use prost::Message as _;

use super::*;

fn parser() -> Parser {
    Parser::new(&Config::default(), Slabs::new(1 << 20))
}

fn framed(message: &FlightData) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    message.encode(&mut bytes).unwrap();
    bytes.to_vec()
}

fn flight_data(header: Vec<u8>, app_metadata: Vec<u8>, body: Vec<u8>) -> FlightData {
    FlightData {
        flight_descriptor: Some(arrow_flight::FlightDescriptor::new_cmd(vec![1, 2, 3])),
        data_header: header.into(),
        app_metadata: app_metadata.into(),
        data_body: body.into(),
    }
}

proptest! {
    #[test]
    fn messages_are_parsed_however_their_bytes_are_split(
        parts in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..20),
             prop::collection::vec(any::<u8>(), 0..3000)),
            1..6,
        ),
        cuts in prop::collection::vec(1usize..700, 1..20),
    ) {
        let messages: Vec<FlightData> =
            parts.into_iter().map(|(header, metadata, body)| flight_data(header, metadata, body)).collect();
        let mut wire = Bytes::from(messages.iter().flat_map(framed).collect::<Vec<u8>>());
        let (mut parser, mut found, mut cuts) = (parser(), Vec::new(), cuts.into_iter().cycle());
        while !wire.is_empty() {
            let mut piece = wire.split_to(cuts.next().unwrap().min(wire.len()));
            while let Some(message) = parser.push(&mut piece).unwrap() {
                found.push(message);
            }
        }
        prop_assert!(parser.at_boundary());
        prop_assert_eq!(found.len(), messages.len());
        for (found, sent) in found.iter().zip(&messages) {
            prop_assert_eq!(&found.header[..], &sent.data_header[..]);
            prop_assert_eq!(&found.app_metadata[..], &sent.app_metadata[..]);
            prop_assert_eq!(found.body.as_deref().unwrap_or_default(), &sent.data_body[..]);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (mut parser, mut bytes) = (parser(), Bytes::from(bytes));
        while let Ok(Some(_)) = parser.push(&mut bytes) {}
    }
}

#[test]
fn a_body_over_the_limit_is_rejected_before_memory_is_allocated() {
    let config = Config { max_batch_bytes: 99, ..Config::default() };
    let mut parser = Parser::new(&config, Slabs::new(0));
    let mut wire = Bytes::from(framed(&flight_data(vec![], vec![], vec![7; 100])));
    let error = parser.push(&mut wire).err().unwrap().to_string();
    assert!(error.contains("100 bytes in field 1000, the limit is 99"), "{error}");
}
