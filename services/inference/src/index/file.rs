//! An index on disk: it saves reading the keys again after a restart, and may be lost at any time.
//!
//! ```text
//! "FBINDEX1" | length of the header, u64 | header, JSON | table | XXH3-64 of all before
//!
//! table: buckets of keys and rows, or slots of rows | keys | ends | chunks
//! ```

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{
    KeyIndex, KeySpec, MAX_SHARDS, Table, VERSION, identity,
    narrow::{Narrow, Shard},
    wide::{Keys, Wide},
};
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
    table: TableHeader,
}

#[derive(Debug, Serialize, Deserialize)]
enum TableHeader {
    Narrow { shards: Vec<Shard>, bytes: usize },
    Wide(WideHeader),
}

#[derive(Debug, Serialize, Deserialize)]
struct WideHeader {
    /// Slots of each shard.
    shards: Vec<usize>,
    width: Option<usize>,
    bytes: usize,
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
        let table = match &self.table {
            Table::Four(table) => TableHeader::of_narrow(table),
            Table::Eight(table) => TableHeader::of_narrow(table),
            Table::Any(Wide { keys, shards }) => TableHeader::Wide(WideHeader {
                shards: shards.iter().map(|shard| shard.len()).collect(),
                width: keys.width,
                bytes: keys.bytes.len(),
                ends: keys.ends.len(),
                chunks: keys.chunks.len(),
            }),
        };
        let header = Header {
            version: VERSION,
            identity: format!("{:032x}", identity(reader, spec)),
            rows: reader.snapshot().rows(),
            count: self.count,
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
            Table::Any(Wide { keys, shards }) => {
                out.long_words(shards.iter().flat_map(|shard| shard.iter()))?;
                out.write_all(&keys.bytes)?;
                out.words(&keys.ends)?;
                out.long_words(&keys.chunks)?;
            }
        }
        let hash = out.hash.digest();
        out.inner.write_all(&hash.to_le_bytes())?;
        out.inner.into_inner()?.sync_all()
    }
}

impl TableHeader {
    fn of_narrow<const KEY: usize, const SLOT: usize>(table: &Narrow<KEY, SLOT>) -> Self {
        Self::Narrow { shards: table.shards().to_vec(), bytes: table.as_bytes().len() }
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
    let shards = match &header.table {
        TableHeader::Narrow { shards, .. } => shards.len(),
        TableHeader::Wide(WideHeader { shards, .. }) if shards.contains(&0) => 0,
        TableHeader::Wide(WideHeader { shards, .. }) => shards.len(),
    };
    if shards > MAX_SHARDS || !shards.is_power_of_two() {
        return Err("its parts make no index");
    }
    let of = &mut rest;
    let table = match (Table::narrow_width(key.width(), header.rows), header.table) {
        (Some(4), TableHeader::Narrow { shards, bytes }) => read_narrow(of, shards, bytes).map(Table::Four),
        (Some(8), TableHeader::Narrow { shards, bytes }) => read_narrow(of, shards, bytes).map(Table::Eight),
        (None, TableHeader::Wide(wide)) if wide.width == key.width() => {
            read_wide(of, &wide, header.rows).map(Table::Any)
        }
        _ => return Err("its parts make no index"),
    };
    let table = table.ok_or("its parts are not what its header says")?;
    if !rest.is_empty() {
        return Err("it is longer than its header says");
    }
    Ok(KeyIndex { key, table, count: header.count })
}

fn read_narrow<const KEY: usize, const SLOT: usize>(
    rest: &mut &[u8],
    shards: Vec<Shard>,
    bytes: usize,
) -> Option<Narrow<KEY, SLOT>> {
    Narrow::read(shards, take::<1>(rest, bytes)?.as_flattened())
}

fn read_wide(rest: &mut &[u8], header: &WideHeader, rows: u64) -> Option<Wide> {
    let numbers = |words: &[[u8; 8]]| words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>();
    let mut shards = Vec::with_capacity(header.shards.len());
    for count in &header.shards {
        shards.push(numbers(take(rest, *count)?).into_boxed_slice());
    }
    let bytes = take::<1>(rest, header.bytes)?.as_flattened().to_vec();
    let ends = take::<4>(rest, header.ends)?.iter().map(|end| u32::from_le_bytes(*end)).collect();
    let chunks = numbers(take(rest, header.chunks)?);
    Wide::read(shards, Keys { width: header.width, bytes, ends, chunks, rows })
}

/// Takes so many values of `WIDTH` bytes; `None` if there are fewer.
fn take<'a, const WIDTH: usize>(rest: &mut &'a [u8], count: usize) -> Option<&'a [[u8; WIDTH]]> {
    let (taken, left) = rest.split_at_checked(count.checked_mul(WIDTH)?)?;
    *rest = left;
    Some(taken.as_chunks::<WIDTH>().0)
}

/// Hashes what is written.
struct Hashed<W> {
    inner: W,
    hash: Xxh3,
}

impl<W: Write> Hashed<W> {
    fn words<'a>(&mut self, words: impl IntoIterator<Item = &'a u32>) -> io::Result<()> {
        words.into_iter().try_for_each(|word| self.write_all(&word.to_le_bytes()))
    }

    fn long_words<'a>(&mut self, words: impl IntoIterator<Item = &'a u64>) -> io::Result<()> {
        words.into_iter().try_for_each(|word| self.write_all(&word.to_le_bytes()))
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
