//! Notices of the client, which become warnings of Python's logger `forebay`.

use std::collections::VecDeque;

use forebay_client::Waiting;
use parking_lot::Mutex;
use pyo3::prelude::*;

/// Maximum number of notices that wait for a thread with the GIL. Later ones are dropped.
const MAX_NOTICES: usize = 64;

/// Notices that are not logged yet. The threads of the client do not wait for the GIL: the threads that wait for an answer log them.
/// Never locked while the GIL is released or another lock is held.
static NOTICES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Adds a notice.
pub(crate) fn add(waiting: &Waiting) {
    let mut notices = NOTICES.lock();
    if notices.len() < MAX_NOTICES {
        notices.push_back(waiting.to_string());
    }
}

/// Returns true if there are notices to log.
pub(crate) fn are_pending() -> bool {
    !NOTICES.lock().is_empty()
}

/// Logs the notices.
///
/// # Errors
/// The exception of a handler of the logger.
pub(crate) fn log(py: Python<'_>) -> PyResult<()> {
    let notices = std::mem::take(&mut *NOTICES.lock());
    if notices.is_empty() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("forebay",))?;
    for notice in notices {
        logger.call_method1("warning", ("%s", notice))?;
    }
    Ok(())
}
