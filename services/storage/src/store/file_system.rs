//! Bound on the concurrent calls to one local file system.
//!
//! A file system that hangs keeps each thread that calls it. All locations on it share one bound, so that the number of these threads
//! does not grow with the number of datasets, and threads remain for other file systems.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Table of the mounted file systems. Unlike a call to a file system, reading it never hangs.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Permits of file systems by device and number of permits.
type Permits = HashMap<(u64, usize), Weak<Semaphore>>;

/// Permits of the file systems that are in use.
static IN_USE: LazyLock<Mutex<Permits>> = LazyLock::new(Mutex::default);

/// Permits of the calls to one file system. Clones and other instances of the same device share them.
#[derive(Clone, Debug)]
pub(crate) struct FileSystem {
    calls: Arc<Semaphore>,
}

impl FileSystem {
    /// Creates the file system with device number `device` (`st_dev`), to which at most `max_calls` calls run at a time.
    pub(crate) fn of_device(device: u64, max_calls: usize) -> Self {
        let max_calls = max_calls.clamp(1, Semaphore::MAX_PERMITS);
        let mut in_use = IN_USE.lock();
        if let Some(calls) = in_use.get(&(device, max_calls)).and_then(Weak::upgrade) {
            return Self { calls };
        }
        in_use.retain(|_, calls| calls.strong_count() > 0);
        let calls = Arc::new(Semaphore::new(max_calls));
        in_use.insert((device, max_calls), Arc::downgrade(&calls));
        Self { calls }
    }

    /// Number of further calls that may run.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.calls.available_permits()
    }

    /// Waits until a further call may run. The permit must be held until the call ends.
    pub(crate) async fn permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.calls).acquire_owned().await.expect("the semaphore is never closed")
    }
}

/// The mounted file systems: mount points and device numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    mounts: Vec<(PathBuf, u64)>,
}

impl Mounts {
    /// Reads the table of the kernel. It is empty on systems without one.
    pub(crate) fn read() -> Self {
        std::fs::read(MOUNTS).map(|table| Self::parse(&table)).unwrap_or_default()
    }

    /// Parses a table in the form of `/proc/PID/mountinfo`, described in proc(5). Other lines are ignored.
    fn parse(table: &[u8]) -> Self {
        Self { mounts: table.split(|byte| *byte == b'\n').filter_map(mount).collect() }
    }

    /// Device number of the file system at an absolute path, or 0 without a table. Symbolic links are not followed, because that would
    /// call the file system.
    pub(crate) fn device(&self, path: &Path) -> u64 {
        let above = self.mounts.iter().filter(|(point, _)| path.starts_with(point));
        // Of two file systems with the same mount point, the last one is visible.
        above.max_by_key(|(point, _)| point.as_os_str().len()).map_or(0, |(_, device)| *device)
    }
}

/// Returns mount point and device number of a line.
fn mount(line: &[u8]) -> Option<(PathBuf, u64)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let point = unescaped(fields.nth(1)?);
    Some((PathBuf::from(OsString::from_vec(point)), device_number(major.parse().ok()?, minor.parse().ok()?)))
}

/// Replaces the octal escapes, such as `\040` for a space.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// Device number in the form of `st_dev` on Linux.
fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn the_nearest_mount_above_a_path_determines_its_device() {
        let mounts = Mounts::parse(
            b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
              30 27 0:25 / /mnt/data rw shared:1 - nfs4 host:/export rw\n\
              31 27 0:27 / /mnt/data/my\\040disk rw - fuse - rw\n\
              32 27 0:26 / /mnt/data rw shared:1 - nfs4 other:/export rw\n\
              not a mount\n",
        );
        let device = |path: &str| mounts.device(Path::new(path));
        assert_eq!(device("/mnt/database"), device_number(254, 0));
        assert_eq!(device("/mnt/data"), device_number(0, 26));
        assert_eq!(device("/mnt/data/a/b"), device_number(0, 26));
        assert_eq!(device("/mnt/data/my disk/a"), device_number(0, 27));
        assert_eq!(Mounts::default().device(Path::new("/mnt")), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_device_of_a_mount_is_that_of_its_files() {
        let found = std::fs::metadata("/proc").unwrap().dev();
        assert_eq!(Mounts::read().device(Path::new("/proc/self")), found);
    }

    #[tokio::test(start_paused = true)]
    async fn locations_of_one_device_share_its_permits_and_other_devices_have_their_own() {
        let waits =
            async |system: &FileSystem| timeout(Duration::from_secs(1), system.permit()).await.is_err();
        // No real device has these numbers.
        let first = FileSystem::of_device(u64::MAX, 2);
        let second = FileSystem::of_device(u64::MAX, 2);
        let permits = (first.permit().await, second.permit().await);
        drop(first);
        assert!(waits(&second).await);
        assert!(!waits(&FileSystem::of_device(u64::MAX - 1, 2)).await);
        // A call that hangs counts even if no location remains.
        drop(second);
        assert!(waits(&FileSystem::of_device(u64::MAX, 2)).await);
        drop(permits);
        assert!(!waits(&FileSystem::of_device(u64::MAX, 2)).await);
    }
}
