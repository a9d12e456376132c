//! Forebay's protocol: the messages of `forebay/v1/*.proto` and their JSON form.
//!
//! - [`v1`]: the generated messages. No logic lives here beyond reading and writing them.
//! - [`Encoding`]: a command arrives as protobuf or as JSON (first byte `{`) and is answered in kind.
//! - [`DESCRIPTORS`], [`FLIGHT_DESCRIPTORS`]: compiled descriptor sets, for gRPC reflection.
//!
//! Unknown fields are refused by name in both forms: a request that asks for something this server
//! does not know is an error, never silently something else.

mod decode;
mod json;

/// The generated messages of package `forebay.v1`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/forebay.v1.rs"));
}

pub use decode::{DecodeError, Encoding};

/// The encoded `FileDescriptorSet` of this package.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forebay.fds"));

/// The encoded `FileDescriptorSet` of Arrow Flight, whose service carries these messages.
pub const FLIGHT_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flight.fds"));
