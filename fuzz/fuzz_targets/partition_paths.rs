//! Fuzz target of the property `partition_paths`.

#![no_main]

#[path = "../properties/partition_paths.rs"]
mod partition_paths;
#[path = "../properties/process.rs"]
mod process;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| partition_paths::check(data));
