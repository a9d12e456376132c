//! Export of a batch as a file.

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use arrow_json::{WriterBuilder, writer::JsonArray};
use forebay_loader::{Error, Flow, Pool, Priority, TurnClock};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};
use serde::Deserialize;

use crate::{Explained, json::check_texts};

/// File format of an exported batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A Parquet file.
    Parquet,
    /// A JSON array with one object per row.
    Json,
    /// An Arrow IPC stream; its message is identical to the one that was sent.
    Arrow,
}

impl Format {
    /// Returns the format of a file with this name.
    ///
    /// # Errors
    /// A message if the extension is unknown.
    pub fn from_path(path: &Path) -> Result<Self, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet") => Ok(Self::Parquet),
            Some("json") => Ok(Self::Json),
            Some("arrow" | "arrows") => Ok(Self::Arrow),
            _ => Err(format!("{}: expected a name ending in .parquet, .json or .arrow", path.display())),
        }
    }

    /// Name of the format in requests, and its file extension.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Json => "json",
            Self::Arrow => "arrow",
        }
    }

    /// Media type of a file in this format.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Parquet => "application/vnd.apache.parquet",
            Self::Json => "application/json",
            Self::Arrow => "application/vnd.apache.arrow.stream",
        }
    }
}

impl Explained {
    /// Exports the batch in `format`, in turns of `flow` on `pool`. The bytes are deterministic.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the file exceeds `max_bytes`, [`Error::Invalid`] if the format does not support the type of a column or a value.
    pub async fn export(
        self: &Arc<Self>,
        pool: &Pool,
        flow: Flow,
        format: Format,
        max_bytes: u64,
    ) -> Result<Vec<u8>, Error> {
        let explained = Arc::clone(self);
        let export = async move { explained.export_in_turns(format, max_bytes).await };
        pool.run_in_turns(flow, Priority::Background, export).await
    }

    async fn export_in_turns(&self, format: Format, max_bytes: u64) -> Result<Vec<u8>, Error> {
        let mut out = Bounded { bytes: Vec::new(), max_bytes, is_full: false };
        let written = match format {
            Format::Parquet => self.parquet(&mut out).await,
            Format::Json => self.json(&mut out).await,
            Format::Arrow => self.arrow(&mut out).map_err(|error| error.to_string()),
        };
        match written {
            Ok(()) => Ok(out.bytes),
            Err(_) if out.is_full => Err(Error::TooLarge {
                what: format!("the batch as {}", format.name()),
                needed: max_bytes.saturating_add(1),
                limit: max_bytes,
                advice: "raise limits.max_explain_bytes, or run `forebay explain` without --server".into(),
            }),
            Err(reason) => Err(Error::invalid("format", format!("{}: {reason}", format.name()))),
        }
    }

    async fn parquet(&self, out: &mut Bounded) -> Result<(), String> {
        let message = |error: parquet::errors::ParquetError| error.to_string();
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
        let mut writer = ArrowWriter::try_new(out, Arc::clone(self.schema()), Some(properties.build()))
            .map_err(message)?;
        let mut turn = TurnClock::default();
        for piece in self.pieces() {
            turn.spend(PIECE_COST).await;
            writer.write(&piece).map_err(message)?;
        }
        writer.close().map(drop).map_err(message)
    }

    async fn json(&self, out: &mut Bounded) -> Result<(), String> {
        let message = |error: arrow_schema::ArrowError| error.to_string();
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(out);
        let (mut turn, mut first_row) = (TurnClock::default(), 0);
        for piece in self.pieces() {
            turn.spend(PIECE_COST).await;
            check_texts(&piece, first_row)?;
            writer.write(&piece).map_err(message)?;
            first_row += piece.num_rows();
        }
        writer.finish().map_err(message)
    }

    /// The rows of the batch, padding included, in pieces of about [`PIECE_BYTES`] bytes.
    fn pieces(&self) -> impl Iterator<Item = RecordBatch> + use<'_> {
        let rows = self.batch.num_rows();
        let row_bytes = (self.body.len() / rows.max(1)).max(1);
        let piece_rows = (PIECE_BYTES / row_bytes).max(1);
        (0..rows).step_by(piece_rows).map(move |start| self.batch.slice(start, piece_rows.min(rows - start)))
    }

    /// Writes the message of the schema, that of the batch, and the end marker. Each message is a marker, the length of the header, the
    /// header, padded so that the body starts at a multiple of 64 bytes, and the body.
    fn arrow(&self, out: &mut Bounded) -> io::Result<()> {
        let schema = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            self.schema(),
            &mut DictionaryTracker::new(false),
            &IpcWriteOptions::default(),
        );
        let messages: [(&[u8], &[u8]); 2] =
            [(&schema.ipc_message, &schema.arrow_data), (&self.header, &self.body)];
        for (header, body) in messages {
            // The body starts at a multiple of 64 bytes, so that readers can map it without a copy.
            let padded = (header.len() + PREFIX_BYTES).next_multiple_of(64) - PREFIX_BYTES;
            out.write_all(&CONTINUATION)?;
            out.write_all(&u32::try_from(padded).map_err(io::Error::other)?.to_le_bytes())?;
            out.write_all(header)?;
            out.write_all(&[0; 64][..padded - header.len()])?;
            out.write_all(body)?;
        }
        out.write_all(&CONTINUATION)?;
        out.write_all(&[0; 4])
    }
}

/// Size of the part of a batch that is written at a time, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Cost of writing a piece, in the unit of [`TurnClock`]. Writing a value as text takes about ten times as long as computing it.
const PIECE_COST: u64 = 1 << 20;

/// Continuation marker at the start of every message of an Arrow IPC stream.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Length of the marker and of the header length.
const PREFIX_BYTES: usize = 8;

/// A buffer with a maximum size.
struct Bounded {
    bytes: Vec<u8>,
    max_bytes: u64,
    is_full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.max_bytes {
            self.is_full = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
