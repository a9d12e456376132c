//! The log on standard error, with a maximum size if that is a file.

use std::{
    io::{self, Write},
    sync::Arc,
};

use bytesize::ByteSize;
use parking_lot::Mutex;
use rustix::fs::{FileType, fstat, ftruncate};
use tracing_subscriber::fmt::MakeWriter;

/// Writer of the log. Cheap to clone.
#[derive(Clone)]
pub(super) struct Log {
    /// Maximum size of the file and its current size; `None` if the size is unlimited.
    size: Option<Arc<Mutex<Size>>>,
}

struct Size {
    max_bytes: u64,
    bytes: u64,
}

impl Log {
    /// Limits the file to which standard error is redirected to `max_size`: a line that does not fit empties it first. The file
    /// has to be opened for appending.
    pub(super) fn new(max_size: Option<ByteSize>) -> Self {
        let bytes = fstat(io::stderr()).ok().and_then(|file| {
            let is_file = FileType::from_raw_mode(file.st_mode) == FileType::RegularFile;
            is_file.then_some(u64::try_from(file.st_size).unwrap_or(0))
        });
        let size = max_size.zip(bytes);
        Self { size: size.map(|(max, bytes)| Arc::new(Mutex::new(Size { max_bytes: max.0, bytes }))) }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(size) = &self.size else { return io::stderr().write(line) };
        let mut size = size.lock();
        if size.bytes + line.len() as u64 > size.max_bytes {
            ftruncate(io::stderr(), 0)?;
            size.bytes = 0;
        }
        let written = io::stderr().write(line)?;
        size.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
