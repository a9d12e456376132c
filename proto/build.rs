//! Compiles `forebay/v1/*.proto` and `inference/*.proto` without protoc, and derives the JSON form of all messages of
//! `forebay/v1` except those of `online.proto`.

use prost_reflect::{
    prost::Message as _,
    prost_types::{
        DescriptorProto, EnumDescriptorProto, FieldDescriptorProto as Field, FileDescriptorProto,
        FileDescriptorSet,
        field_descriptor_proto::{Label, Type},
    },
};

/// Files whose messages have a JSON form.
const IN_JSON: [&str; 2] = ["forebay/v1/command.proto", "forebay/v1/metadata.proto"];

/// File of the service for callers without Arrow.
const ONLINE: &str = "forebay/v1/online.proto";

/// Earlier names of fields, as stored in tickets, states and job records. JSON is read with both names and written with the new
/// one.
const ALIASES: [(&str, &str); 11] = [
    ("Train.content_hash", "hash"),
    ("Train.job_name", "job"),
    ("Train.label_column", "label"),
    ("Train.max_pack_rows", "batch_rows"),
    ("Mixed.fraction", "share"),
    ("Tensor.null_value", "fill"),
    ("Tensor.max_list_length", "max_len"),
    ("Dedupe.null_value", "fill"),
    ("Shuffle.keep_block_order", "in_order"),
    ("PlanSummary.max_pack_rows", "batch_rows"),
    ("BatchMetadata.content_hash", "hash"),
];

/// Omits a field with its default value from the JSON.
const SKIP_DEFAULT: &str = r#"#[serde(skip_serializing_if = "crate::json::is_default")]"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=forebay");
    println!("cargo:rerun-if-changed=arrow");
    println!("cargo:rerun-if-changed=inference");
    let descriptors = protox::compile([IN_JSON.as_slice(), &[ONLINE]].concat(), ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("forebay.fds"), descriptors.encode_to_vec())?;
    let flight = protox::compile(["arrow/flight/flight.proto"], ["."])?;
    std::fs::write(out.join("flight.fds"), flight.encode_to_vec())?;

    let mut config = tonic_prost_build::configure()
        .field_attribute(".forebay.v1.Train.remainder", r#"#[serde(with = "crate::json::remainder")]"#)
        .field_attribute(".forebay.v1.PlanSummary.remainder", r#"#[serde(with = "crate::json::remainder")]"#)
        .field_attribute(".forebay.v1.InferRequest.priority", r#"#[serde(with = "crate::json::priority")]"#)
        .field_attribute(
            ".forebay.v1.KeyColumn.integers",
            r#"#[serde(deserialize_with = "crate::json::i64s")]"#,
        )
        .bytes(".forebay.v1.PackedColumn")
        .codec_path("crate::lookup::LookupCodec")
        // Newer than the first states and servers, which refuse unknown fields: omitted at the default.
        .field_attribute(".forebay.v1.Tensor.ragged", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.mixed_rows", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.Train.max_pack_rows", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.max_pack_rows", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.same_blocks_every_epoch", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.empty_reason", SKIP_DEFAULT)
        .field_attribute(".", r#"#[allow(missing_docs)]"#)
        .type_attribute(".", "#[allow(missing_docs)]");
    for name in names(&descriptors) {
        config = config.type_attribute(&name, "#[derive(serde::Serialize, serde::Deserialize)]");
        config = config.message_attribute(&name, "#[serde(default, deny_unknown_fields)]");
    }
    for (message, field, optional) in integers(&descriptors) {
        let with = if optional { "crate::json::optional_u64" } else { "crate::json::u64" };
        config = config.field_attribute(
            format!(".{message}.{field}"),
            format!(r#"#[serde(deserialize_with = "{with}")]"#),
        );
    }
    for (message, field, optional) in doubles(&descriptors) {
        let with = match (field.as_str(), optional) {
            ("null_value", _) => "crate::json::null_value",
            (_, true) => "crate::json::optional_double",
            (_, false) => "crate::json::double",
        };
        config =
            config.field_attribute(format!(".{message}.{field}"), format!(r#"#[serde(with = "{with}")]"#));
    }
    for (message, field) in absent_when_empty(&descriptors) {
        config = config.field_attribute(format!(".{message}.{field}"), SKIP_DEFAULT);
    }
    for (field, alias) in ALIASES {
        config =
            config.field_attribute(format!(".forebay.v1.{field}"), format!(r#"#[serde(alias = "{alias}")]"#));
    }
    // Errors about unknown fields list current names only.
    let names = ALIASES.map(|(field, alias)| (field.rsplit('.').next().unwrap_or(field), alias));
    std::fs::write(out.join("aliases.rs"), format!("{names:?}"))?;
    config.build_client(false).compile_fds(descriptors)?;

    let inference = protox::compile(["inference/open_inference.proto"], ["."])?;
    std::fs::write(out.join("inference.fds"), inference.encode_to_vec())?;
    let mut names = tonic_prost_build::Config::new();
    names.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::bounded::BoundedCodec")
        .build_client(false)
        .compile_fds_with_config(inference, names)?;
    Ok(())
}

/// Names of the messages and enums with a JSON form. Nested messages inherit it.
fn names(set: &FileDescriptorSet) -> impl Iterator<Item = String> {
    in_json(set).flat_map(|file| {
        let messages = file.message_type.iter().map(DescriptorProto::name);
        let enums = file.enum_type.iter().map(EnumDescriptorProto::name);
        messages.chain(enums).map(|name| format!(".{}.{name}", file.package()))
    })
}

fn in_json(set: &FileDescriptorSet) -> impl Iterator<Item = &FileDescriptorProto> {
    set.file.iter().filter(|file| IN_JSON.contains(&file.name()))
}

/// Returns every singular 64-bit unsigned field as (message, field, is optional). JSON accepts these as strings, too.
fn integers(set: &FileDescriptorSet) -> Vec<(String, String, bool)> {
    singular(set, |field| matches!(field.r#type(), Type::Uint64 | Type::Fixed64))
}

/// Returns every singular double as (message, field, is optional). JSON has no numbers for NaN and the infinities.
fn doubles(set: &FileDescriptorSet) -> Vec<(String, String, bool)> {
    singular(set, |field| field.r#type() == Type::Double)
}

fn singular(set: &FileDescriptorSet, keep: fn(&Field) -> bool) -> Vec<(String, String, bool)> {
    fields(set, |field| field.label() != Label::Repeated)
        .filter(|(_, field)| keep(field))
        .map(|(message, field)| (message, field.name().to_owned(), field.proto3_optional()))
        .collect()
}

/// Returns every optional, message or repeated field. JSON omits these if they are absent.
fn absent_when_empty(set: &FileDescriptorSet) -> Vec<(String, String)> {
    fields(set, |field| {
        field.proto3_optional() || field.r#type() == Type::Message || field.label() == Label::Repeated
    })
    .map(|(message, field)| (message, field.name().to_owned()))
    .collect()
}

fn fields(set: &FileDescriptorSet, keep: fn(&Field) -> bool) -> impl Iterator<Item = (String, &Field)> {
    in_json(set)
        .flat_map(|file| file.message_type.iter().map(move |message| (file.package(), message)))
        .flat_map(move |(package, message)| {
            let name = format!("{package}.{}", message.name());
            message.field.iter().filter(move |f| keep(f)).map(move |f| (name.clone(), f))
        })
}
