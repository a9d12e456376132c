//! Object stores: locations, requests with retries, and durable state.

pub(crate) mod answers;
pub(crate) mod aws_profile;
mod credential_checks;
pub(crate) mod credentials;
pub(crate) mod documents;
pub(crate) mod envelope;
pub(crate) mod failure;
pub(crate) mod file_system;
pub(crate) mod generations;
pub(crate) mod http_client;
pub(crate) mod limiter;
pub(crate) mod local_file;
pub(crate) mod local_object;
pub(crate) mod location;
mod names;
mod observed_body;
pub(crate) mod old_counts;
mod redacting;
pub(crate) mod remote;
pub(crate) mod request;
pub(crate) mod retries;
mod secrets;
pub(crate) mod shown_url;
pub(crate) mod state;
pub(crate) mod target;
mod unescaped;
