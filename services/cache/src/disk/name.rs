//! File names of the disk tier.

use std::path::PathBuf;

const SUFFIX: &str = ".col";
const TEMPORARY_SUFFIX: &str = ".col.tmp";

/// Key of a file. An entry has several files if its sections were written at different times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileKey {
    pub(crate) entry: u128,
    /// Sequence number. Increases with each write, across restarts.
    pub(crate) id: u64,
}

/// Meaning of a file name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    File(FileKey),
    Temporary,
    Foreign,
}

impl FileKey {
    /// Path below the cache folder.
    pub(crate) fn path(self) -> PathBuf {
        self.join(SUFFIX)
    }

    /// Path below the cache folder while the file is being written.
    pub(crate) fn temporary_path(self) -> PathBuf {
        self.join(TEMPORARY_SUFFIX)
    }

    /// Name of the subfolder: one of 256, to keep each small.
    pub(crate) fn folder(self) -> String {
        folder((self.entry >> 120) as u8)
    }

    fn join(self, suffix: &str) -> PathBuf {
        PathBuf::from(self.folder()).join(format!("{:032x}-{:016x}{suffix}", self.entry, self.id))
    }
}

/// Name of the subfolder for entries with this first byte.
pub(crate) fn folder(first_byte: u8) -> String {
    format!("{first_byte:02x}")
}

/// Parses the name of a subfolder: the first byte of its entries; `None` if it is foreign.
pub(crate) fn parse_folder(name: &str) -> Option<u8> {
    let first_byte = u8::from_str_radix(name, 16).ok()?;
    (name == folder(first_byte)).then_some(first_byte)
}

/// Parses the name of a file in the subfolder `first_byte`.
pub(crate) fn parse(first_byte: u8, name: &str) -> Named {
    let temporary = name.strip_suffix(TEMPORARY_SUFFIX);
    let Some(stem) = temporary.or_else(|| name.strip_suffix(SUFFIX)) else { return Named::Foreign };
    let Some((entry, id)) = stem.split_once('-') else { return Named::Foreign };
    let (Ok(entry), Ok(id)) = (u128::from_str_radix(entry, 16), u64::from_str_radix(id, 16)) else {
        return Named::Foreign;
    };
    let key = FileKey { entry, id };
    let path = if temporary.is_some() { key.temporary_path() } else { key.path() };
    if path != PathBuf::from(folder(first_byte)).join(name) {
        return Named::Foreign;
    }
    if temporary.is_some() { Named::Temporary } else { Named::File(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generated_names_are_recognized() {
        let key = FileKey { entry: 0xab << 120 | 7, id: 0x12 };
        let name_of = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let name = name_of(key.path());
        assert_eq!(parse(0xab, &name), Named::File(key));
        assert_eq!(parse(0xab, &name_of(key.temporary_path())), Named::Temporary);
        assert_eq!(parse(0xac, &name), Named::Foreign);
        assert_eq!(parse(0xab, &name.to_uppercase()), Named::Foreign);
        for name in ["", "-", "x.col", "+1-2.col", "1-2.col", "notes.txt", "1-2.col.tmp"] {
            assert_eq!(parse(0, name), Named::Foreign, "{name}");
        }
    }
}
