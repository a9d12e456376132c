use super::*;
use crate::v1::{
    BatchMetadata, Command, Dedupe, KeyColumn, Lookup, Mixed, PlanSummary, Remainder, Shuffle, Tensor, Train,
};

fn decode(bytes: &[u8]) -> Result<Command, DecodeError> {
    Encoding::of(bytes).decode("Command", bytes)
}

#[test]
fn the_documented_example_is_decoded() {
    let json = br#"{"train": {"dataset": "flights", "columns": ["delay", "distance"], "batch_size": 4096, "seed": "7",
        "shuffle": {"window_rows": 1048576}, "epoch": 0, "epochs": 1, "world_size": 4, "lanes": 1,
        "remainder": "SHORT", "start_step": 0, "job_name": "ctr-v3", "label_column": "delay"}}"#;
    let train = decode(json).unwrap().train.unwrap();
    assert_eq!(train.dataset, "flights");
    assert_eq!(train.seed, 7);
    assert_eq!(train.world_size, Some(4));
    assert_eq!(train.remainder(), Remainder::Short);
    assert_eq!(train.shuffle.unwrap().window_rows, Some(1 << 20));
}

#[test]
fn both_encodings_carry_the_same_message() {
    let command = Command {
        train: Some(Train {
            dataset: "d".into(),
            batch_size: u64::MAX,
            remainder: Remainder::Drop.into(),
            shuffle: Some(Shuffle { none: Some(Default::default()), ..Default::default() }),
            ..Default::default()
        }),
        ..Command::default()
    };
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let bytes = encoding.encode(&command);
        assert_eq!(Encoding::of(&bytes), encoding);
        assert_eq!(decode(&bytes).unwrap(), command);
    }
}

#[test]
fn an_unknown_field_is_refused_by_name_or_number() {
    let error = decode(br#"{"train": {"dataset": "d", "batchsize": 3}}"#).unwrap_err().to_string();
    assert!(error.contains("batchsize") && error.contains("batch_size"), "{error}");
    // Earlier names are read, but not listed.
    assert!(error.contains("`max_pack_rows`") && !error.contains("`batch_rows`"), "{error}");
    let error = decode(br#"{"train": {"tensors": [{"nam": "x"}]}}"#).unwrap_err().to_string();
    assert!(error.contains("`null_value`") && !error.contains("`fill`"), "{error}");
    let error = decode(br#"{"train": {"shuffle": {"in_ordr": true}}}"#).unwrap_err().to_string();
    assert!(error.contains("`keep_block_order`") && !error.contains("`in_order`"), "{error}");
    let mut bytes = Encoding::Protobuf.encode(&Command::from(Train::default()));
    // Field 99 of Train, varint 1.
    bytes = [&[0x0a, bytes[1] + 3], &bytes[2..], &[0x98, 0x06, 0x01]].concat();
    let error = decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("unknown field 99 in Train"), "{error}");
}

#[test]
fn an_unknown_field_is_found_after_known_ones_and_inside_lists() {
    let keys = |name: &str| KeyColumn { name: name.into(), integers: vec![1, -1, 300], strings: vec![] };
    let lookup = Lookup { dataset: "d".into(), keys: vec![keys("a"), keys("b")], ..Lookup::default() };
    let bytes = Encoding::Protobuf.encode(&lookup);
    assert_eq!(Encoding::Protobuf.decode::<Lookup>("Lookup", &bytes).unwrap(), lookup);
    // Field 7 of KeyColumn, a group, inside field 8 of Lookup.
    let bytes = [&bytes, &[0x42, 2, 0x3b, 0x3c][..]].concat();
    let error = Encoding::Protobuf.decode::<Lookup>("Lookup", &bytes).unwrap_err().to_string();
    assert!(error.contains("unknown field 7 in KeyColumn"), "{error}");
}

#[test]
fn an_unknown_value_of_an_enum_is_refused() {
    let train = |remainder| Command::from(Train { dataset: "d".into(), remainder, ..Train::default() });
    for known in 0..=3 {
        assert_eq!(decode(&Encoding::Protobuf.encode(&train(known))).unwrap(), train(known));
    }
    for unknown in [4, -1, i32::MAX] {
        let error = decode(&Encoding::Protobuf.encode(&train(unknown))).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown value {unknown} of field 14 in Train")), "{error}");
    }
}

#[test]
fn every_double_is_the_same_in_both_encodings() {
    let neighbour = f64::from_bits(0x3ddf_ffff_ffff_fffe);
    for value in [neighbour, 0.1, -0.0, 5e-324, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let train = Train {
            tensors: vec![Tensor { null_value: Some(value), ..Tensor::default() }],
            mix: vec![Mixed { fraction: value, ..Mixed::default() }],
            ..Train::default()
        };
        let json = Encoding::Json.encode(&Command::from(train));
        let train = decode(&json).unwrap().train.unwrap();
        let read = (train.mix[0].fraction.to_bits(), train.tensors[0].null_value.map(f64::to_bits));
        assert_eq!(read, (value.to_bits(), Some(value.to_bits())), "{}", String::from_utf8_lossy(&json));
    }
    let json = br#"{"train": {"mix": [{"fraction": "Inf"}]}}"#;
    assert!(decode(json).unwrap_err().to_string().contains("\"-Infinity\", found \"Inf\""));
    let json = br#"{"train": {"tensors": [{"null_value": null}], "mix": [{"fraction": 1}]}}"#;
    let train = decode(json).unwrap().train.unwrap();
    assert_eq!((train.tensors[0].null_value, train.mix[0].fraction), (None, 1.0));
}

#[test]
fn an_integer_without_an_equal_double_is_refused_with_the_name_of_its_field() {
    let decoded = |value: &str| {
        decode(format!(r#"{{"train": {{"tensors": [{{"null_value": {value}}}]}}}}"#).as_bytes())
    };
    for (text, value) in [
        ("-9223372036854775808", -9_223_372_036_854_775_808.0),
        ("9007199254740992", 9_007_199_254_740_992.0),
        ("9007199254740994", 9_007_199_254_740_994.0),
        ("9223372036854775808", 9_223_372_036_854_775_808.0),
        ("-1", -1.0),
    ] {
        let train = decoded(text).unwrap().train.unwrap();
        assert_eq!(train.tensors[0].null_value, Some(value), "{text}");
    }
    for text in ["9007199254740993", "-9007199254740993", "9223372036854775807", "18446744073709551615"] {
        let error = decoded(text).unwrap_err().to_string();
        assert!(error.contains("null_value: ") && error.contains(text), "{error}");
    }
}

#[test]
fn keys_in_json_are_numbers_or_strings() {
    let json =
        br#"{"lookup": {"dataset": "d", "keys": [{"name": "k", "integers": [1, "-9223372036854775808"]},
        {"name": "s", "strings": ["1", ""]}]}}"#;
    let lookup = decode(json).unwrap().lookup.unwrap();
    assert_eq!(lookup.keys[0].integers, [1, i64::MIN]);
    assert_eq!(lookup.keys[1].strings, ["1", ""]);
    for keys in ["[1.5]", "[9223372036854775808]", "[\"x\"]", "[null]", "3"] {
        let json =
            format!(r#"{{"lookup": {{"dataset": "d", "keys": [{{"name": "k", "integers": {keys}}}]}}}}"#);
        let error = decode(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("integer") || error.contains("sequence"), "{error}");
    }
}

#[test]
fn malformed_values_are_refused() {
    for json in [
        r#"{"train": {"batch_size": -1}}"#,
        r#"{"train": {"batch_size": "x"}}"#,
        r#"{"train": {"remainder": "MAYBE"}}"#,
        r#"{"train": {"seed": 18446744073709551616}}"#,
        r#"{"train": 3}"#,
        r#"{"#,
    ] {
        assert!(decode(json.as_bytes()).is_err(), "{json}");
    }
    assert!(decode(b"\xff\xff\xff").is_err());
}

#[test]
fn newer_fields_are_omitted_at_their_default_for_older_servers_and_states() {
    let written = |train: Train| String::from_utf8(Encoding::Json.encode(&Command::from(train))).unwrap();
    let plain = Train { dataset: "d".into(), batch_size: 1, ..Train::default() };
    assert!(!written(plain.clone()).contains("max_pack_rows"));
    assert!(written(Train { max_pack_rows: 7, ..plain }).contains(r#""max_pack_rows":7"#));
    let summary = String::from_utf8(Encoding::Json.encode(&PlanSummary::default())).unwrap();
    assert!(!summary.contains("max_pack_rows") && !summary.contains("mixed_rows"), "{summary}");
}

/// A ticket as written before the fields were renamed.
const OLD_TICKET: &str = include_str!("fixtures/ticket_before_renaming.json");

#[test]
fn an_old_json_ticket_is_still_read() {
    let train = Train {
        dataset: "clicks".into(),
        snapshot: "00ab".into(),
        tensors: vec![Tensor {
            name: "items".into(),
            columns: vec!["items".into()],
            dtype: "int64".into(),
            null_value: Some(-1.0),
            max_list_length: Some(16),
            ragged: false,
        }],
        batch_size: 8,
        seed: 7,
        shuffle: Some(Shuffle { window_rows: Some(4096), keep_block_order: true, ..Shuffle::default() }),
        epochs: Some(1),
        world_size: Some(2),
        lanes: Some(1),
        rank: Some(1),
        lane: Some(0),
        remainder: Remainder::Drop.into(),
        start_step: 3,
        job_name: "ctr-v3".into(),
        label_column: "clicked".into(),
        content_hash: Some(false),
        plan_version: 1,
        group_by: vec!["session".into()],
        dedupe: vec![Dedupe {
            key: vec!["user".into()],
            tensor: "user".into(),
            columns: vec!["u0".into(), "u1".into()],
            dtype: "float32".into(),
            null_value: Some(0.5),
        }],
        mix: vec![Mixed {
            dataset: "ads".into(),
            snapshot: "00cd".into(),
            fraction: 0.25,
            filter: String::new(),
        }],
        max_pack_rows: 64,
        ..Train::default()
    };
    assert_eq!(decode(OLD_TICKET.as_bytes()).unwrap(), Command::from(train));
}

#[test]
fn old_json_metadata_is_still_read() {
    let json = concat!(
        r#"{"snapshot":"00ab","plan_version":1,"plan_hash":"0123456789abcdef","rows":100,"steps":6,"window_rows":4096,"#,
        r#""windows":1,"blocks_per_window":2,"window_bytes":800,"batch_size":8,"world_size":2,"remainder":"DROP","#,
        r#""groups":20,"packs":12,"batch_rows":64}"#,
    );
    let summary: PlanSummary = Encoding::Json.decode("PlanSummary", json.as_bytes()).unwrap();
    assert_eq!((summary.max_pack_rows, summary.packs), (64, Some(12)));
    let json = r#"{"epoch":1,"step":2,"rank":0,"rows":8,"position":16,"hash":18446744073709551615}"#;
    let metadata: BatchMetadata = Encoding::Json.decode("BatchMetadata", json.as_bytes()).unwrap();
    assert_eq!((metadata.content_hash, metadata.position), (Some(u64::MAX), 16));
}

#[test]
fn a_field_under_its_old_and_new_name_is_refused() {
    let error = decode(br#"{"train": {"job": "a", "job_name": "b"}}"#).unwrap_err().to_string();
    assert!(error.contains("duplicate field"), "{error}");
}

#[test]
fn a_small_message_that_would_take_much_memory_is_refused_before_it_is_decoded() {
    // A nested message takes two bytes, and a text of a list, too.
    let joins = [0x3a, 0].repeat(200_000);
    let error = Encoding::Protobuf.decode::<Lookup>("Lookup", &joins).unwrap_err().to_string();
    assert!(error.contains("takes more than 50331648 bytes of memory"), "{error}");
    let json = format!("{{\"joins\": [{}{{}}]}}", "{},".repeat(200_000));
    let error = Encoding::Json.decode::<Lookup>("Lookup", json.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("takes more than 50331648 bytes of memory"), "{error}");
    let inputs = [0x2a, 0].repeat(200_000);
    assert!(inference_refusal("ModelInferRequest", &inputs).unwrap().contains("50331648 bytes"));
}

#[test]
fn large_messages_of_ordinary_parts_are_decoded() {
    let keys = KeyColumn { name: "id".into(), integers: (0..200_000).collect(), strings: vec![] };
    let names = KeyColumn { name: "name".into(), strings: vec!["a name".into(); 100_000], ..keys.clone() };
    let lookup = Lookup { keys: vec![keys, names], ..Lookup::default() };
    for encoding in [Encoding::Protobuf, Encoding::Json] {
        let bytes = encoding.encode(&lookup);
        assert_eq!(encoding.decode::<Lookup>("Lookup", &bytes).unwrap(), lookup);
    }
    // Braces within texts are no messages.
    let command = Command::from(Train { filter: "{\\\"{".repeat(100_000), ..Train::default() });
    assert_eq!(decode(&Encoding::Json.encode(&command)).unwrap(), command);
}

#[test]
fn deeply_nested_messages_are_refused() {
    let nested = (0..200).fold(Vec::new(), |inner: Vec<u8>, _| {
        let mut bytes = vec![0x3a];
        prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
        [bytes, inner].concat()
    });
    let error = Encoding::Protobuf.decode::<Lookup>("Lookup", &nested).unwrap_err().to_string();
    assert!(error.contains("more than 100 messages are nested"), "{error}");
}
