//! Lookups, over DoGet, DoExchange and `Online.Lookup`.

use std::{collections::HashSet, mem, sync::Arc};

use super::Context;
use crate::{
    Error,
    auth::Access,
    callers::{Charge, Resource},
    lookup_request::max_age,
    services::Services,
    traces::{Trace, number},
};
use arrow_array::{ArrayRef, Int64Array, LargeStringArray, RecordBatch};
use arrow_schema::SchemaRef;
use forebay_inference::{Answer, Lookup, LookupKeys};
use forebay_loader::WireBatch;
use forebay_proto::v1::{self, KeyColumn, LookupMetadata};

/// Answer of a lookup whose request holds its keys.
pub(super) struct LookedUp {
    pub(super) schema: SchemaRef,
    pub(super) batch: WireBatch,
    pub(super) about: LookupMetadata,
    /// Bytes of the answer.
    pub(super) charge: Charge,
}

impl Context {
    /// Looks up the keys in the request.
    ///
    /// # Errors
    /// The errors of a DoExchange lookup, and invalid if the keys are malformed.
    pub(super) async fn look_up(
        &self,
        access: &Access,
        mut wanted: v1::Lookup,
        trace: Option<&Trace>,
    ) -> Result<LookedUp, Error> {
        let caller = access.caller();
        self.check_access(access, &wanted)?;
        let keys = mem::take(&mut wanted.keys);
        let mut lookup = self.services.online.lookup(&self.services.datasets, access, &wanted).await?;
        let keys = key_batch(keys, self.services.online.max_keys())?;
        let encoded = self.encode(&mut lookup, &wanted, &keys).await?;
        let (schema, answer, about) = self.answer(&mut lookup, &wanted, encoded).await?;
        if let Some(trace) = trace {
            trace.note("forebay.rows", number(keys.num_rows() as u64));
            trace.note("forebay.found", number(about.found));
        }
        let bytes = answer.batch.body.len() as u64;
        let charge = self.services.callers.take(&caller, Resource::UnsentBytes, bytes)?;
        Ok(LookedUp { schema, batch: answer.batch, about, charge })
    }

    /// Loads the views of a lookup of `wanted`, and returns the schema of its answers.
    pub(super) async fn prepare(&self, lookup: &mut Lookup, wanted: &v1::Lookup) -> Result<SchemaRef, Error> {
        let Services { datasets, drain, .. } = &self.services;
        let lookup_rows = drain.unless_interrupted(lookup.lookup_rows()).await?;
        let schema = lookup_rows.and_then(|lookup_rows| lookup.schema(&lookup_rows));
        schema.map_err(|error| datasets.stream_error(&wanted.dataset, error))
    }

    /// Validates and encodes the keys of a lookup of `wanted`.
    pub(super) async fn encode(
        &self,
        lookup: &mut Lookup,
        wanted: &v1::Lookup,
        keys: &RecordBatch,
    ) -> Result<LookupKeys, Error> {
        let Services { datasets, drain, .. } = &self.services;
        let keys = drain.unless_interrupted(lookup.encode(keys)).await?;
        keys.map_err(|error| datasets.stream_error(&wanted.dataset, error))
    }

    /// Looks up `keys`. Returns their rows, the schema, and the snapshots of the rows.
    pub(super) async fn answer(
        &self,
        lookup: &mut Lookup,
        wanted: &v1::Lookup,
        keys: LookupKeys,
    ) -> Result<(SchemaRef, Answer, LookupMetadata), Error> {
        let answer = self.services.drain.unless_interrupted(lookup.gather(keys, 0)).await?;
        let answer = answer.and_then(|answer| Ok((lookup.schema(&answer.lookup_rows)?, answer)));
        let (schema, answer) =
            answer.map_err(|error| self.services.datasets.stream_error(&wanted.dataset, error))?;
        let about = self.metadata(wanted, &answer)?;
        Ok((schema, answer, about))
    }

    /// Checks that the caller may read all datasets of a lookup.
    pub(super) fn check_access(&self, access: &Access, wanted: &v1::Lookup) -> Result<(), Error> {
        access.check(&wanted.dataset)?;
        wanted.joins.iter().try_for_each(|other| access.check(&other.dataset))
    }

    /// Snapshots of the rows of an answer.
    ///
    /// # Errors
    /// A precondition error if a snapshot was last verified to be current longer ago than `max_age_seconds`.
    pub(super) fn metadata(&self, wanted: &v1::Lookup, answer: &Answer) -> Result<LookupMetadata, Error> {
        let mut parts = Vec::with_capacity(1 + wanted.joins.len());
        for ((resident, found), wanted) in
            answer.lookup_rows.iter().zip(&answer.found).zip(std::iter::once(wanted).chain(&wanted.joins))
        {
            let snapshot = resident.snapshot().id();
            let age = self.services.datasets.age(&wanted.dataset, snapshot);
            if let Some(most) = max_age(wanted)?
                && age.is_none_or(|age| age > most)
            {
                let verified = age.map_or("was not verified to be current".to_owned(), |age| {
                    format!("was last verified to be current {age:?} ago")
                });
                let dataset = &wanted.dataset;
                return Err(Error::precondition(format!(
                    "dataset '{dataset}': snapshot {snapshot} {verified}, the limit (max_age_seconds) is {most:?}"
                )));
            }
            let age = age.map(|age| age.as_secs_f64());
            parts.push(LookupMetadata {
                snapshot: snapshot.to_owned(),
                snapshot_age_seconds: age,
                found: *found,
                joins: Vec::new(),
                error: None,
            });
        }
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or_else(|| Error::internal("an answer without a dataset"))?;
        Ok(LookupMetadata { joins: parts.collect(), ..first })
    }
}

/// Converts the keys of a request to a batch, as DoExchange receives them. More than `max_keys` keys are rejected before any
/// allocation.
fn key_batch(columns: Vec<KeyColumn>, max_keys: usize) -> Result<RecordBatch, Error> {
    let invalid = |detail: &str| Error::invalid(format!("keys: {detail}"));
    let Some(first) = columns.first().map(|first| first.name.clone()) else {
        return Err(invalid("are missing, expected a column of integers or strings for each of the key's"));
    };
    let most = columns.iter().map(count).max().unwrap_or(0);
    if most == 0 {
        return Err(invalid(&format!("column '{first}' has none, expected integers or strings")));
    }
    if most > max_keys {
        return Err(invalid(&format!("{most} at once, expected at most {max_keys}")));
    }
    let mut names = HashSet::new();
    let mut arrays = Vec::with_capacity(columns.len());
    for column in columns {
        let (name, found) = (column.name.clone(), count(&column));
        if name.is_empty() {
            return Err(invalid("a column has no name"));
        }
        if !names.insert(name.clone()) {
            return Err(invalid(&format!("column '{name}' is given twice")));
        }
        if !column.integers.is_empty() && !column.strings.is_empty() {
            return Err(invalid(&format!(
                "column '{name}' has both integers and strings, expected one of them"
            )));
        }
        if found != most {
            return Err(invalid(&format!(
                "column '{name}' has {found}, others have {most}; expected as many of each"
            )));
        }
        arrays.push((name, array(column)));
    }
    RecordBatch::try_from_iter(arrays).map_err(|error| invalid(&error.to_string()))
}

fn count(column: &KeyColumn) -> usize {
    column.integers.len().max(column.strings.len())
}

fn array(column: KeyColumn) -> ArrayRef {
    if column.strings.is_empty() {
        return Arc::new(Int64Array::from(column.integers));
    }
    Arc::new(LargeStringArray::from(column.strings))
}

#[cfg(test)]
mod tests;
