//! Fuzz target of the property `parquet`.

#![no_main]

#[path = "../properties/parquet.rs"]
mod parquet;
#[path = "../properties/process.rs"]
mod process;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| parquet::check(data));
