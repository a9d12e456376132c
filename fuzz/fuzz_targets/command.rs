//! Fuzz target of the property `command`.

#![no_main]

#[path = "../properties/command.rs"]
mod command;
#[path = "../properties/process.rs"]
mod process;

libfuzzer_sys::fuzz_target!(init: process::prepare(), |data: &[u8]| command::check(data));
