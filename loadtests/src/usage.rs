//! CPU time and memory of a process and its children, from `/proc`.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Linux reports CPU time in hundredths of a second, independently of its own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resources that a tree of processes has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// User and system time in seconds.
    pub(crate) cpu_seconds: f64,
    /// Peak resident memory in bytes, summed over the processes. Shared memory counts once per process.
    pub(crate) peak_rss_bytes: u64,
}

impl Usage {
    /// Reads the usage of the process `pid` and all its descendants.
    pub(crate) fn of_tree(pid: u32) -> anyhow::Result<Self> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Some(stat) = Stat::of(child) {
                children.entry(stat.parent).or_default().push(child);
            }
        }
        let mut usage = Self::of(pid).with_context(|| format!("process {pid} does not exist"))?;
        let mut open = children.remove(&pid).unwrap_or_default();
        while let Some(next) = open.pop() {
            let used = Self::of(next).unwrap_or_default();
            usage.cpu_seconds += used.cpu_seconds;
            usage.peak_rss_bytes += used.peak_rss_bytes;
            open.extend(children.remove(&next).unwrap_or_default());
        }
        Ok(usage)
    }

    /// Reads the usage of this process.
    pub(crate) fn own() -> anyhow::Result<Self> {
        Self::of(std::process::id()).context("/proc has no entry for this process")
    }

    fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let peak_rss_bytes = Threads::of(pid).status("VmHWM:").ok()?;
        Some(Self { cpu_seconds: stat.ticks as f64 / TICKS_PER_SECOND, peak_rss_bytes })
    }
}

/// Memory of one process at a time, and CPU time of its threads.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    folder: PathBuf,
}

impl Threads {
    /// Returns the memory and the threads of the process `pid`.
    pub(crate) fn of(pid: u32) -> Self {
        Self { folder: Path::new("/proc").join(pid.to_string()) }
    }

    /// Makes [`peak_bytes`](Self::peak_bytes) count from now on.
    pub(crate) fn reset_peak(&self) -> anyhow::Result<()> {
        // The value that resets the peak, see proc_pid_clear_refs(5).
        fs::write(self.folder.join("clear_refs"), "5").context("can't reset the peak of the memory")
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        self.status("VmRSS:")
    }

    /// Peak of the resident memory in bytes.
    pub(crate) fn peak_bytes(&self) -> anyhow::Result<u64> {
        self.status("VmHWM:")
    }

    /// CPU time of each thread whose name begins with one of `names`, in seconds, by its id.
    pub(crate) fn cpu_seconds(&self, names: &[&str]) -> anyhow::Result<HashMap<u32, f64>> {
        let mut seconds = HashMap::new();
        for thread in fs::read_dir(self.folder.join("task"))? {
            let thread = thread?;
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            // A thread can end in the meantime.
            let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
            let nanoseconds =
                read("schedstat").split_whitespace().next().and_then(|time| time.parse::<u64>().ok());
            if let (Some(id), Some(nanoseconds)) = (id, nanoseconds)
                && names.iter().any(|name| read("comm").starts_with(name))
            {
                seconds.insert(id, nanoseconds as f64 / 1e9);
            }
        }
        Ok(seconds)
    }

    /// A size of the status of the process, in bytes.
    fn status(&self, name: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(self.folder.join("status"))?;
        let size = status.lines().find_map(|line| line.strip_prefix(name));
        let kib: Option<u64> = size.and_then(|size| size.trim().trim_end_matches(" kB").parse().ok());
        Ok(kib.with_context(|| format!("the status of the process has no {name}"))? << 10)
    }
}

struct Stat {
    parent: u32,
    /// User and system time in ticks, including children that have exited and were waited for.
    ticks: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?)
    }

    /// Parses proc_pid_stat(5). The name is in parentheses and may contain any character.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = ticks(11)? + ticks(12)? + ticks(13)? + ticks(14)?;
        Some(Self { parent: fields.get(1)?.parse().ok()?, ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_contain_any_character() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 500 25 9 1 20 0 1 0 100";
        let stat = Stat::parse(line).expect("well formed");
        assert_eq!((stat.parent, stat.ticks), (7, 535));
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(Usage::own().expect("own").peak_rss_bytes > 1 << 20);
    }

    #[test]
    fn the_peak_of_the_memory_counts_from_its_reset_on() {
        let own = Threads::of(std::process::id());
        let before = own.resident_bytes().expect("own");
        assert!(own.peak_bytes().expect("own") >= before);
        own.reset_peak().expect("own");
        // Other tests may take memory in the meantime.
        assert!(own.peak_bytes().expect("own") < before + (256 << 20));
    }
}
