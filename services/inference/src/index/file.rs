//! An index on disk: it saves reading the keys again after a restart, and may be lost at any time.
//!
//! ```text
//! "FBINDEX1" | length of the header, u64 | header, JSON | slots | keys | ends | chunks | XXH3-64 of all before
//! ```

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{KeyIndex, KeySpec, Keys, VERSION, identity};
use crate::keys::KeyType;
use forebay_storage::Reader;

const MAGIC: &[u8; 8] = b"FBINDEX1";
/// A header longer than this is none.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// What lies behind it, in numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    identity: String,
    rows: u64,
    count: u64,
    width: Option<usize>,
    /// Slots of each shard.
    shards: Vec<usize>,
    key_bytes: usize,
    ends: usize,
    chunks: usize,
}

impl KeyIndex {
    /// The index of the snapshot of `reader`, as it was written to `folder` before. What is damaged is deleted, and as good as
    /// none. Blocks.
    pub fn find(folder: &Path, reader: &Reader, spec: &KeySpec) -> Option<Self> {
        let path = path(folder, reader, spec);
        let bytes = fs::read(&path).ok()?;
        match read(&bytes, reader, spec) {
            Ok(index) => Some(index),
            Err(detail) => {
                metrics::counter!("forebay_online_corrupt_indexes_total").increment(1);
                tracing::warn!(path = %path.display(), detail, "deleted a corrupt index");
                fs::remove_file(&path).ok();
                None
            }
        }
    }

    /// Writes the index to `folder`, whole or not at all. Blocks.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn keep(&self, folder: &Path, reader: &Reader, spec: &KeySpec) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let path = path(folder, reader, spec);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let written = self.write(fs::File::create(&temporary)?, reader, spec);
        let renamed = written.and_then(|()| fs::rename(&temporary, &path));
        if renamed.is_err() {
            fs::remove_file(&temporary).ok();
        }
        renamed
    }

    /// Deletes every index in `folder` but that of the snapshot of `reader`. Blocks.
    pub fn forget_others(folder: &Path, reader: &Reader, spec: &KeySpec) {
        let own = path(folder, reader, spec);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_one = entry.path().extension().is_some_and(|kind| kind == "index" || kind == "tmp");
            if is_one && entry.path() != own {
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    fn write(&self, file: fs::File, reader: &Reader, spec: &KeySpec) -> io::Result<()> {
        let Keys { width, bytes, ends, chunks, rows } = &self.keys;
        let header = Header {
            version: VERSION,
            identity: format!("{:032x}", identity(reader, spec)),
            rows: *rows,
            count: self.count,
            width: *width,
            shards: self.shards.iter().map(|shard| shard.len()).collect(),
            key_bytes: bytes.len(),
            ends: ends.len(),
            chunks: chunks.len(),
        };
        let header = serde_json::to_vec(&header)?;
        let mut out = Hashed { inner: BufWriter::with_capacity(1 << 20, file), hash: Xxh3::new() };
        out.write_all(MAGIC)?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for slot in self.shards.iter().flat_map(|shard| shard.iter()) {
            out.write_all(&slot.to_le_bytes())?;
        }
        out.write_all(bytes)?;
        for end in ends {
            out.write_all(&end.to_le_bytes())?;
        }
        for chunk in chunks {
            out.write_all(&chunk.to_le_bytes())?;
        }
        let hash = out.hash.digest();
        out.inner.write_all(&hash.to_le_bytes())?;
        out.inner.into_inner()?.sync_all()
    }
}

fn path(folder: &Path, reader: &Reader, spec: &KeySpec) -> PathBuf {
    folder.join(format!("{:032x}.index", identity(reader, spec)))
}

fn read(bytes: &[u8], reader: &Reader, spec: &KeySpec) -> Result<KeyIndex, &'static str> {
    let (all, hash) = bytes.split_last_chunk::<8>().ok_or("it is too short")?;
    if xxhash_rust::xxh3::xxh3_64(all) != u64::from_le_bytes(*hash) {
        return Err("its hash is another one");
    }
    let rest = all.strip_prefix(MAGIC).ok_or("it is of another kind")?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or("it is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > rest.len().min(MAX_HEADER_BYTES) {
        return Err("its header is too long");
    }
    let (header, mut rest) = rest.split_at(length);
    let header: Header = serde_json::from_slice(header).map_err(|_| "its header makes no sense")?;
    let key = KeyType::new(&spec.key, reader.snapshot().schema()).map_err(|_| "its key makes no sense")?;
    let of_this = header.version == VERSION
        && header.identity == format!("{:032x}", identity(reader, spec))
        && header.rows == reader.snapshot().rows();
    if !of_this {
        return Err("it is of something else");
    }
    let mut take = |count: usize, width: usize| {
        let (taken, left) = rest.split_at_checked(count.checked_mul(width)?)?;
        rest = left;
        Some(taken)
    };
    let numbers = |bytes: &[u8]| {
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()
    };
    let short = "it is shorter than its header says";
    let mut shards = Vec::with_capacity(header.shards.len().min(super::MAX_SHARDS));
    for slots in header.shards {
        shards.push(numbers(take(slots, 8).ok_or(short)?).into_boxed_slice());
    }
    let bytes = take(header.key_bytes, 1).ok_or(short)?.to_vec();
    let ends =
        take(header.ends, 4).ok_or(short)?.as_chunks::<4>().0.iter().map(|end| u32::from_le_bytes(*end));
    let ends = ends.collect();
    let chunks = numbers(take(header.chunks, 8).ok_or(short)?);
    if !rest.is_empty() || !shards.len().is_power_of_two() || shards.iter().any(|shard| shard.is_empty()) {
        return Err("its parts make no index");
    }
    let keys = Keys { width: header.width, bytes, ends, chunks, rows: header.rows };
    Ok(KeyIndex { key, keys, shards, count: header.count })
}

/// Hashes what is written.
struct Hashed<W> {
    inner: W,
    hash: Xxh3,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
