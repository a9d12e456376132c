//! Checks of a requested lookup that need no dataset.

use std::time::Duration;

use forebay_proto::v1;

use crate::Error;

/// Maximum number of `joins` per lookup.
const MAX_JOINS: usize = 16;

/// Checks a lookup without opening anything.
///
/// # Errors
/// Invalid if `joins` are nested or too many, or `max_age_seconds` is invalid.
pub(crate) fn check_lookup(wanted: &v1::Lookup) -> Result<(), Error> {
    if wanted.joins.len() > MAX_JOINS {
        let found = wanted.joins.len();
        return Err(Error::invalid(format!("joins: names {found} lookups, expected at most {MAX_JOINS}")));
    }
    if wanted.joins.iter().any(|other| !other.joins.is_empty()) {
        return Err(Error::invalid(
            "joins: a joined lookup has `joins` of its own; move them to the outer `joins`",
        ));
    }
    std::iter::once(wanted).chain(&wanted.joins).try_for_each(|part| max_age(part).map(drop))
}

/// Maximum age of the snapshot of an answer; `None`, which is 0 on the wire, means no limit.
///
/// # Errors
/// Invalid if `max_age_seconds` is negative or not a number.
pub(crate) fn max_age(wanted: &v1::Lookup) -> Result<Option<Duration>, Error> {
    let seconds = wanted.max_age_seconds;
    let invalid = || {
        Error::invalid(format!(
            "lookup.max_age_seconds: is {seconds:?}, expected a number of seconds up to 1e19, or 0 for no limit"
        ))
    };
    let age = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
    Ok((!age.is_zero()).then_some(age))
}
