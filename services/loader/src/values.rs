//! Sets of values that the filters of requests refer to, from the state.

mod memory;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use forebay_cache::Budget;
use forebay_proto::v1;
use forebay_sql::ValueSet;
use forebay_storage::{Documents, State};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{Error, Flow, Pool, Priority};
use memory::SetsMemory;

/// Maximum size of an encoded set, in bytes: 4 million integers. A request waits until its sets are uploaded and read.
pub const MAX_SET_BYTES: u64 = 32 << 20;
/// Maximum number of sets of a request.
const MAX_SETS: usize = 16;
/// Maximum number of sets that are read from the state at once. Their size is known, and charged, only after that.
const MAX_READS: usize = 2;
/// Maximum length of the name of a set, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Number of hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// Named sets of a request.
pub(crate) type NamedSets = Vec<(String, Arc<ValueSet>)>;

/// Sets of values in the state. A set in use is read once, and shared by all requests. Cheap to clone; clones share the sets.
#[derive(Clone)]
pub struct StoredValues {
    /// `None` without a state.
    documents: Option<Documents>,
    /// Sets in use, by hash.
    known: Arc<Mutex<HashMap<String, Arc<Slot>>>>,
    /// Memory of sets in use.
    memory: SetsMemory,
    /// Limit of the sets that are read and not charged yet.
    reads: Arc<Semaphore>,
}

/// A set. Locked while it is read, so that concurrent requests read it once.
type Slot = tokio::sync::Mutex<Weak<ValueSet>>;

impl Default for StoredValues {
    fn default() -> Self {
        let reads = Arc::new(Semaphore::new(MAX_READS));
        Self { documents: None, known: Arc::default(), memory: SetsMemory::default(), reads }
    }
}

impl StoredValues {
    /// The sets in `state`.
    pub fn new(state: &State) -> Self {
        Self { documents: Some(Self::documents(state)), ..Self::default() }
    }

    /// Returns these sets, whose memory while they are in use is a part of `budget`.
    pub(crate) fn charged_to(self, budget: Budget) -> Self {
        Self { memory: SetsMemory::of(budget), ..self }
    }

    /// Documents with the encoded sets, named by their hashes.
    pub fn documents(state: &State) -> Documents {
        // The envelope has one line.
        state.documents("values", "values", MAX_SET_BYTES + 4096)
    }

    /// True if a request uses or is reading the set with the hash `sha256`.
    pub fn is_in_use(&self, sha256: &str) -> bool {
        let slot = self.known.lock().get(sha256).cloned();
        slot.is_some_and(|slot| slot.try_lock().map_or(true, |set| set.strong_count() > 0))
    }

    /// Reads the sets of `train`.
    ///
    /// # Errors
    /// [`Error::MissingValues`] with all that are not stored; [`Error::TooLarge`] with both sizes for a set that does not fit in memory;
    /// [`Error::Unavailable`] for one that does not fit besides those in use.
    pub(crate) async fn of(&self, train: &v1::Train, pool: &Pool, flow: Flow) -> Result<NamedSets, Error> {
        check_form(train)?;
        let (mut sets, mut missing) = (Vec::with_capacity(train.values.len()), Vec::new());
        for v1::NamedValues { name, sha256, .. } in &train.values {
            match self.get(name, sha256, pool, flow).await? {
                Some(set) => sets.push((name.clone(), set)),
                None => missing.push((name.clone(), sha256.clone())),
            }
        }
        if missing.is_empty() { Ok(sets) } else { Err(Error::MissingValues { missing }) }
    }

    async fn get(
        &self,
        name: &str,
        sha256: &str,
        pool: &Pool,
        flow: Flow,
    ) -> Result<Option<Arc<ValueSet>>, Error> {
        let slot = {
            let mut known = self.known.lock();
            if !known.contains_key(sha256) {
                known.retain(|_, slot| {
                    Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|set| set.strong_count() > 0)
                });
            }
            Arc::clone(known.entry(sha256.to_owned()).or_default())
        };
        let mut held = slot.lock().await;
        if let Some(set) = held.upgrade() {
            return Ok(Some(set));
        }
        let Some(documents) = &self.documents else { return Ok(None) };
        let permit = self.reads.acquire().await.map_err(|error| Error::Internal(error.to_string()))?;
        let encoded = match documents.get_bytes(sha256).await {
            Ok(encoded) => encoded,
            // The client sends it again. No set is stored that exceeds the limit, so that one that does is damaged, too.
            Err(error @ (forebay_storage::Error::Corrupt { .. } | forebay_storage::Error::Limit { .. })) => {
                tracing::warn!(%error, "a stored set of values is damaged and treated as missing");
                None
            }
            Err(error) => return Err(error.into()),
        };
        let Some(encoded) = encoded else { return Ok(None) };
        let memory = self.memory.take(name, flow.tenant(), ValueSet::memory_bytes(&encoded)).await?;
        drop(permit);
        let expected = sha256.to_owned();
        let read = move || {
            let set = ValueSet::read(encoded.into()).and_then(|set| match set.sha256() == expected {
                true => Ok(set),
                false => Err(format!("has the hash {}", set.sha256())),
            });
            match set {
                Ok(set) => Ok(Some(Arc::new(set.charged_to(Box::new(memory))))),
                Err(detail) => {
                    tracing::warn!(
                        sha256 = expected,
                        detail,
                        "a stored set of values is damaged and treated as missing"
                    );
                    Ok(None)
                }
            }
        };
        let set = pool.run_for(flow, Priority::Interactive, read).await?;
        *held = set.as_ref().map_or_else(Weak::new, Arc::downgrade);
        Ok(set)
    }
}

/// Checks the names and hashes of the sets of a request.
fn check_form(train: &v1::Train) -> Result<(), Error> {
    let invalid = |reason: String| Err(Error::invalid("values", reason));
    if train.values.len() > MAX_SETS {
        return invalid(format!("holds {} sets, expected at most {MAX_SETS}", train.values.len()));
    }
    let mut names = HashSet::new();
    for v1::NamedValues { name, sha256, .. } in &train.values {
        let mut letters = name.chars();
        let is_name = letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !is_name || name.len() > MAX_NAME_BYTES {
            return invalid(format!(
                "'{name}' is no name, expected a letter and then letters, digits and '_', {MAX_NAME_BYTES} at most"
            ));
        }
        if !names.insert(name) {
            return invalid(format!("'{name}' occurs twice"));
        }
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if sha256.len() != HASH_DIGITS || !sha256.bytes().all(is_digit) {
            return invalid(format!(
                "'{name}' has the hash '{sha256}', expected {HASH_DIGITS} hexadecimal digits"
            ));
        }
    }
    Ok(())
}

/// Checks that each set of a request is used in one of its filters.
///
/// # Errors
/// [`Error::Invalid`] with the first one that is not.
pub(crate) fn check_used(train: &v1::Train) -> Result<(), Error> {
    check_form(train)?;
    let filters = || std::iter::once(&train.filter).chain(train.mix.iter().map(|mixed| &mixed.filter));
    match train
        .values
        .iter()
        .find(|set| !filters().any(|filter| refers_to(filter, &set.name).next().is_some()))
    {
        Some(v1::NamedValues { name, .. }) => Err(Error::invalid(
            "values",
            format!("'{name}' is not used, expected a filter with IN (:{name})"),
        )),
        None => Ok(()),
    }
}

/// Positions in `filter` after each `:name`.
fn refers_to<'a>(filter: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    filter.match_indices(':').filter_map(move |(at, _)| {
        let rest = filter[at + 1..].strip_prefix(name)?;
        let ends = !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        ends.then_some(filter.len() - rest.len())
    })
}

/// The filter of a request with the numbers of values of its sets, such as `id IN (:ids: 100000 values)`.
pub fn described_filter(filter: &str, values: &[v1::NamedValues]) -> String {
    let notes = values.iter().flat_map(|set| {
        let note = if set.count == 1 { ": 1 value".to_owned() } else { format!(": {} values", set.count) };
        refers_to(filter, &set.name).map(move |end| (end, note.clone()))
    });
    let mut notes: Vec<(usize, String)> = notes.collect();
    notes.sort_unstable();
    let mut described = filter.to_owned();
    notes.into_iter().rev().for_each(|(end, note)| described.insert_str(end, &note));
    described
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, count: u64) -> v1::NamedValues {
        v1::NamedValues { name: name.into(), sha256: "0".repeat(HASH_DIGITS), count }
    }

    #[test]
    fn a_described_filter_has_the_numbers_of_values() {
        let values = [set("ids", 100_000), set("i", 1)];
        let described = described_filter("id IN (:ids) OR (k NOT IN ( :i ) AND :idsx)", &values);
        assert_eq!(described, "id IN (:ids: 100000 values) OR (k NOT IN ( :i: 1 value ) AND :idsx)");
        assert_eq!(described_filter("x > 1", &values), "x > 1");
    }

    #[test]
    fn a_set_is_in_use_while_it_is_read_or_held() {
        let stored = StoredValues::default();
        assert!(!stored.is_in_use("a"));
        let slot = Arc::new(Slot::default());
        stored.known.lock().insert("a".to_owned(), Arc::clone(&slot));
        assert!(!stored.is_in_use("a"));
        let reading = slot.try_lock().unwrap();
        assert!(stored.is_in_use("a") && stored.clone().is_in_use("a"));
        drop(reading);
        assert!(!stored.is_in_use("a") && !stored.is_in_use("b"));
    }

    #[test]
    fn sets_have_valid_names_and_hashes_and_are_used() {
        let train = |filter: &str, values: Vec<v1::NamedValues>| v1::Train {
            filter: filter.into(),
            values,
            ..v1::Train::default()
        };
        assert!(check_used(&train("x IN (:ids)", vec![set("ids", 0)])).is_ok());
        let mixed = v1::Mixed { filter: "x IN (:ids)".into(), ..v1::Mixed::default() };
        assert!(check_used(&v1::Train { mix: vec![mixed], ..train("", vec![set("ids", 0)]) }).is_ok());
        for (filter, values, reason) in [
            ("x IN (:idsx)", vec![set("ids", 0)], "'ids' is not used, expected a filter with IN (:ids)"),
            ("x IN (:a)", vec![set("a", 0), set("a", 0)], "'a' occurs twice"),
            ("x IN (:1)", vec![set("1", 0)], "'1' is no name"),
            (
                "x IN (:a)",
                vec![v1::NamedValues { sha256: "F".repeat(64), ..set("a", 0) }],
                "64 hexadecimal digits",
            ),
            ("", (0..17).map(|number| set(&format!("a{number}"), 0)).collect(), "holds 17 sets"),
        ] {
            let error = check_used(&train(filter, values)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
