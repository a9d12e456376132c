//! Disk of the cache with errors, damage, delays and hangs from a seed.

use std::{
    collections::HashMap,
    fmt,
    io::{Error, ErrorKind, Result},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use forebay_cache::{FileRange, FileSystem, Files, Listed};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Time that an operation takes on a disk that hangs: longer than every deadline of the loader.
const HANG: Duration = Duration::from_secs(600);

/// Number of injected faults of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskFaults {
    pub(crate) errors: u64,
    /// Reads with a flipped bit.
    pub(crate) flipped: u64,
    /// Writes that report success and lose the end of the file.
    pub(crate) torn: u64,
    /// Writes for which the disk was full.
    pub(crate) full: u64,
    pub(crate) late: u64,
    pub(crate) hung: u64,
}

impl DiskFaults {
    pub(crate) fn add(&mut self, other: Self) {
        self.errors += other.errors;
        self.flipped += other.flipped;
        self.torn += other.torn;
        self.full += other.full;
        self.late += other.late;
        self.hung += other.hung;
    }

    /// True if every kind has occurred.
    pub(crate) fn are_complete(self) -> bool {
        let Self { errors, flipped, torn, full, late, hung } = self;
        [errors, flipped, torn, full, late, hung].iter().all(|count| *count > 0)
    }
}

impl fmt::Display for DiskFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errors, flipped, torn, full, late, hung } = self;
        write!(
            f,
            "faults of the disk: {errors} errors, {flipped} flipped bits, {torn} torn and {full} refused writes, \
             {late} late and {hung} hung operations"
        )
    }
}

/// The file system, with faults that depend only on the seed, the operation, the file, and how often it was used. The order in
/// which threads use different files has no influence.
pub(crate) struct FaultyFiles {
    folder: PathBuf,
    seed: u64,
    /// Share of the operations that fail, of each kind.
    fault_share: f64,
    /// Without faults if false.
    active: AtomicBool,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of operations, by name and file.
    operations: HashMap<(&'static str, PathBuf), u64>,
    /// Virtual time at which each file was written.
    modified: HashMap<PathBuf, Duration>,
    faults: DiskFaults,
}

impl FaultyFiles {
    /// Files below `folder`.
    pub(crate) fn new(folder: &Path, seed: u64) -> Self {
        let fault_share = [0.0, 0.002, 0.05][(seed % 3) as usize];
        let (active, state) = (AtomicBool::new(false), Mutex::default());
        Self { folder: folder.to_owned(), seed, fault_share, active, started: Instant::now(), state }
    }

    /// Starts the faults.
    pub(crate) fn activate(&self) {
        self.active.store(true, Ordering::SeqCst);
    }

    /// Faults so far.
    pub(crate) fn faults(&self) -> DiskFaults {
        self.state.lock().unwrap().faults
    }

    /// Path below the folder, which has another name in each run.
    fn local(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.folder).unwrap_or(path).to_owned()
    }

    /// Number in [0, 1) for the next operation `name` on `path`, in the order of its operations, and a number for its details.
    fn draw(&self, name: &'static str, path: &Path) -> (f64, usize) {
        if !self.active.load(Ordering::SeqCst) {
            return (1.0, 0);
        }
        let local = self.local(path);
        let mut state = self.state.lock().unwrap();
        let count = state.operations.entry((name, local.clone())).or_default();
        *count += 1;
        let text = format!("{name} {} {count}", local.display());
        drop(state);
        let hash = xxh3_64_with_seed(text.as_bytes(), self.seed);
        ((hash >> 11) as f64 / (1_u64 << 53) as f64, (hash & 0xffff) as usize)
    }

    /// Index of the fault among `kinds` that hits the next operation `name` on `path`, with a number for its details.
    fn fault(&self, name: &'static str, path: &Path, kinds: usize) -> Option<(usize, usize)> {
        let (draw, detail) = self.draw(name, path);
        let kind = (draw / self.fault_share.max(f64::MIN_POSITIVE)) as usize;
        (kind < kinds).then_some((kind, detail))
    }

    fn note(&self, count: impl FnOnce(&mut DiskFaults)) {
        count(&mut self.state.lock().unwrap().faults);
    }

    /// An error for a fault that has only one kind.
    fn check(&self, name: &'static str, path: &Path) -> Result<()> {
        match self.fault(name, path, 1) {
            None => Ok(()),
            Some(_) => Err(self.error()),
        }
    }

    fn error(&self) -> Error {
        self.note(|faults| faults.errors += 1);
        Error::from_raw_os_error(EIO)
    }
}

/// Error of a disk that cannot read or write, on Linux and macOS.
const EIO: i32 = 5;
/// Error of a process with too many open files, on Linux and macOS.
const EMFILE: i32 = 24;

impl Files for FaultyFiles {
    fn create_folder(&self, path: &Path) -> Result<()> {
        self.check("create_folder", path)?;
        FileSystem.create_folder(path)
    }

    fn write(&self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        let Some((kind, detail)) = self.fault("write", path, 3) else {
            return FileSystem.write(path, parts);
        };
        let mut bytes = parts.concat();
        bytes.truncate(detail % bytes.len().max(1));
        FileSystem.write(path, &[&bytes])?;
        match kind {
            0 => {
                self.note(|faults| faults.full += 1);
                Err(ErrorKind::StorageFull.into())
            }
            1 => Err(self.error()),
            _ => {
                self.note(|faults| faults.torn += 1);
                Ok(())
            }
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.check("rename", from)?;
        FileSystem.rename(from, to)?;
        let local = self.local(to);
        self.state.lock().unwrap().modified.insert(local, self.started.elapsed());
        Ok(())
    }

    fn read(&self, path: &Path, ranges: &mut [FileRange<'_>]) -> Result<()> {
        let fault = self.fault("read", path, 4);
        match fault {
            Some((0, _)) => return Err(self.error()),
            Some((1, _)) => {
                self.note(|faults| faults.errors += 1);
                return Err(Error::from_raw_os_error(EMFILE));
            }
            Some((2, _)) => {
                self.note(|faults| faults.errors += 1);
                return Err(ErrorKind::UnexpectedEof.into());
            }
            _ => {}
        }
        FileSystem.read(path, ranges)?;
        if let Some((_, detail)) = fault {
            let bytes: usize = ranges.iter().map(|range| range.bytes.len()).sum();
            let mut all = ranges.iter_mut().flat_map(|range| range.bytes.iter_mut());
            if let Some(byte) = all.nth(detail % bytes.max(1)) {
                *byte ^= 1 << (detail % 8);
                self.note(|faults| faults.flipped += 1);
            }
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.check("remove", path)?;
        FileSystem.remove(path)
    }

    /// Returns the entries of a folder, with virtual times of the last change.
    fn list(&self, folder: &Path) -> Result<Vec<Listed>> {
        self.check("list", folder)?;
        let mut listed = FileSystem.list(folder)?;
        let state = self.state.lock().unwrap();
        for Listed { name, metadata } in &mut listed {
            let modified = state.modified.get(&self.local(&folder.join(name)));
            if let Ok(metadata) = metadata {
                metadata.modified = SystemTime::UNIX_EPOCH + modified.copied().unwrap_or_default();
            }
        }
        Ok(listed)
    }
}

/// Times that the operations of a disk take.
pub(crate) struct DiskTimes {
    random: fastrand::Rng,
    /// Mean of the usual time in milliseconds.
    usual_ms: u64,
    /// False if the disk is never late.
    is_late: bool,
}

impl DiskTimes {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (usual_ms, is_late) = ([0, 1, 20][random.usize(..3)], random.bool());
        Self { random, usual_ms, is_late }
    }

    /// Time of the next operation.
    pub(crate) fn next(&mut self, files: &FaultyFiles) -> Duration {
        match self.random.u32(..400) {
            0 if self.is_late => {
                files.note(|faults| faults.hung += 1);
                HANG
            }
            1..4 if self.is_late => {
                files.note(|faults| faults.late += 1);
                Duration::from_secs(self.random.u64(1..60))
            }
            _ => Duration::from_millis(self.random.u64(0..=self.usual_ms * 2)),
        }
    }
}
