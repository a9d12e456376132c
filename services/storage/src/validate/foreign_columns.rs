//! Columns of a valid footer that the decoder refuses with the whole file: names that are not UTF-8, and codecs that it does not know.
//!
//! The footer is changed so that the decoder reads it, and the columns are remembered with the reason why they cannot be delivered. All
//! other columns can be.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;
use parquet::{basic::Compression, file::metadata::ParquetMetaData, schema::types::TypePtr};

use crate::{
    dataset::file_columns::FileColumn,
    validate::{
        parquet_shapes::{
            CODEC, COLUMN_METADATA_OF_CHUNK, COLUMNS, CREATED_BY, KEY_VALUE_METADATA, NAME, ROW_GROUPS,
            SCHEMA,
        },
        thrift::{Malformed, Walker},
    },
};

/// Number of the codec LZO, which the decoder knows by name only.
const LZO: i64 = 3;
/// Numbers of the codecs that the decoder knows.
const KNOWN_CODECS: Range<i64> = 0..8;

/// Parts of a footer that the decoder cannot read.
#[derive(Debug, Default)]
pub(crate) struct ForeignColumns {
    /// Positions in the schema of the elements whose names are not UTF-8. The root has position 0.
    names: BTreeSet<usize>,
    /// Codecs of leaf columns, by their position.
    codecs: BTreeMap<usize, i64>,
}

/// Changed bytes of a footer.
struct Patches<'a> {
    bytes: &'a [u8],
    changed: Vec<u8>,
    /// Number of bytes of the original that are in `changed`.
    copied: usize,
}

impl Patches<'_> {
    fn replace(&mut self, range: Range<usize>, by: &[u8]) {
        self.changed.extend_from_slice(&self.bytes[self.copied..range.start]);
        self.changed.extend_from_slice(by);
        self.copied = range.end;
    }

    /// Walks a text. Returns true if it was not UTF-8 and is replaced by an escaped form.
    fn text(&mut self, walker: &mut Walker<'_>) -> Result<bool, Malformed> {
        let start = walker.offset();
        let text = walker.binary()?;
        if str::from_utf8(text).is_ok() {
            return Ok(false);
        }
        let text = escaped(text);
        let mut binary = Vec::with_capacity(text.len() + 10);
        append_varint(&mut binary, text.len() as u64);
        binary.extend_from_slice(text.as_bytes());
        self.replace(start..walker.offset(), &binary);
        Ok(true)
    }

    /// Walks a codec. Returns its number if the decoder does not know it. It is replaced by LZO.
    fn codec(&mut self, walker: &mut Walker<'_>) -> Result<Option<i64>, Malformed> {
        let start = walker.offset();
        let codec = walker.int()?;
        if KNOWN_CODECS.contains(&codec) {
            return Ok(None);
        }
        let mut lzo = Vec::new();
        append_varint(&mut lzo, (LZO as u64) << 1);
        self.replace(start..walker.offset(), &lzo);
        Ok(Some(codec))
    }
}

/// Returns a form of a footer that the decoder reads, and the columns that were changed; `None` if there is nothing to change. The footer
/// has been [checked](super::footer_check::check_footer). The form has at most four times as many bytes.
pub(crate) fn readable(bytes: &[u8]) -> Result<Option<(Bytes, ForeignColumns)>, Malformed> {
    let mut patches = Patches { bytes, changed: Vec::new(), copied: 0 };
    let mut foreign = ForeignColumns::default();
    Walker::new(bytes).fields(|walker, field| match field.id {
        SCHEMA => {
            let mut element = 0;
            walker.elements(|walker, _| {
                walker.fields(|walker, field| match field.id {
                    NAME => {
                        if patches.text(walker)? {
                            foreign.names.insert(element);
                        }
                        Ok(())
                    }
                    _ => walker.skip(field.wire),
                })?;
                element += 1;
                Ok(())
            })
        }
        ROW_GROUPS => walker.elements(|walker, _| {
            walker.fields(|walker, field| match field.id {
                COLUMNS => {
                    let mut leaf = 0;
                    walker.elements(|walker, _| {
                        if let Some(codec) = column_codec(walker, &mut patches)? {
                            foreign.codecs.insert(leaf, codec);
                        }
                        leaf += 1;
                        Ok(())
                    })
                }
                _ => walker.skip(field.wire),
            })
        }),
        KEY_VALUE_METADATA => walker.elements(|walker, _| {
            walker.fields(|walker, field| match field.id {
                1 | 2 => patches.text(walker).map(drop),
                _ => walker.skip(field.wire),
            })
        }),
        CREATED_BY => patches.text(walker).map(drop),
        _ => walker.skip(field.wire),
    })?;
    if patches.copied == 0 {
        return Ok(None);
    }
    patches.changed.extend_from_slice(&bytes[patches.copied..]);
    Ok(Some((patches.changed.into(), foreign)))
}

/// Walks a column chunk. Returns its codec if the decoder does not know it.
fn column_codec(walker: &mut Walker<'_>, patches: &mut Patches<'_>) -> Result<Option<i64>, Malformed> {
    let mut unknown = None;
    walker.fields(|walker, field| match field.id {
        COLUMN_METADATA_OF_CHUNK => walker.fields(|walker, field| match field.id {
            CODEC => {
                unknown = patches.codec(walker)?;
                Ok(())
            }
            _ => walker.skip(field.wire),
        }),
        _ => walker.skip(field.wire),
    })?;
    Ok(unknown)
}

impl ForeignColumns {
    /// Returns the top-level columns that cannot be delivered, by their positions, with the reasons. The decoder knows LZO, but has no
    /// decompressor for it.
    pub(crate) fn reasons(
        mut self,
        metadata: &ParquetMetaData,
        columns: &[FileColumn],
    ) -> BTreeMap<usize, String> {
        for group in metadata.row_groups() {
            for (leaf, column) in group.columns().iter().enumerate() {
                if column.compression() == Compression::LZO {
                    self.codecs.entry(leaf).or_insert(LZO);
                }
            }
        }
        if self.names.is_empty() && self.codecs.is_empty() {
            return BTreeMap::new();
        }
        let roots = metadata.file_metadata().schema_descr().root_schema().get_fields();
        let mut start = 1;
        let reason = |(root, (column, tree)): (usize, (&FileColumn, &TypePtr))| {
            let elements = start..start + element_count(tree);
            start = elements.end;
            let reason = match self.names.range(elements.clone()).next() {
                Some(name) if *name == elements.start => "its name is not UTF-8".to_owned(),
                Some(_) => "the name of a field in it is not UTF-8".to_owned(),
                None => match self.codecs.range(column.leaves.clone()).next()?.1 {
                    &LZO => "it is compressed with LZO".to_owned(),
                    codec => format!("it is compressed with codec {codec}, which is not known"),
                },
            };
            Some((root, reason))
        };
        columns.iter().zip(roots).enumerate().filter_map(reason).collect()
    }
}

/// Number of elements of the schema that a type consists of.
fn element_count(tree: &Arc<parquet::schema::types::Type>) -> usize {
    if tree.is_primitive() { 1 } else { 1 + tree.get_fields().iter().map(element_count).sum::<usize>() }
}

/// Text with the bytes that are not UTF-8 as `\xNN`.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("a string has no error");
        }
    }
    text
}

fn append_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_text_are_escaped_one_by_one() {
        assert_eq!(escaped(b"caf\xe9"), "caf\\xe9");
        assert_eq!(escaped("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(escaped(b"\xff\xfea\xc3"), "\\xff\\xfea\\xc3");
    }

    #[test]
    fn a_footer_of_text_and_known_codecs_is_not_changed() {
        // Version 1, a schema of a root and one column, no rows, no row groups.
        let footer = [
            0x15, 2, 0x19, 0x2c, 0x48, 1, b'm', 0x15, 2, 0, 0x15, 2, 0x25, 0, 0x18, 1, b'x', 0, 0x16, 0,
            0x19, 0x0c, 0,
        ];
        assert!(readable(&footer).unwrap().is_none());
        let mut named = footer;
        named[16] = 0xff;
        let (changed, foreign) = readable(&named).unwrap().unwrap();
        assert_eq!(foreign.names, BTreeSet::from([1]));
        assert_eq!(changed[..], [&footer[..15], &[4], b"\\xff", &footer[17..]].concat());
    }
}
