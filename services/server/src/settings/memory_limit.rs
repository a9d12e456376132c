//! Memory of the machine or container. `cache_memory` defaults to half of it.
//!
//! Control groups form a tree. A limit at any level applies to all groups below it: a container limits its own group,
//! systemd the slice of a service, Slurm the group of a job. The server therefore reads every level from its own group
//! up to the root of the mount, and the smallest limit counts.
//!
//! Sources are pages of the kernel documentation:
//!
//! - <https://docs.kernel.org/admin-guide/cgroup-v2.html>: `memory.max`, `memory.high` and `/proc/PID/cgroup`.
//! - <https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>: `memory.limit_in_bytes`.

use std::{
    fs,
    path::{Component, Path},
};

/// Memory that is assumed if neither the size of the machine nor a limit can be read.
const UNKNOWN_BYTES: u64 = 4 << 30;
/// Smallest value that means "no limit" in version 1, which reports `i64::MAX` rounded down to a page.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// Mount of a tree of control groups that can limit memory.
struct Hierarchy {
    /// Path of the mount.
    mount: &'static str,
    /// Controller that names the tree in `/proc/self/cgroup`. Empty for version 2.
    controller: &'static str,
    /// Files of a group that contain a limit in bytes.
    files: &'static [&'static str],
}

/// Memory controllers, in this order: cgroup v2, cgroup v2 in hybrid mode with v1, and cgroup v1.
const HIERARCHIES: [Hierarchy; 3] = [
    Hierarchy { mount: "sys/fs/cgroup", controller: "", files: &["memory.max", "memory.high"] },
    Hierarchy { mount: "sys/fs/cgroup/unified", controller: "", files: &["memory.max", "memory.high"] },
    Hierarchy { mount: "sys/fs/cgroup/memory", controller: "memory", files: &["memory.limit_in_bytes"] },
];

/// Returns the smaller of the machine's memory and the memory limit of this process, in bytes; 4 GiB if neither can be
/// read. `root` is the folder that contains `proc` and `sys`: `/`, except in tests.
pub(super) fn memory_bytes(root: &Path) -> u64 {
    [machine_bytes(root), limit_bytes(root)].into_iter().flatten().min().unwrap_or(UNKNOWN_BYTES)
}

/// Size of the machine's memory in bytes.
fn machine_bytes(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Smallest memory limit of the control groups of this process, in bytes; `None` without a limit.
fn limit_bytes(root: &Path) -> Option<u64> {
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = HIERARCHIES.iter().filter_map(|hierarchy| {
        let group = memberships.lines().find_map(|line| hierarchy.group(line)).unwrap_or_default();
        hierarchy.limit_bytes(&root.join(hierarchy.mount), Path::new(group))
    });
    limits.min()
}

impl Hierarchy {
    /// Returns the group that a line of `/proc/self/cgroup` names, relative to the root of the mount. `None` if the
    /// line is of another tree.
    ///
    /// A line has the form `ID:CONTROLLER,CONTROLLER:PATH`, and the form `0::PATH` for version 2.
    fn group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_own = controllers.split(',').any(|controller| controller == self.controller);
        let group = path.strip_prefix('/').filter(|_| is_own)?;
        // The path of a group outside of the namespace contains "..". Only the root of the mount is then visible.
        let is_inside = Path::new(group).components().all(|part| matches!(part, Component::Normal(_)));
        Some(if is_inside { group } else { "" })
    }

    /// Smallest limit of `group` and of all groups above it, in bytes.
    ///
    /// A container may see the path of its cgroup on the host, while the cgroups of the host are not mounted. Levels that
    /// do not exist are skipped. The last level is the root of the mount, which is the container's own group.
    fn limit_bytes(&self, mount: &Path, group: &Path) -> Option<u64> {
        let levels = group.ancestors().map(|level| mount.join(level));
        let limits =
            levels.flat_map(|level| self.files.iter().filter_map(move |file| read(&level.join(file))));
        limits.min()
    }
}

/// Reads a limit in bytes. `None` if the file does not exist or contains no limit, such as `max`.
fn read(path: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (bytes < NO_LIMIT_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests;
