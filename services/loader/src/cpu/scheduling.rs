//! Scheduling class of the CPU threads.

use std::io;

use serde::{Deserialize, Serialize};

/// Scheduling class of the threads of a [`Pool`](crate::Pool).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// The default class of the operating system.
    #[default]
    Normal,
    /// Linux's `SCHED_IDLE`: a thread runs only while no other thread of its control group, or of the machine without
    /// one, requires the CPU. For a server that shares a host with its trainers. Other programs that keep all CPUs busy
    /// can starve it.
    Idle,
}

impl Scheduling {
    /// Sets the scheduling class of the current thread.
    ///
    /// # Errors
    /// An error if the operating system or a sandbox does not support the class.
    pub(super) fn apply(self) -> Result<(), io::Error> {
        match self {
            Self::Normal => Ok(()),
            Self::Idle => idle(),
        }
    }
}

#[cfg(target_os = "linux")]
fn idle() -> Result<(), io::Error> {
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id, thread_schedule_policy,
    };
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    // After setting the policy, the call resets the nice value, which an unprivileged user may not lower. Only the
    // policy matters.
    match set {
        Err(error) if thread_schedule_policy() != Ok(policy) => Err(io::Error::other(error)),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn idle() -> Result<(), io::Error> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "SCHED_IDLE requires Linux"))
}
