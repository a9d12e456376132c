//! File format of indexes. A saved index avoids reading the keys again after a restart; it can be deleted at any time.
//!
//! ```text
//! "FBINDEX1" | length of the header, u64 | header, JSON | table | XXH3-64 of all preceding bytes
//!
//! table: buckets of keys and rows, or slots of rows | keys | ends | chunks
//! ```

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use forebay_storage::Reader;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{
    KeyIndex, KeySpec,
    key_hash::KeyHash,
    narrow_table::{NarrowTable, Shard},
    sharding::MAX_SHARDS,
    spec::VERSION,
    table::Table,
    wide_table::{StoredKeys, WideTable},
};
use crate::keys::KeyType;

const MAGIC: &[u8; 8] = b"FBINDEX1";
/// Maximum length of a header, in bytes.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// Description of the table that follows.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    identity: String,
    rows: u64,
    count: u64,
    hash: KeyHash,
    table: TableHeader,
}

#[derive(Debug, Serialize, Deserialize)]
enum TableHeader {
    Narrow { shards: Vec<Shard>, bytes: usize },
    Wide(WideHeader),
}

#[derive(Debug, Serialize, Deserialize)]
struct WideHeader {
    /// Number of slots of each shard.
    shards: Vec<usize>,
    width: Option<usize>,
    bytes: usize,
    ends: usize,
    chunks: usize,
}

impl KeyIndex {
    /// Reads the index of the snapshot of `reader` from `folder`; `None` if it was not saved. Deletes a corrupt file. Blocks.
    pub fn open(folder: &Path, reader: &Reader, spec: &KeySpec) -> Option<Self> {
        let path = path(folder, reader, spec);
        let bytes = fs::read(&path).ok()?;
        match read(&bytes, reader, spec) {
            Ok(index) => Some(index),
            Err(detail) => {
                metrics::counter!("forebay_lookup_corrupt_indexes_total").increment(1);
                tracing::warn!(path = %path.display(), detail, "deleted a corrupt index, rebuilding it");
                fs::remove_file(&path).ok();
                None
            }
        }
    }

    /// Writes the index to `folder`, atomically. Blocks.
    ///
    /// # Errors
    /// I/O errors.
    pub fn save(&self, folder: &Path, reader: &Reader, spec: &KeySpec) -> io::Result<()> {
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

    /// Deletes all indexes in `folder` except those of the snapshots of `kept`. Blocks.
    pub fn delete_others(folder: &Path, kept: &[&Reader], spec: &KeySpec) {
        let kept: Vec<PathBuf> = kept.iter().map(|reader| path(folder, reader, spec)).collect();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_index = entry.path().extension().is_some_and(|kind| kind == "index" || kind == "tmp");
            if is_index && !kept.contains(&entry.path()) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    fn write(&self, file: fs::File, reader: &Reader, spec: &KeySpec) -> io::Result<()> {
        let table = match &self.table {
            Table::Four(table) => TableHeader::narrow(table),
            Table::Eight(table) => TableHeader::narrow(table),
            Table::Any(WideTable { keys, shards }) => TableHeader::Wide(WideHeader {
                shards: shards.iter().map(|shard| shard.len()).collect(),
                width: keys.width,
                bytes: keys.bytes.len(),
                ends: keys.ends.len(),
                chunks: keys.chunks.len(),
            }),
        };
        let header = Header {
            version: VERSION,
            identity: format!("{:032x}", spec.identity(reader)),
            rows: reader.snapshot().rows(),
            count: self.count,
            hash: self.hash,
            table,
        };
        let header = serde_json::to_vec(&header)?;
        let mut out = Hashed { inner: BufWriter::with_capacity(1 << 20, file), hash: Xxh3::new() };
        out.write_all(MAGIC)?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        match &self.table {
            Table::Four(table) => out.write_all(table.as_bytes())?,
            Table::Eight(table) => out.write_all(table.as_bytes())?,
            Table::Any(WideTable { keys, shards }) => {
                out.words(shards.iter().flat_map(|shard| shard.iter()).map(|slot| slot.to_le_bytes()))?;
                out.write_all(&keys.bytes)?;
                out.words(keys.ends.iter().map(|end| end.to_le_bytes()))?;
                out.words(keys.chunks.iter().map(|chunk| chunk.to_le_bytes()))?;
            }
        }
        let hash = out.hash.digest();
        out.inner.write_all(&hash.to_le_bytes())?;
        out.inner.into_inner()?.sync_all()
    }
}

impl TableHeader {
    fn narrow<const KEY: usize, const SLOT: usize>(table: &NarrowTable<KEY, SLOT>) -> Self {
        Self::Narrow { shards: table.shards().to_vec(), bytes: table.as_bytes().len() }
    }
}

fn path(folder: &Path, reader: &Reader, spec: &KeySpec) -> PathBuf {
    folder.join(format!("{:032x}.index", spec.identity(reader)))
}

fn read(bytes: &[u8], reader: &Reader, spec: &KeySpec) -> Result<KeyIndex, &'static str> {
    let (all, hash) = bytes.split_last_chunk::<8>().ok_or("the file is too short")?;
    if xxhash_rust::xxh3::xxh3_64(all) != u64::from_le_bytes(*hash) {
        return Err("the hash does not match");
    }
    let rest = all.strip_prefix(MAGIC).ok_or("the file is not an index")?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or("the file is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > rest.len().min(MAX_HEADER_BYTES) {
        return Err("the header is too long");
    }
    let (header, mut rest) = rest.split_at(length);
    let header: Header = serde_json::from_slice(header).map_err(|_| "the header is invalid")?;
    let key = KeyType::new(&spec.key, reader.snapshot().schema()).map_err(|_| "the key is invalid")?;
    let matches = header.version == VERSION
        && header.identity == format!("{:032x}", spec.identity(reader))
        && header.rows == reader.snapshot().rows();
    if !matches {
        return Err("the index is of another snapshot, key or version");
    }
    let shards = match &header.table {
        TableHeader::Narrow { shards, .. } => shards.len(),
        TableHeader::Wide(WideHeader { shards, .. }) if shards.contains(&0) => 0,
        TableHeader::Wide(WideHeader { shards, .. }) => shards.len(),
    };
    if shards > MAX_SHARDS || !shards.is_power_of_two() {
        return Err("the shards or the kind of table are invalid");
    }
    let input = &mut rest;
    let table = match (Table::narrow_width(key.width(), header.rows), header.table) {
        (Some(4), TableHeader::Narrow { shards, bytes }) => {
            read_narrow(input, shards, bytes).map(Table::Four)
        }
        (Some(8), TableHeader::Narrow { shards, bytes }) => {
            read_narrow(input, shards, bytes).map(Table::Eight)
        }
        (None, TableHeader::Wide(wide)) if wide.width == key.width() => {
            read_wide(input, &wide, header.rows).map(Table::Any)
        }
        _ => return Err("the shards or the kind of table are invalid"),
    };
    let table = table.ok_or("the table does not match its header")?;
    if !rest.is_empty() {
        return Err("the file is longer than its header states");
    }
    Ok(KeyIndex { key, hash: header.hash, table, count: header.count })
}

fn read_narrow<const KEY: usize, const SLOT: usize>(
    rest: &mut &[u8],
    shards: Vec<Shard>,
    bytes: usize,
) -> Option<NarrowTable<KEY, SLOT>> {
    NarrowTable::read(shards, take::<1>(rest, bytes)?.as_flattened())
}

fn read_wide(rest: &mut &[u8], header: &WideHeader, rows: u64) -> Option<WideTable> {
    let numbers = |words: &[[u8; 8]]| words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>();
    let mut shards = Vec::with_capacity(header.shards.len());
    for count in &header.shards {
        shards.push(numbers(take(rest, *count)?).into_boxed_slice());
    }
    let bytes = take::<1>(rest, header.bytes)?.as_flattened().to_vec();
    let ends = take::<4>(rest, header.ends)?.iter().map(|end| u32::from_le_bytes(*end)).collect();
    let chunks = numbers(take(rest, header.chunks)?);
    WideTable::read(shards, StoredKeys { width: header.width, bytes, ends, chunks, rows })
}

/// Takes `count` values of `WIDTH` bytes from `rest`; `None` if there are fewer.
fn take<'a, const WIDTH: usize>(rest: &mut &'a [u8], count: usize) -> Option<&'a [[u8; WIDTH]]> {
    let (taken, left) = rest.split_at_checked(count.checked_mul(WIDTH)?)?;
    *rest = left;
    Some(taken.as_chunks::<WIDTH>().0)
}

/// Writer that hashes its input.
struct Hashed<W> {
    inner: W,
    hash: Xxh3,
}

impl<W: Write> Hashed<W> {
    fn words<const BYTES: usize>(&mut self, mut words: impl Iterator<Item = [u8; BYTES]>) -> io::Result<()> {
        words.try_for_each(|word| self.write_all(&word))
    }
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
