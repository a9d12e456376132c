//! How threads stand with all others that want a processor.

use serde::{Deserialize, Serialize};

/// How the threads of a [`Pool`](super::Pool) stand with all other threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// As equals.
    #[default]
    Normal,
    /// They run while no other thread of their control group (a container's; without one, the machine's) wants the
    /// processor: Linux's `SCHED_IDLE`. A thread that wakes up, to send or to receive, then takes a processor from one
    /// of them; else the kernel often puts it behind the thread that woke it.
    Idle,
}

impl Scheduling {
    /// Has the current thread stand so.
    #[cfg(target_os = "linux")]
    pub(super) fn apply(self) -> Result<(), std::io::Error> {
        use thread_priority::{
            NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
            thread_native_id, thread_schedule_policy,
        };
        if self == Self::Normal {
            return Ok(());
        }
        let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
        // It goes on to reset the nice value, which an ordinary user may not lower.
        match set {
            Err(error) if thread_schedule_policy() != Ok(policy) => Err(std::io::Error::other(error)),
            _ => Ok(()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn apply(self) -> Result<(), std::io::Error> {
        if self == Self::Normal {
            return Ok(());
        }
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "only Linux has idle threads"))
    }
}
