//! Fuzz target of the property `sql`.

#![no_main]

#[path = "../properties/process.rs"]
mod process;
#[path = "../properties/sql.rs"]
mod sql;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| sql::check(data));
