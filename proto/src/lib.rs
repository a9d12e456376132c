//! Forebay's protocol: the messages of `forebay/v1/*.proto` and their JSON form.
//!
//! - [`v1`]: the generated messages.
//! - [`Encoding`]: encodes and decodes messages as protobuf or JSON. JSON starts with `{`, and metadata uses the encoding of the
//!   request.
//! - [`v1::online_server`]: the trait of the service `Online`. Its requests are decoded as strictly as those of [`Encoding`].
//! - [`inference`]: the messages and the service of the Open Inference Protocol.
//! - [`DESCRIPTORS`], [`INFERENCE_DESCRIPTORS`], [`FLIGHT_DESCRIPTORS`]: compiled descriptor sets, for gRPC reflection.
//!
//! Unknown fields are errors in both encodings, so that a server never ignores a part of a request. Earlier names of fields, as
//! stored in tickets, states and job records, are accepted in JSON.

/// Names of the actions of the Flight method `DoAction`.
pub const ACTIONS: [&str; 10] =
    ["refresh", "warm", "count-rows", "pin", "unpin", "drop-cache", "pin-lookups", "report", "open", "hello"];

mod bounded;
mod code;
mod decode;
mod json;
mod lookup;

/// The generated messages of package `forebay.v1`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/forebay.v1.rs"));
}

/// The generated messages and the service of package `inference`, the Open Inference Protocol.
#[allow(missing_docs, clippy::all)]
pub mod inference {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

impl From<v1::Train> for v1::Command {
    fn from(train: v1::Train) -> Self {
        Self { train: Some(train), ..Self::default() }
    }
}

pub use code::{CODE_NAMES, code_name, code_of};
pub use decode::{DecodeError, Encoding};

/// Arrow metadata key of a delivered list field whose list of the first row holds values of the whole batch. The value is
/// [`RAGGED`] or [`DISTINCT`].
pub const LAYOUT: &str = "forebay.layout";
/// [`LAYOUT`] of the items of a ragged tensor, and of their lengths.
pub const RAGGED: &str = "ragged";
/// [`LAYOUT`] of the distinct rows of a tensor. The column `<name>_index` holds the index of the distinct row for each row.
pub const DISTINCT: &str = "distinct";

/// The encoded `FileDescriptorSet` of this package.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forebay.fds"));

/// The encoded `FileDescriptorSet` of the Open Inference Protocol.
pub const INFERENCE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inference.fds"));

/// The encoded `FileDescriptorSet` of Arrow Flight, whose service carries these messages.
pub const FLIGHT_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flight.fds"));
