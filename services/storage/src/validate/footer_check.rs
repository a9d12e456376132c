//! Structural check of a footer, before a decoder allocates what the footer claims.

use crate::validate::{
    parquet_shapes::{COLUMN_CRYPTO, COLUMNS, ENCRYPTION, FILE_METADATA, NUM_CHILDREN, ROW_GROUPS, SCHEMA},
    thrift::{Malformed, Walker, Wire},
};

/// Maximum nesting of groups in the schema. The decoder recurses once per level.
const MAX_SCHEMA_DEPTH: usize = 64;

/// Maximum number of row groups. The decoder numbers them with 15 bits.
const MAX_ROW_GROUPS: usize = 1 << 15;

/// Checks a serialized `FileMetaData`. Returns true if the file is encrypted.
///
/// # Errors
/// If it is malformed, or its lengths exceed its bytes.
pub(crate) fn check_footer(bytes: &[u8]) -> Result<bool, Malformed> {
    let mut walker = Walker::new(bytes);
    walker.conform(&FILE_METADATA)?;

    // The code below relies on the wire types, which are checked above.
    let mut encrypted = false;
    Walker::new(bytes).fields(|walker, field| match field.id {
        SCHEMA => check_schema(walker),
        ROW_GROUPS => check_row_groups(walker, &mut encrypted),
        id => {
            encrypted |= id == ENCRYPTION;
            walker.skip(field.wire)
        }
    })?;
    // In an encrypted file with a plain-text footer, a signature follows the footer.
    if !encrypted && walker.offset() != bytes.len() {
        return Err(walker.malformed("bytes after the end of the footer"));
    }
    Ok(encrypted)
}

/// Checks that the schema is one tree in depth-first order. Each element holds its number of children.
fn check_schema(walker: &mut Walker<'_>) -> Result<(), Malformed> {
    let mut counts = Vec::new();
    walker.elements(|walker, _| {
        let mut children = 0;
        walker.fields(|walker, field| match field.id {
            NUM_CHILDREN => {
                children = walker.size("number of children")?;
                Ok(())
            }
            _ => walker.skip(field.wire),
        })?;
        counts.push(children);
        Ok(())
    })?;

    // Number of missing children of each open group.
    let mut open: Vec<u32> = Vec::new();
    for (index, children) in counts.iter().copied().enumerate() {
        if children as usize >= counts.len() - index {
            return Err(walker.malformed(format!(
                "a group of {children} children in a schema of {} elements",
                counts.len()
            )));
        }
        if let Some(siblings) = open.last_mut() {
            *siblings -= 1;
        } else if index > 0 {
            return Err(walker.malformed("the schema has a second root"));
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Err(walker.malformed(format!("the schema is deeper than {MAX_SCHEMA_DEPTH} levels")));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    if open.is_empty() { Ok(()) } else { Err(walker.malformed("the schema lacks elements")) }
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
