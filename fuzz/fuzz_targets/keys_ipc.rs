//! Fuzz target of the property `keys_ipc`.

#![no_main]

#[path = "../properties/keys_ipc.rs"]
mod keys_ipc;
#[path = "../properties/process.rs"]
mod process;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| keys_ipc::check(data));
