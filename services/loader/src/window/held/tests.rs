use forebay_cache::Budget;
use futures::FutureExt;

use super::*;
use crate::window::window_set::HeldSet;

fn key(window: usize) -> WindowKey {
    WindowKey { order: 1, view: 2, id: WindowId { partition: 0, epoch: 0, window } }
}

/// A loaded window without rows.
fn empty() -> Window {
    let reservation = Budget::new(1).try_reserve(0, &[]).expect("no bytes always fit");
    Window::new(&[], Vec::new(), reservation)
}

fn set(windows: Vec<Arc<HeldWindow>>) -> HeldSet {
    let ids = windows.iter().map(|window| (0, window.key.id)).collect();
    HeldSet { ids, windows, new_bytes: 0 }
}

#[test]
fn a_load_that_ended_without_a_window_has_failed_and_is_not_ready() {
    let registry = Arc::<Registry>::default();
    let (loaded, reporter) = HeldWindow::new(&registry, key(0), LoadedBlocks::default());
    let (panicked, of_panic) = HeldWindow::new(&registry, key(1), LoadedBlocks::default());
    assert!(!loaded.is_loaded() && !loaded.has_failed() && !loaded.all_started());
    reporter.end(Ok(empty()));
    assert!(loaded.is_loaded() && !loaded.has_failed() && loaded.all_started());
    assert!(set(vec![Arc::clone(&loaded)]).is_loaded());

    // As by a panic of the task, which returns nothing.
    drop(of_panic);
    assert!(!panicked.is_loaded() && panicked.has_failed());
    assert!(panicked.all_started(), "no stream waits for its blocks");
    let Some(Err(LoadError::Failed(error))) = panicked.wait().now_or_never() else {
        panic!("it waits, or has a window")
    };
    assert!(error.to_string().contains("ended without a result"), "{error}");
    assert!(!set(vec![Arc::clone(&loaded), panicked]).is_loaded(), "one of two has no window");

    let (failed, of_failed) = HeldWindow::new(&registry, key(2), LoadedBlocks::default());
    of_failed.end(Err(Error::Internal("no such file".into()).into()));
    assert!(!failed.is_loaded() && failed.has_failed());
    assert!(!set(vec![loaded, failed]).is_loaded());
}
