//! Request of the batch that is explained.

use std::{io::Read, path::Path};

use anyhow::{Context, bail};
use forebay_proto::{Encoding, v1};

/// Job of the batch.
pub(super) enum Wanted {
    /// Name or id of the job.
    Job(String),
    Request(Box<v1::Train>),
}

impl Wanted {
    /// Takes the job by name or id, or reads a ticket from a file; - is standard input.
    ///
    /// # Errors
    /// If neither is given, or the file can't be read or holds no ticket for batches.
    pub(super) fn read(job_name: Option<&str>, ticket: Option<&Path>) -> anyhow::Result<Self> {
        let path = match (job_name, ticket) {
            (_, Some(path)) => path,
            (Some(job), None) => return Ok(Self::Job(job.to_owned())),
            (None, None) => {
                bail!(
                    "the job is missing: give --job-name NAME or --ticket FILE; --list shows the recorded jobs"
                )
            }
        };
        let mut bytes = Vec::new();
        let read = match path.to_str() {
            Some("-") => std::io::stdin().read_to_end(&mut bytes).map(drop),
            _ => std::fs::read(path).map(|read| bytes = read),
        };
        read.with_context(|| format!("can't read {}", path.display()))?;
        let start = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        // Files may have whitespace before JSON; a command in protobuf never starts with whitespace.
        let bytes = if bytes.get(start) == Some(&b'{') { &bytes[start..] } else { &bytes[..] };
        let command: v1::Command =
            Encoding::of(bytes).decode("Command", bytes).with_context(|| format!("in {}", path.display()))?;
        match command.train {
            Some(train) => Ok(Self::Request(Box::new(train))),
            None => bail!("{}: expected a ticket for batches, {{\"train\": {{...}}}}", path.display()),
        }
    }
}
