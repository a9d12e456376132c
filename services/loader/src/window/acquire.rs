//! Acquisition of windows. Windows that other streams hold are shared. Memory for the remaining windows is reserved in one
//! step.

use std::{pin::pin, sync::Arc};

use forebay_cache::{Budget, Reservation, SourceId, Tenant};
use futures::{future::maybe_done, poll};
use tokio_util::task::AbortOnDropHandle;

use super::{
    held::HeldWindow,
    wanted::WantedWindow,
    window_set::HeldSet,
    windows::{Windows, frame_key, too_large},
};
use crate::{
    Error, Frame,
    request::{admission::with_margin, footprint::Correction},
};

/// Size of a window.
#[derive(Clone, Copy)]
struct Size {
    /// Bytes to reserve.
    bytes: u64,
    /// Correction of the estimates in `bytes`.
    correction: Correction,
}

impl Windows {
    /// Returns the windows of a set if those that no stream holds need not wait for memory. They may still be loading.
    pub(crate) fn try_acquire(self: &Arc<Self>, wanted: &[WantedWindow]) -> Option<Vec<Arc<HeldWindow>>> {
        let budget = self.budget(wanted);
        let held = self.usable(wanted);
        let missing: Vec<_> =
            wanted.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(window, _)| window).collect();
        if !missing.is_empty() {
            // If the estimates do not fit, the actual sizes would hardly ever fit, and they take longer to compute.
            let estimated_bytes = estimated_bytes(&missing);
            let bytes = capped(estimated_bytes, estimated_bytes, budget.available_bytes());
            if !budget.has_room(bytes, &sources(&missing)) {
                return None;
            }
        }
        drop(held);
        self.hold(wanted, &self.sizes(wanted), |missing, bytes| budget.try_reserve(bytes, &sources(missing)))
    }

    /// Returns the windows of a set as soon as there is memory for all of them, or other streams hold all of them.
    /// The windows may still be loading.
    ///
    /// Joins the queue for memory, and then drops `before`, the windows of the caller. If it dropped them first, another tenant could
    /// receive that memory. The caller must not hold another window; otherwise two callers can deadlock.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the windows can never fit.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wanted: &[WantedWindow],
        before: Option<HeldSet>,
    ) -> Result<Vec<Arc<HeldWindow>>, Error> {
        let (sizes, all) = (self.sizes(wanted), wanted.iter().collect::<Vec<_>>());
        if let Some(held) = self.hold(wanted, &sizes, |_, _| None) {
            return Ok(held);
        }
        let (bytes, sources) = (self.bytes_to_reserve(&all, &sizes), sources(&all));
        let budget = self.budget(wanted);
        let mut reserving = pin!(maybe_done(budget.reserve(bytes, &sources)));
        // Joins the queue.
        _ = poll!(&mut reserving);
        drop(before);
        loop {
            let mut registered = pin!(self.held.registered());
            registered.as_mut().enable();
            if let Some(held) = self.hold(wanted, &sizes, |_, _| None) {
                return Ok(held);
            }
            tokio::select! {
                biased;
                () = &mut reserving => {
                    let reserved = reserving.as_mut().take_output().expect("it has just ended");
                    let mut reserved =
                        reserved.map_err(|error| too_large(error.bytes, error.available_bytes))?;
                    let reserve = |_: &[&WantedWindow], bytes: u64| reserved.split(bytes.min(reserved.bytes()));
                    let held = self.hold(wanted, &sizes, reserve);
                    return held.ok_or_else(|| Error::Internal("a reservation was too small".into()));
                }
                () = registered => {}
            }
        }
    }

    /// Memory for `wanted`, as the tenant of their job.
    fn budget(&self, wanted: &[WantedWindow]) -> Budget {
        let tenant = wanted.first().map_or(Tenant::SERVER, |window| window.job.decode_flow.tenant());
        self.frames.budget().of_tenant(tenant)
    }

    /// Returns all wanted windows. Those that a stream holds are shared. For the others, calls `reserve` with these windows and
    /// their total bytes, registers them with that memory, and starts to load them. Returns `None` if `reserve` does.
    fn hold(
        self: &Arc<Self>,
        wanted: &[WantedWindow],
        sizes: &[Size],
        reserve: impl FnOnce(&[&WantedWindow], u64) -> Option<Reservation>,
    ) -> Option<Vec<Arc<HeldWindow>>> {
        // These are declared before `registry`, so they are dropped after it is unlocked.
        let (mut found, mut windows) = (Vec::new(), Vec::new());
        let mut new = Vec::new();
        let mut registry = self.held.lock();
        found.extend(wanted.iter().map(|window| registry.get(&window.key())));
        // Whether a window has failed is checked only once, because a load can fail while this function runs.
        let usable: Vec<_> =
            found.iter().map(|held| held.as_ref().filter(|held| !held.has_failed())).collect();
        let missing = wanted.iter().zip(sizes).zip(&usable).filter(|(_, held)| held.is_none());
        let (missing, missing_sizes): (Vec<_>, Vec<_>) =
            missing.map(|((window, size), _)| (window, *size)).unzip();
        let bytes = self.bytes_to_reserve(&missing, &missing_sizes);
        let mut rest = if missing.is_empty() { None } else { Some(reserve(&missing, bytes)?) };
        let has_all_memory = bytes >= self.frames.budget().available_bytes();
        let mut left = missing.len();
        for ((window, size), held) in wanted.iter().zip(sizes).zip(&usable) {
            if let Some(held) = held {
                windows.push(Arc::clone(held));
                continue;
            }
            left -= 1;
            let share = match rest.as_mut() {
                Some(rest) if left > 0 => {
                    rest.split(self.bytes_to_reserve(&[window], &[*size]).min(rest.bytes()))
                }
                _ => rest.take(),
            };
            let (held, reporter) = HeldWindow::new(&self.held, window.key(), window.no_blocks());
            registry.insert(&held);
            windows.push(Arc::clone(&held));
            let mut share = share?;
            share.load_only_from(window.job.reader().source_id());
            new.push((window, held, (share, size.correction), reporter));
        }
        drop(registry);
        if !new.is_empty() {
            self.held.notify();
        }
        // Frames that are in memory are held before any load can evict them.
        let cached: Vec<Vec<_>> = new.iter().map(|(window, ..)| self.cached_frames(window)).collect();
        for ((window, held, share, reporter), cached) in new.into_iter().zip(cached) {
            let (windows, window) = (Arc::clone(self), window.clone());
            let load = async move {
                let observe = |event| reporter.note(event);
                let loaded = windows.load(&window, cached, share, has_all_memory, observe).await;
                reporter.end(loaded);
            };
            held.load_with(AbortOnDropHandle::new(tokio::spawn(load)));
        }
        Some(windows)
    }

    /// Frames of the blocks of a window, as far as they are in memory.
    fn cached_frames(&self, window: &WantedWindow) -> Vec<Option<Arc<Frame>>> {
        window.blocks.iter().map(|block| self.frames.get(&frame_key(&window.job, *block))).collect()
    }

    /// Returns the windows of `wanted` that a stream holds, and that have not failed.
    fn usable(&self, wanted: &[WantedWindow]) -> Vec<Option<Arc<HeldWindow>>> {
        let registry = self.held.lock();
        let held: Vec<_> = wanted.iter().map(|window| registry.get(&window.key())).collect();
        drop(registry);
        held.into_iter().map(|held| held.filter(|held| !held.has_failed())).collect()
    }

    /// Bytes of each of the windows. A window can have many blocks, so the registry must not be locked during the call.
    fn sizes(&self, wanted: &[WantedWindow]) -> Vec<Size> {
        let size = |WantedWindow { job, blocks, .. }: &WantedWindow| {
            let correction = job.footprint.correction();
            Size { bytes: self.bytes_to_load(job, blocks, correction), correction }
        };
        wanted.iter().map(size).collect()
    }

    /// Bytes to reserve for windows of the given sizes. A set can exceed the memory although it was admitted, by estimates and
    /// for some epochs only. The reservation is therefore capped, so that it can be granted.
    fn bytes_to_reserve(&self, windows: &[&WantedWindow], sizes: &[Size]) -> u64 {
        let bytes = sizes.iter().map(|size| size.bytes).fold(0, u64::saturating_add);
        capped(bytes, estimated_bytes(windows), self.frames.budget().available_bytes())
    }
}

/// Ids of the sources from which `windows` are loaded, without duplicates.
fn sources(windows: &[&WantedWindow]) -> Vec<SourceId> {
    let mut sources: Vec<_> = windows.iter().map(|window| window.job.reader().source_id()).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

/// Estimated size of the frames of `windows`, in bytes.
fn estimated_bytes(windows: &[&WantedWindow]) -> u64 {
    windows.iter().map(|window| window.estimated_bytes).fold(0, u64::saturating_add)
}

/// If the estimate is at most 9/8 of `available_bytes`, returns the smaller of `bytes` and `available_bytes`. Otherwise
/// returns the estimate, which does not fit, so that the reservation fails.
fn capped(bytes: u64, estimated_bytes: u64, available_bytes: u64) -> u64 {
    if estimated_bytes <= with_margin(available_bytes) { bytes.min(available_bytes) } else { estimated_bytes }
}
