//! Logging of panics in the format of the log.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
};

use forebay_cache::is_panic_expected;

/// Installs a hook that logs the panics of this process, except those of decoders on malformed input. Call once.
pub(super) fn log_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if is_panic_expected() {
            return;
        }
        // The log of another thread, or its level, may leave errors out.
        if tracing::enabled!(tracing::Level::ERROR) { log(info) } else { before(info) }
    }));
}

fn log(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    let location = info.location().map(ToString::to_string);
    let thread = std::thread::current();
    // With RUST_BACKTRACE.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(panic = text, location, thread = thread.name(), backtrace, "a thread panicked");
}

#[cfg(test)]
mod tests {
    use std::{fs::File, panic::catch_unwind, sync::Arc};

    use forebay_cache::catch_expected_panic;

    use super::*;

    #[test]
    fn a_panic_is_logged_once_in_the_format_of_the_log_unless_it_is_of_a_decoder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let file = Arc::new(File::create(&path).unwrap());
        let subscriber = tracing_subscriber::fmt().json().with_writer(file).finish();
        // Panics of other threads, which have no log here, are left to the earlier hook.
        log_panics();
        tracing::subscriber::with_default(subscriber, || {
            catch_expected_panic(|| panic!("malformed")).unwrap_err();
            catch_unwind(|| panic!("defect {}", 7)).unwrap_err();
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [line] = &lines[..] else { panic!("{text}") };
        assert_eq!((&line["level"], &line["fields"]["panic"]), (&"ERROR".into(), &"defect 7".into()));
        let location = line["fields"]["location"].as_str().unwrap();
        assert!(location.contains("panics.rs:"), "{location}");
    }
}
