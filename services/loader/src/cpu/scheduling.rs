//! How threads stand with all others that want a processor.

use std::{io, thread};

use serde::{Deserialize, Serialize};

use super::share::Share;

/// How the threads of a [`Pool`](super::Pool) stand with all other threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// As equals.
    #[default]
    Normal,
    /// They run while no other thread of their control group (a container's; without one, the machine's) wants the
    /// processor: Linux's `SCHED_IDLE`. A thread that wakes up, to send or to receive, then takes a processor from one
    /// of them; else the kernel often puts it behind the thread that woke it. Should others leave one of them less than a tenth
    /// of a second in which it wants to run, normal ones stand in: for a minute the first time, twice as long each time that it
    /// happens again within the time that the last one took, for an hour at most.
    Idle,
}

impl Scheduling {
    /// [`Idle`](Self::Idle) where there is such a thing, and else [`Normal`](Self::Normal): not every operating system
    /// or sandbox has it.
    pub fn best() -> Self {
        let can_idle = thread::Builder::new().spawn(|| Self::Idle.apply().is_ok());
        match can_idle.map(thread::JoinHandle::join) {
            Ok(Ok(true)) => Self::Idle,
            _ => Self::Normal,
        }
    }

    /// Has the current thread stand so; what tells how an idle one fares.
    pub(super) fn apply(self) -> Result<Option<Share>, io::Error> {
        match self {
            Self::Normal => Ok(None),
            Self::Idle => {
                let share = Share::of_this_thread()?;
                idle()?;
                Ok(Some(share))
            }
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
    // It goes on to reset the nice value, which an ordinary user may not lower.
    match set {
        Err(error) if thread_schedule_policy() != Ok(policy) => Err(io::Error::other(error)),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn idle() -> Result<(), io::Error> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "only Linux has idle threads"))
}
