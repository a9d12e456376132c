//! The cache directory: locked by one server at a time, and closed to other users of the machine.

use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use forebay_cache::private;
use parking_lot::Mutex;

use crate::{
    Settings,
    events::{Event, Events, Kind, Severity},
    printable::describe,
};

/// Name of the file that a running server locks.
const LOCK: &str = "lock";
/// Maximum wait for the lock. A server that was killed holds it until the system has released its memory.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Interval at which the lock is tried again.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Interval at which the directory is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Names that any version of the server creates in the cache directory, and `lost+found`.
const OWN_NAMES: [&str; 8] = [LOCK, "columns", "footers", "indexes", "state", "demo", "members.json", VOLUME];
/// Folder that the file system creates at the root of a volume.
const VOLUME: &str = "lost+found";

/// The cache directory, which is locked for this process.
pub(crate) struct CacheDir {
    path: PathBuf,
    /// Names of the folders in it that the server creates.
    folders: Vec<&'static str>,
    /// The locked file; `None` if another server has taken the directory, or it cannot be created again.
    lock: Mutex<Option<File>>,
}

impl CacheDir {
    /// Checks every second that the directory is still there. If another program has removed it, creates and locks it again, before
    /// another server takes it, and emits an event.
    pub(crate) async fn watch(self: Arc<Self>, events: Events) {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let this = Arc::clone(&self);
            let Ok(kept) = tokio::task::spawn_blocking(move || this.keep()).await else { continue };
            let path = self.path.display();
            match kept {
                Ok(is_new) => {
                    is_failing = false;
                    if is_new {
                        let message =
                            format!("{path} was removed while the server uses it; it was created again");
                        events.note(Event::new(Kind::CacheError, &message));
                    }
                }
                Err(error) if !is_failing => {
                    is_failing = true;
                    let message =
                        format!("{path} was removed while the server uses it: {}", describe(&error));
                    events.note(Event::new(Kind::CacheError, &message).severity(Severity::Error));
                }
                Err(_) => {}
            }
        }
    }

    /// Creates and locks the directory again if it was removed. Returns true in this case. Blocks.
    fn keep(&self) -> anyhow::Result<bool> {
        let mut held = self.lock.lock();
        if let Some(file) = &*held
            && is_at(file, &self.path.join(LOCK))?
        {
            return Ok(false);
        }
        *held = None;
        private::create_folder(&self.path)
            .with_context(|| format!("can't create {}", self.path.display()))?;
        *held = Some(lock(&self.path, Duration::ZERO)?);
        self.create_folders();
        Ok(true)
    }

    /// Creates the folders in the directory, and closes them to other users.
    fn create_folders(&self) {
        for name in &self.folders {
            let folder = self.path.join(name);
            private::create_folder(&folder).and_then(|()| private::restrict_folder(&folder)).ok();
        }
    }
}

/// True if the file with this path is `file`.
fn is_at(file: &File, path: &Path) -> anyhow::Result<bool> {
    let found = match fs::metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        found => found.with_context(|| format!("can't read {}", path.display()))?,
    };
    let held = file.metadata()?;
    Ok((held.dev(), held.ino()) == (found.dev(), found.ino()))
}

/// Creates the cache directory if it is missing, and locks it for this process until the returned value is dropped.
///
/// Other users lose access to a directory that an earlier server used, unless it also contains files of other programs. In
/// all other existing directories they lose access to the server's folders only. Permissions of another owner's directory do
/// not change.
///
/// # Errors
/// If the directory can't be created, or another server uses it.
pub(crate) fn take(settings: &Settings) -> anyhow::Result<CacheDir> {
    let cache_dir = &settings.cache_dir;
    private::create_folder(cache_dir).with_context(|| format!("can't create {}", cache_dir.display()))?;
    // An empty directory may be meant for other programs as well, such as the root of a volume.
    let was_used = OWN_NAMES.iter().any(|own| *own != VOLUME && cache_dir.join(own).exists());
    let file = lock(cache_dir, LOCK_WAIT)?;
    // Only the owner may change permissions; the owner of a mounted volume is often another user.
    if was_used && holds_own_names_only(cache_dir) {
        private::restrict_folder(cache_dir).ok();
    }
    // The disk cache creates `columns`.
    let state = settings.state.is_none().then_some("state");
    let folders = ["footers", "indexes"].into_iter().chain(state).collect();
    let taken = CacheDir { path: cache_dir.clone(), folders, lock: Mutex::new(Some(file)) };
    taken.create_folders();
    Ok(taken)
}

fn holds_own_names_only(cache_dir: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(cache_dir) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| OWN_NAMES.iter().any(|own| entry.file_name() == *own)))
}

/// Locks the directory. Waits at most `max_wait` for another server to end.
fn lock(cache_dir: &Path, max_wait: Duration) -> anyhow::Result<File> {
    let path = cache_dir.join(LOCK);
    let file = private::file_options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("can't open {}", path.display()))?;
    let deadline = Instant::now() + max_wait;
    let mut outcome = file.try_lock();
    if matches!(outcome, Err(TryLockError::WouldBlock)) && !max_wait.is_zero() {
        tracing::warn!(
            folder = %cache_dir.display(),
            max_wait = ?max_wait,
            "waiting for the server that uses the cache directory to end"
        );
    }
    while matches!(outcome, Err(TryLockError::WouldBlock)) && Instant::now() < deadline {
        std::thread::sleep(LOCK_POLL);
        outcome = file.try_lock();
    }
    match outcome {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "the cache directory {} is used by another server; set a different --cache-dir",
                cache_dir.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("can't lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use rustix::fs::Mode;
    use tempfile::TempDir;

    use super::*;

    /// Sets the usual umask, with which other users can read new files, and returns settings of a directory.
    fn fixture() -> (TempDir, Settings) {
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let directory = tempfile::tempdir().unwrap();
        let cache_dir = directory.path().join("parent/cache");
        (directory, Settings { cache_dir, ..Settings::default() })
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn other_users_cannot_access_a_new_cache_directory() {
        let (_directory, settings) = fixture();
        let _lock = take(&settings).unwrap();
        assert_eq!(mode(&settings.cache_dir), 0o700);
        assert_eq!(mode(settings.cache_dir.parent().unwrap()), 0o755);
        assert_eq!(mode(&settings.cache_dir.join(LOCK)), 0o600);
        for name in ["footers", "indexes", "state"] {
            assert_eq!(mode(&settings.cache_dir.join(name)), 0o700, "{name}");
        }
    }

    #[test]
    fn other_users_lose_access_to_a_cache_directory_of_an_earlier_version() {
        let (_directory, settings) = fixture();
        for name in ["columns", "footers", "state"] {
            fs::create_dir_all(settings.cache_dir.join(name)).unwrap();
        }
        assert_eq!(mode(&settings.cache_dir), 0o755);
        let _lock = take(&settings).unwrap();
        assert_eq!(mode(&settings.cache_dir), 0o700);
        assert_eq!(mode(&settings.cache_dir.join("footers")), 0o700);
    }

    #[test]
    fn a_directory_with_files_of_other_programs_keeps_its_permissions() {
        let (_directory, settings) = fixture();
        fs::create_dir_all(&settings.cache_dir).unwrap();
        fs::write(settings.cache_dir.join("data.parquet"), "precious").unwrap();
        fs::set_permissions(&settings.cache_dir, Permissions::from_mode(0o755)).unwrap();
        let _lock = take(&settings).unwrap();
        assert_eq!(mode(&settings.cache_dir), 0o755);
        assert_eq!(mode(&settings.cache_dir.join("footers")), 0o700);
        assert_eq!(mode(&settings.cache_dir.join("state")), 0o700);
    }

    #[test]
    fn a_state_outside_of_the_cache_directory_is_not_created_in_it() {
        let (_directory, mut settings) = fixture();
        settings.state = Some("s3://bucket/state".to_owned());
        let _lock = take(&settings).unwrap();
        assert!(!settings.cache_dir.join("state").exists());
    }

    #[test]
    fn a_cache_directory_is_used_by_one_server_at_a_time() {
        let (_directory, settings) = fixture();
        let lock = take(&settings).unwrap();
        let error = super::lock(&settings.cache_dir, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("is used by another server"), "{error}");
        drop(lock);
        take(&settings).unwrap();
    }

    #[test]
    fn a_removed_cache_directory_is_created_and_locked_again() {
        let (_directory, settings) = fixture();
        let taken = take(&settings).unwrap();
        assert!(!taken.keep().unwrap());
        fs::remove_dir_all(settings.cache_dir.parent().unwrap()).unwrap();
        assert!(taken.keep().unwrap());
        assert!(!taken.keep().unwrap());
        for name in ["", "footers", "indexes", "state"] {
            assert_eq!(mode(&settings.cache_dir.join(name)), 0o700, "{name}");
        }
        let error = super::lock(&settings.cache_dir, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("is used by another server"), "{error}");
    }

    #[test]
    fn a_removed_cache_directory_that_another_server_has_taken_is_not_shared() {
        let (_directory, settings) = fixture();
        let first = take(&settings).unwrap();
        fs::remove_dir_all(&settings.cache_dir).unwrap();
        let second = take(&settings).unwrap();
        for _ in 0..2 {
            let error = first.keep().unwrap_err().to_string();
            assert!(error.contains("is used by another server"), "{error}");
        }
        drop(second);
        assert!(first.keep().unwrap());
    }

    #[test]
    fn a_server_that_is_ending_is_waited_for() {
        let (_directory, settings) = fixture();
        let before = take(&settings).unwrap();
        let cache_dir = settings.cache_dir.clone();
        let next = std::thread::spawn(move || super::lock(&cache_dir, Duration::from_secs(600)));
        drop(before);
        next.join().unwrap().unwrap();
    }
}
