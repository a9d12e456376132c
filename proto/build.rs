//! Compiles `forebay/v1/*.proto` without protoc, and gives the messages their JSON form.

use prost_reflect::{
    prost::Message as _,
    prost_types::{
        FieldDescriptorProto as Field, FileDescriptorSet,
        field_descriptor_proto::{Label, Type},
    },
};

/// Left out of the JSON where it says nothing.
const SKIP_DEFAULT: &str = r#"#[serde(skip_serializing_if = "crate::json::is_default")]"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=forebay");
    println!("cargo:rerun-if-changed=arrow");
    let files = ["forebay/v1/command.proto", "forebay/v1/metadata.proto"];
    let descriptors = protox::compile(files, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("forebay.fds"), descriptors.encode_to_vec())?;
    let flight = protox::compile(["arrow/flight/flight.proto"], ["."])?;
    std::fs::write(out.join("flight.fds"), flight.encode_to_vec())?;

    let mut config = tonic_prost_build::configure()
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .message_attribute(".", "#[serde(default, deny_unknown_fields)]")
        .field_attribute(".forebay.v1.Train.remainder", r#"#[serde(with = "crate::json::remainder")]"#)
        .field_attribute(".forebay.v1.PlanSummary.remainder", r#"#[serde(with = "crate::json::remainder")]"#)
        // Younger than states and servers that know nothing of them.
        .field_attribute(".forebay.v1.Tensor.ragged", SKIP_DEFAULT)
        .field_attribute(".forebay.v1.PlanSummary.mixed_rows", SKIP_DEFAULT)
        .field_attribute(".", r#"#[allow(missing_docs)]"#)
        .type_attribute(".", "#[allow(missing_docs)]");
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
    config.build_client(false).build_server(false).compile_fds(descriptors)?;
    Ok(())
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
    set.file
        .iter()
        .flat_map(|file| file.message_type.iter().map(move |message| (file.package(), message)))
        .flat_map(move |(package, message)| {
            let name = format!("{package}.{}", message.name());
            message.field.iter().filter(move |f| keep(f)).map(move |f| (name.clone(), f))
        })
}
