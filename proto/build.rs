//! Compiles `forebay/v1/*.proto` without protoc, and gives the messages their JSON form, but for those of `online.proto`, which
//! have none.

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

/// The service for callers without Arrow.
const ONLINE: &str = "forebay/v1/online.proto";

/// Left out of the JSON where it says nothing.
const SKIP_DEFAULT: &str = r#"#[serde(skip_serializing_if = "crate::json::is_default")]"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=forebay");
    println!("cargo:rerun-if-changed=arrow");
    let descriptors = protox::compile([IN_JSON.as_slice(), &[ONLINE]].concat(), ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("forebay.fds"), descriptors.encode_to_vec())?;
    let flight = protox::compile(["arrow/flight/flight.proto"], ["."])?;
    std::fs::write(out.join("flight.fds"), flight.encode_to_vec())?;

    let mut config = tonic_prost_build::configure()
        .field_attribute(".forebay.v1.Train.remainder", r#"#[serde(with = "crate::json::remainder")]"#)
        .field_attribute(".forebay.v1.PlanSummary.remainder", r#"#[serde(with = "crate::json::remainder")]"#)
        .field_attribute(
            ".forebay.v1.KeyColumn.integers",
            r#"#[serde(deserialize_with = "crate::json::i64s")]"#,
        )
        .bytes(".forebay.v1.PackedColumn")
        .codec_path("crate::lookup::LookupCodec")
        // Younger than states and servers that know nothing of them.
        .field_attribute(".forebay.v1.Tensor.ragged", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.mixed_rows", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.Train.batch_rows", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.batch_rows", SKIP_DEFAULT)
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
    for (message, field) in absent_when_empty(&descriptors) {
        config = config.field_attribute(format!(".{message}.{field}"), SKIP_DEFAULT);
    }
    config.build_client(false).compile_fds(descriptors)?;
    Ok(())
}

/// The messages and enums that have a JSON form; what lies in a message has it from that.
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

/// Every single 64-bit unsigned field as (message, field, is optional): JSON may spell it as a string.
fn integers(set: &FileDescriptorSet) -> Vec<(String, String, bool)> {
    fields(set, |field| {
        field.label() != Label::Repeated && matches!(field.r#type(), Type::Uint64 | Type::Fixed64)
    })
    .map(|(message, field)| (message, field.name().to_owned(), field.proto3_optional()))
    .collect()
}

/// Every optional, message or repeated field: left out of the JSON when it is not there.
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
