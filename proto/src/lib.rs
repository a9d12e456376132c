//! Forebay's protocol: the messages of `forebay/v1/*.proto` and their JSON form.
//!
//! - [`v1`]: the generated messages. No logic lives here beyond reading and writing them.
//! - [`Encoding`]: a command arrives as protobuf or as JSON (first byte `{`) and is answered in kind.
//! - [`v1::online_server`]: the trait of the service `Online`, whose requests are read as strictly.
//! - [`DESCRIPTORS`], [`FLIGHT_DESCRIPTORS`]: compiled descriptor sets, for gRPC reflection.
//!
//! Unknown fields are refused by name in both forms: a request that asks for something this server
//! does not know is an error, never silently something else.

mod code;
mod decode;
mod json;
mod lookup;

/// The generated messages of package `forebay.v1`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/forebay.v1.rs"));
}

impl From<v1::Train> for v1::Command {
    fn from(train: v1::Train) -> Self {
        Self { train: Some(train), ..Self::default() }
    }
}

pub use code::{code_name, code_of};
pub use decode::{DecodeError, Encoding};

/// Arrow metadata of a delivered field whose lists are no value a row: what lies behind all of them together is [`RAGGED`] or
/// [`DISTINCT`].
pub const LAYOUT: &str = "forebay.layout";
/// [`LAYOUT`] of the items of a ragged tensor, and of their lengths.
pub const RAGGED: &str = "ragged";
/// [`LAYOUT`] of the distinct rows of a tensor; the column `<name>_index` says which of them each row has.
pub const DISTINCT: &str = "distinct";

/// The encoded `FileDescriptorSet` of this package.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forebay.fds"));

/// The encoded `FileDescriptorSet` of Arrow Flight, whose service carries these messages.
pub const FLIGHT_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flight.fds"));
