//! Looks a footer over before a decoder allocates what it says.

use crate::{
    grammar::{COLUMN_CRYPTO, COLUMNS, ENCRYPTION, FILE_METADATA, NUM_CHILDREN, ROW_GROUPS, SCHEMA},
    thrift::{Malformed, Walker, Wire},
};

/// Groups inside one another; a decoder recurses once for each.
const MAX_SCHEMA_DEPTH: usize = 64;

/// The decoder numbers row groups in 15 bits.
const MAX_ROW_GROUPS: usize = 1 << 15;

/// Why a footer is not handed to the decoder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Malformed(Malformed),
    Encrypted,
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Refuses a `FileMetaData` that is not well formed, whose lengths exceed its bytes, or that is encrypted.
pub(crate) fn check_footer(bytes: &[u8]) -> Result<(), Refusal> {
    let mut walker = Walker::new(bytes);
    walker.conform(&FILE_METADATA)?;
    if walker.offset() != bytes.len() {
        return Err(walker.malformed("bytes after the end").into());
    }

    // What follows may rely on the wire types, which were just checked.
    let mut encrypted = false;
    Walker::new(bytes).fields(|walker, field| match field.id {
        SCHEMA => check_schema(walker),
        ROW_GROUPS => check_row_groups(walker, &mut encrypted),
        ENCRYPTION => {
            encrypted = true;
            walker.skip(field.wire)
        }
        _ => walker.skip(field.wire),
    })?;
    if encrypted { Err(Refusal::Encrypted) } else { Ok(()) }
}

/// The schema is a tree in depth-first order: each element says how many children follow it.
fn check_schema(walker: &mut Walker<'_>) -> Result<(), Malformed> {
    let mut counts = Vec::new();
    walker.elements(|walker, _| {
        let mut children = 0;
        walker.fields(|walker, field| match field.id {
            NUM_CHILDREN => {
                children = walker.size("a number of children")?;
                Ok(())
            }
            _ => walker.skip(field.wire),
        })?;
        counts.push(children);
        Ok(())
    })?;

    // Children still to come, for each open group.
    let mut open: Vec<u32> = Vec::new();
    for (index, children) in counts.iter().copied().enumerate() {
        if children as usize >= counts.len() - index {
            return Err(walker.malformed(format!("a group of {children} among {} elements", counts.len())));
        }
        if let Some(siblings) = open.last_mut() {
            *siblings -= 1;
        } else if index > 0 {
            return Err(walker.malformed("a second root of the schema"));
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Err(walker.malformed(format!("a schema deeper than {MAX_SCHEMA_DEPTH}")));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    if open.is_empty() { Ok(()) } else { Err(walker.malformed("a schema that lacks elements")) }
}

fn check_row_groups(walker: &mut Walker<'_>, encrypted: &mut bool) -> Result<(), Malformed> {
    let mut count = 0;
    walker.elements(|walker, _| {
        count += 1;
        if count > MAX_ROW_GROUPS {
            return Err(walker.malformed(format!("more than {MAX_ROW_GROUPS} row groups")));
        }
        walker.fields(|walker, field| match field.id {
            COLUMNS => walker.elements(|walker, _| check_column(walker, encrypted)),
            _ => walker.skip(field.wire),
        })
    })
}

fn check_column(walker: &mut Walker<'_>, encrypted: &mut bool) -> Result<(), Malformed> {
    walker.fields(|walker, field| {
        *encrypted |= field.id == COLUMN_CRYPTO && field.wire == Wire::Struct;
        walker.skip(field.wire)
    })
}

#[cfg(test)]
mod tests;
