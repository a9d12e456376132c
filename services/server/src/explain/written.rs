//! A batch in forms that other programs read.

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_json::{WriterBuilder, writer::JsonArray};
use forebay_loader::Error;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};
use serde::Deserialize;

use super::Explained;

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// A Parquet file.
    Parquet,
    /// A JSON array with an object a row.
    Json,
    /// An Arrow IPC stream; its one message is the one that was sent, byte for byte.
    Arrow,
}

impl Format {
    /// The format of a file of this name.
    ///
    /// # Errors
    /// In words, when its extension is none of them.
    pub(crate) fn of_file(path: &Path) -> Result<Self, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet") => Ok(Self::Parquet),
            Some("json") => Ok(Self::Json),
            Some("arrow" | "arrows") => Ok(Self::Arrow),
            _ => Err(format!("{}: expected a name that ends in .parquet, .json or .arrow", path.display())),
        }
    }

    /// How it is spelled in a request, and as an extension.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Json => "json",
            Self::Arrow => "arrow",
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Parquet => "application/vnd.apache.parquet",
            Self::Json => "application/json",
            Self::Arrow => "application/vnd.apache.arrow.stream",
        }
    }
}

impl Explained {
    /// The batch in this format, in at most `max_bytes`; the same bytes every time.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a longer one, [`Error::Invalid`] for a column that the format has no type for.
    pub(crate) fn written(&self, format: Format, max_bytes: u64) -> Result<Vec<u8>, Error> {
        let mut out = Bounded { bytes: Vec::new(), max_bytes, is_full: false };
        let written = match format {
            Format::Parquet => self.parquet(&mut out),
            Format::Json => self.json(&mut out),
            Format::Arrow => self.arrow(&mut out).map_err(|error| error.to_string()),
        };
        match written {
            Ok(()) => Ok(out.bytes),
            Err(_) if out.is_full => Err(Error::TooLarge {
                what: format!("the batch as {}", format.word()),
                needed: max_bytes.saturating_add(1),
                limit: max_bytes,
                advice: "raise limits.max_explain_bytes, or run `forebay explain` without --server".into(),
            }),
            Err(reason) => Err(Error::invalid("format", format!("{}: {reason}", format.word()))),
        }
    }

    fn parquet(&self, out: &mut Bounded) -> Result<(), String> {
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
        let write = || {
            let mut writer = ArrowWriter::try_new(out, Arc::clone(self.schema()), Some(properties.build()))?;
            writer.write(&self.batch)?;
            writer.close()
        };
        write().map(drop).map_err(|error: parquet::errors::ParquetError| error.to_string())
    }

    fn json(&self, out: &mut Bounded) -> Result<(), String> {
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(out);
        writer.write(&self.batch).and_then(|()| writer.finish()).map_err(|error| error.to_string())
    }

    /// Each message is a marker, the length of its header, the header, filled up to 8 bytes, and the body.
    fn arrow(&self, out: &mut Bounded) -> io::Result<()> {
        let schema: FlightData = SchemaAsIpc::new(self.schema(), &IpcWriteOptions::default()).into();
        for (header, body) in [(&schema.data_header, &schema.data_body), (&self.header, &self.body)] {
            // What stands before the body is a multiple of 64 bytes, so that the body can be mapped as it lies.
            let padded = (header.len() + PREFIX_BYTES).next_multiple_of(64) - PREFIX_BYTES;
            out.write_all(&CONTINUES)?;
            out.write_all(&u32::try_from(padded).map_err(io::Error::other)?.to_le_bytes())?;
            out.write_all(header)?;
            out.write_all(&[0; 64][..padded - header.len()])?;
            out.write_all(body)?;
        }
        out.write_all(&CONTINUES)?;
        out.write_all(&[0; 4])
    }
}

/// What every message of an Arrow IPC stream begins with.
const CONTINUES: [u8; 4] = [0xff; 4];
/// The marker and the length.
const PREFIX_BYTES: usize = 8;

/// Bytes up to a limit.
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
