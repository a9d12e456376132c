use tempfile::TempDir;

use super::*;

const GIB: u64 = 1 << 30;
/// "No limit" in version 1, with pages of 4 KiB.
const NO_LIMIT: &str = "9223372036854771712";

/// A machine with 64 GiB of memory and these files.
fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let memory = ("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1024 kB\n");
    for (path, text) in files.iter().copied().chain([memory]) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn memory(files: &[(&str, &str)]) -> u64 {
    memory_bytes(machine(files).path())
}

#[test]
fn without_a_limit_all_memory_of_the_machine_counts() {
    assert_eq!(memory(&[]), 64 * GIB);
    let unlimited = [
        ("proc/self/cgroup", "0::/system.slice/forebay.service\n"),
        ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
        ("sys/fs/cgroup/system.slice/memory.high", "max\n"),
        ("sys/fs/cgroup/system.slice/forebay.service/memory.max", "max\n"),
        ("sys/fs/cgroup/system.slice/forebay.service/memory.high", "max\n"),
    ];
    assert_eq!(memory(&unlimited), 64 * GIB);
}

#[test]
fn a_limit_above_the_memory_of_the_machine_has_no_effect() {
    let files = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "109951162777600\n")];
    assert_eq!(memory(&files), 64 * GIB);
}

#[test]
fn an_unreadable_machine_has_four_gibibytes() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(memory_bytes(root.path()), 4 * GIB);
}

#[test]
fn the_limit_of_the_own_group_counts() {
    let files = [
        ("proc/self/cgroup", "0::/system.slice/forebay.service\n"),
        ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
        ("sys/fs/cgroup/system.slice/forebay.service/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/system.slice/other.service/memory.max", "1\n"),
    ];
    assert_eq!(memory(&files), 8 * GIB);
}

#[test]
fn the_smallest_limit_of_all_groups_above_counts() {
    let files = [
        ("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"),
        ("sys/fs/cgroup/system.slice/memory.max", "34359738368\n"),
        ("sys/fs/cgroup/system.slice/slurmstepd.scope/job_5/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/system.slice/slurmstepd.scope/job_5/step_0/memory.max", "17179869184\n"),
        ("sys/fs/cgroup/system.slice/slurmstepd.scope/job_5/step_0/user/task_0/memory.max", "max\n"),
    ];
    assert_eq!(memory(&files), 8 * GIB);
}

#[test]
fn memory_high_below_memory_max_counts() {
    let files = [
        ("proc/self/cgroup", "0::/user.slice/forebay.service\n"),
        ("sys/fs/cgroup/user.slice/forebay.service/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/user.slice/forebay.service/memory.high", "6442450944\n"),
    ];
    assert_eq!(memory(&files), 6 * GIB);
}

#[test]
fn version_one_is_read_at_every_level_and_its_page_rounded_maximum_is_no_limit() {
    let groups = "9:cpu,cpuacct:/slurm\n8:memory:/slurm/uid_1000/job_5\n1:name=systemd:/slurm\n";
    let own = "sys/fs/cgroup/memory/slurm/uid_1000/job_5/memory.limit_in_bytes";
    let parent = "sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes";
    let top = "sys/fs/cgroup/memory/memory.limit_in_bytes";
    let files = |own_limit, parent_limit| {
        [("proc/self/cgroup", groups), (own, own_limit), (parent, parent_limit), (top, NO_LIMIT)]
    };
    assert_eq!(memory(&files("8589934592\n", NO_LIMIT)), 8 * GIB);
    assert_eq!(memory(&files(NO_LIMIT, "6442450944\n")), 6 * GIB);
    assert_eq!(memory(&files(NO_LIMIT, NO_LIMIT)), 64 * GIB);
    // A machine whose own memory is unknown is not assumed to have 8 EiB.
    let root = machine(&files("18446744073709551615\n", NO_LIMIT));
    fs::remove_file(root.path().join("proc/meminfo")).unwrap();
    assert_eq!(memory_bytes(root.path()), 4 * GIB);
}

#[test]
fn version_one_is_read_on_a_hybrid_machine_that_mounts_both_versions() {
    let groups = "5:hugetlb,memory:/system.slice/forebay.service\n0::/system.slice/forebay.service\n";
    let files = [
        ("proc/self/cgroup", groups),
        ("sys/fs/cgroup/unified/system.slice/forebay.service/cgroup.procs", "1\n"),
        ("sys/fs/cgroup/memory/system.slice/forebay.service/memory.limit_in_bytes", "8589934592\n"),
    ];
    assert_eq!(memory(&files), 8 * GIB);
    let files = [
        ("proc/self/cgroup", "0::/system.slice/forebay.service\n"),
        ("sys/fs/cgroup/unified/system.slice/memory.max", "6442450944\n"),
    ];
    assert_eq!(memory(&files), 6 * GIB);
}

#[test]
fn in_a_container_that_does_not_see_its_own_path_the_root_of_the_mount_counts() {
    for path in ["/docker/0123abcd", "/", "/../../kubepods/pod1"] {
        let groups = format!("0::{path}\n");
        let files = [("proc/self/cgroup", groups.as_str()), ("sys/fs/cgroup/memory.max", "8589934592\n")];
        assert_eq!(memory(&files), 8 * GIB, "version 2, {path}");
        let groups = format!("4:memory:{path}\n");
        let limit = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "6442450944\n");
        assert_eq!(memory(&[("proc/self/cgroup", groups.as_str()), limit]), 6 * GIB, "version 1, {path}");
    }
    assert_eq!(memory(&[("sys/fs/cgroup/memory.max", "8589934592\n")]), 8 * GIB, "without /proc/self/cgroup");
}

#[test]
fn a_group_outside_of_the_namespace_is_not_searched_outside_of_the_mount() {
    let files = [("proc/self/cgroup", "0::/../secret\n"), ("sys/fs/secret/memory.max", "1\n")];
    assert_eq!(memory(&files), 64 * GIB);
}
