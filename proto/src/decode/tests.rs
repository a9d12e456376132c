use super::*;
use crate::v1::{Command, KeyColumn, Lookup, PlanSummary, Remainder, Shuffle, Train};

fn decode(bytes: &[u8]) -> Result<Command, DecodeError> {
    Encoding::of(bytes).decode("Command", bytes)
}

#[test]
fn the_documented_example_reads_as_documented() {
    let json = br#"{"train": {"dataset": "flights", "columns": ["delay", "distance"], "batch_size": 4096, "seed": "7",
        "shuffle": {"window_rows": 1048576}, "epoch": 0, "epochs": 1, "world_size": 4, "lanes": 1,
        "remainder": "SHORT", "start_step": 0, "job": "ctr-v3", "label": "delay"}}"#;
    let train = decode(json).unwrap().train.unwrap();
    assert_eq!(train.dataset, "flights");
    assert_eq!(train.seed, 7);
    assert_eq!(train.world_size, Some(4));
    assert_eq!(train.remainder(), Remainder::Short);
    assert_eq!(train.shuffle.unwrap().window_rows, Some(1 << 20));
}

#[test]
fn both_forms_carry_the_same_message() {
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
    let mut bytes = Encoding::Protobuf.encode(&Command::from(Train::default()));
    // Field 99 of Train, varint 1.
    bytes = [&[0x0a, bytes[1] + 3], &bytes[2..], &[0x98, 0x06, 0x01]].concat();
    let error = decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("unknown field 99 in Train"), "{error}");
}

#[test]
fn an_unknown_field_is_found_behind_known_ones_and_inside_of_lists() {
    let keys = |name: &str| KeyColumn { name: name.into(), integers: vec![1, -1, 300], strings: vec![] };
    let lookup = Lookup { dataset: "d".into(), keys: vec![keys("a"), keys("b")], ..Lookup::default() };
    let bytes = Encoding::Protobuf.encode(&lookup);
    assert_eq!(Encoding::Protobuf.decode::<Lookup>("Lookup", &bytes).unwrap(), lookup);
    // Field 7 of KeyColumn, a group, inside of field 8 of Lookup.
    let bytes = [&bytes, &[0x42, 2, 0x3b, 0x3c][..]].concat();
    let error = Encoding::Protobuf.decode::<Lookup>("Lookup", &bytes).unwrap_err().to_string();
    assert!(error.contains("unknown field 7 in KeyColumn"), "{error}");
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
fn what_older_servers_and_states_do_not_know_is_left_out_where_it_says_nothing() {
    let written = |train: Train| String::from_utf8(Encoding::Json.encode(&Command::from(train))).unwrap();
    let plain = Train { dataset: "d".into(), batch_size: 1, ..Train::default() };
    assert!(!written(plain.clone()).contains("batch_rows"));
    assert!(written(Train { batch_rows: 7, ..plain }).contains(r#""batch_rows":7"#));
    let summary = String::from_utf8(Encoding::Json.encode(&PlanSummary::default())).unwrap();
    assert!(!summary.contains("batch_rows") && !summary.contains("mixed_rows"), "{summary}");
}
