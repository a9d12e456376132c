//! Bearer tokens.

use std::{fmt, path::PathBuf};

use tonic::metadata::{Ascii, MetadataValue};

use crate::Error;

/// A bearer token. `Debug` does not print its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Value(String),
    File(PathBuf),
}

impl Token {
    /// Creates a token from its value.
    pub fn new(token: impl Into<String>) -> Self {
        Self(Source::Value(token.into()))
    }

    /// Creates a token from a file. The file is read for every call, so that it can be replaced at run time.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.0, Source::File(_))
    }

    /// Returns the value of the `authorization` header.
    pub(crate) fn header(&self) -> Result<MetadataValue<Ascii>, Error> {
        let token = match &self.0 {
            Source::Value(token) => token.clone(),
            Source::File(path) => std::fs::read_to_string(path).map_err(|error| {
                Error::Request(format!("can't read the token file {}: {error}", path.display()))
            })?,
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim())
            .parse()
            .map_err(|_| Error::Request("token: contains characters that are invalid in a header".into()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Value(_) => f.write_str("Token(..)"),
            Source::File(path) => f.debug_tuple("Token").field(path).finish(),
        }
    }
}
