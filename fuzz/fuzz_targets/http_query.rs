//! Fuzz target of the property `http_query`.

#![no_main]

#[path = "../properties/http_query.rs"]
mod http_query;
#[path = "../properties/process.rs"]
mod process;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| http_query::check(data));
