//! Property of the fuzz target, checked for the inputs of its corpus.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{fs, path::Path};

use forebay_proto::{Encoding, v1};

#[path = "../../fuzz/properties/command.rs"]
mod command;
#[path = "../../fuzz/properties/replay.rs"]
mod replay;

#[test]
fn messages_of_the_fuzzer_are_the_same_in_both_encodings() {
    replay::replay("command", 100, command::check);
}

#[test]
fn every_request_of_the_protocol_is_a_message_of_the_fuzzer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("forebay/v1");
    let mut found = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("message ")?.split([' ', '{']).next());
        for name in names.filter(|name| name.ends_with("Request")) {
            assert!(command::MESSAGES.contains(&name), "{name} is missing in fuzz/properties/command.rs");
            found += 1;
        }
    }
    assert!(found > 5, "only {found} requests in the protocol");
}

/// A command with a value in every field.
fn train() -> v1::Train {
    v1::Train {
        dataset: "flights".into(),
        snapshot: "00ab".into(),
        columns: vec!["delay".into(), "distance".into()],
        tensors: vec![v1::Tensor {
            name: "x".into(),
            columns: vec!["delay".into()],
            dtype: "float32".into(),
            null_value: Some(-1.5),
            max_list_length: Some(16),
            ragged: true,
        }],
        batch_size: 4096,
        seed: u64::MAX,
        shuffle: Some(v1::Shuffle {
            window_rows: Some(1 << 20),
            keep_block_order: true,
            global: Some(Default::default()),
            none: Some(Default::default()),
            partitions: Some(8),
        }),
        epoch: 1,
        epochs: Some(3),
        world_size: Some(4),
        lanes: Some(2),
        rank: Some(1),
        lane: Some(0),
        remainder: v1::Remainder::Pad.into(),
        start_step: 5,
        steps: 6,
        job_name: "ctr-v3".into(),
        label_column: "delay".into(),
        content_hash: Some(true),
        plan_version: 1,
        select: vec!["log1p(delay) AS y".into()],
        filter: "delay > 0".into(),
        group_by: vec!["session".into()],
        dedupe: vec![v1::Dedupe {
            key: vec!["user".into()],
            tensor: "user".into(),
            columns: vec!["u0".into()],
            dtype: "float32".into(),
            null_value: Some(0.1),
        }],
        mix: vec![v1::Mixed {
            dataset: "ads".into(),
            snapshot: "00cd".into(),
            fraction: 0.3,
            filter: "a = '\u{e9}\"\\'".into(),
        }],
        max_pack_rows: 64,
        semantics: Some(4),
        values: vec![v1::NamedValues { name: "ids".into(), sha256: "5e".repeat(32), count: 100_000 }],
    }
}

fn lookup() -> v1::Lookup {
    let keys = |name: &str, integers, strings| v1::KeyColumn { name: name.into(), integers, strings };
    let join = v1::Lookup { dataset: "items".into(), max_age_seconds: 0.25, ..v1::Lookup::default() };
    v1::Lookup {
        dataset: "users".into(),
        columns: vec!["age".into()],
        key: vec!["id".into()],
        joins: vec![join],
        keys: vec![keys("id", vec![1, -1, i64::MIN], vec![]), keys("s", vec![], vec!["".into(), "x".into()])],
        filter: "age > 3".into(),
        ..v1::Lookup::default()
    }
}

/// Writes the inputs that fuzzing begins with.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_seeds_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/command");
    fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(format!("seed-{name}")), bytes).unwrap();
    let commands = [
        ("train", v1::Command::from(train())),
        ("lookup", v1::Command { lookup: Some(lookup()), ..Default::default() }),
        ("infer", v1::Command { infer: Some(v1::Infer { queue: "ctr".into() }), ..Default::default() }),
        (
            "worker",
            v1::Command {
                worker: Some(v1::Worker { queue: "ctr".into(), credits: 2 }),
                ..Default::default()
            },
        ),
    ];
    for (extension, encoding) in [("json", Encoding::Json), ("protobuf", Encoding::Protobuf)] {
        for (name, command) in &commands {
            write(&format!("{name}.{extension}"), encoding.encode(command));
        }
        let report = v1::ReportRequest {
            dataset: "d".into(),
            trainer: 7,
            seconds: 1.5,
            gpu_utilization: Some(0.5),
            ..Default::default()
        };
        write(&format!("report.{extension}"), encoding.encode(&report));
        let infer =
            v1::InferRequest { id: Some(1), timeout_seconds: 0.2, cancel: Some(3), ..Default::default() };
        write(&format!("request.{extension}"), encoding.encode(&infer));
        let open = v1::OpenRequest {
            url: "s3://bucket/rows".into(),
            key: vec!["user".into(), "item".into()],
            settings: r#"{"cache_memory": "1GiB"}"#.into(),
            credentials: [("AWS_REGION".to_owned(), "eu-central-1".to_owned())].into(),
        };
        write(&format!("open.{extension}"), encoding.encode(&open));
        let pin = v1::PinLookupsRequest { dataset: "users".into(), snapshot: "previous".into() };
        write(&format!("pin-lookups.{extension}"), encoding.encode(&pin));
        let reply = v1::BatchReply { batch: 1, error: "out of memory".into(), too_large: true };
        write(&format!("reply.{extension}"), encoding.encode(&reply));
    }
    write("renamed.json", include_bytes!("../src/decode/fixtures/ticket_before_renaming.json").to_vec());
}
