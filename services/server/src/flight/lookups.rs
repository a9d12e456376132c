//! What lookups have in common, however they come; and those whose request carries its keys.

use std::{collections::HashSet, mem, sync::Arc};

use arrow_array::{ArrayRef, Int64Array, LargeStringArray, RecordBatch};
use arrow_schema::SchemaRef;
use forebay_inference::{Answer, Lookup};
use forebay_loader::WireBatch;
use forebay_proto::v1::{self, KeyColumn, LookupMetadata};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::{Context, exchange::unless_drained};
use crate::{
    door::Access,
    online::max_age,
    status,
    traces::{Trace, number},
};

/// The answer to a lookup whose request carries its keys.
pub(super) struct LookedUp {
    pub(super) schema: SchemaRef,
    pub(super) batch: WireBatch,
    pub(super) about: LookupMetadata,
    /// Its place among what runs; for whoever sends it to give back.
    pub(super) permit: OwnedSemaphorePermit,
}

impl Context {
    /// A place among the exchanges and lookups that may run at a time.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, Status> {
        let limit = self.limits.max_streams;
        let full = "exchanges and lookups are running, which is limits.max_streams";
        let permit = Arc::clone(&self.exchanges).try_acquire_owned();
        permit.map_err(|_| Status::resource_exhausted(format!("{limit} {full}")))
    }

    /// The rows of the keys in the request.
    ///
    /// # Errors
    /// As an exchange, and `INVALID_ARGUMENT` for keys that are none.
    pub(super) async fn look_up(
        &self,
        access: &Access,
        mut wanted: v1::Lookup,
        trace: Option<&Trace>,
    ) -> Result<LookedUp, Status> {
        let permit = self.enter()?;
        self.check_access(access, &wanted)?;
        let keys = mem::take(&mut wanted.keys);
        let mut lookup = self.online.lookup(&self.datasets, access, &wanted).await?;
        let keys = key_batch(keys, self.online.max_keys())?;
        let (schema, answer, about) = self.answer(&mut lookup, &wanted, &keys).await?;
        if let Some(trace) = trace {
            trace.note("forebay.rows", number(keys.num_rows() as u64));
            trace.note("forebay.found", number(about.found));
        }
        Ok(LookedUp { schema, batch: answer.batch, about, permit })
    }

    /// The rows of `keys`, their schema, and of which snapshots they are.
    pub(super) async fn answer(
        &self,
        lookup: &mut Lookup,
        wanted: &v1::Lookup,
        keys: &RecordBatch,
    ) -> Result<(SchemaRef, Answer, LookupMetadata), Status> {
        let answer = unless_drained(&self.guard, lookup.look_up(keys)).await?;
        let answer = answer.and_then(|answer| Ok((lookup.schema(&answer.residents)?, answer)));
        let (schema, answer) =
            answer.map_err(|error| self.datasets.stream_status(&wanted.dataset, &error))?;
        let about = self.about(wanted, &answer)?;
        Ok((schema, answer, about))
    }

    /// Refuses a caller who may not read all of the datasets of a lookup.
    pub(super) fn check_access(&self, access: &Access, wanted: &v1::Lookup) -> Result<(), Status> {
        access.check(&wanted.dataset)?;
        wanted.with.iter().try_for_each(|other| access.check(&other.dataset))
    }

    /// Of which snapshots the rows of an answer are.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when one was last seen to be current longer ago than was wanted.
    pub(super) fn about(&self, wanted: &v1::Lookup, answer: &Answer) -> Result<LookupMetadata, Status> {
        let mut parts = Vec::with_capacity(1 + wanted.with.len());
        for ((resident, found), wanted) in
            answer.residents.iter().zip(&answer.found).zip(std::iter::once(wanted).chain(&wanted.with))
        {
            let snapshot = resident.snapshot().id();
            let age = self.datasets.age(&wanted.dataset, snapshot);
            if let Some(most) = max_age(wanted)?
                && age.is_none_or(|age| age > most)
            {
                let seen = age.map_or("was seen to be current nobody knows when".to_owned(), |age| {
                    format!("was last seen to be current {age:?} ago")
                });
                let dataset = &wanted.dataset;
                return Err(Status::failed_precondition(format!(
                    "dataset '{dataset}': snapshot {snapshot} {seen}, max_age is {most:?}"
                )));
            }
            let age = age.map(|age| age.as_secs_f64());
            parts.push(LookupMetadata {
                snapshot: snapshot.to_owned(),
                age,
                found: *found,
                with: Vec::new(),
            });
        }
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or_else(|| Status::internal("an answer of no dataset"))?;
        Ok(LookupMetadata { with: parts.collect(), ..first })
    }
}

/// The keys of a request as a batch of them would be sent in an exchange. Nothing is made of more than `max_keys`.
fn key_batch(columns: Vec<KeyColumn>, max_keys: usize) -> Result<RecordBatch, Status> {
    let invalid = |detail: &str| Status::invalid_argument(status::clip(&format!("keys: {detail}")));
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
            return Err(invalid(&format!("column '{name}' stands twice")));
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
