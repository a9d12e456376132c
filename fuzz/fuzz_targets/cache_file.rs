//! Fuzz target of the property `cache_file`.

#![no_main]

#[path = "../properties/cache_file.rs"]
mod cache_file;
#[path = "../properties/process.rs"]
mod process;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| cache_file::check(data));
