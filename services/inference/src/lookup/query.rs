//! Lookups in one or several datasets.

use std::{
    collections::HashSet,
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Instant,
};

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use forebay_loader::{Error, Flow, LookupRows, Priority, Tenant, WireBatch};
use forebay_proto::v1;

use super::{
    Config, LookupKeys, OnlineDataset,
    snapshot::{LoadedSnapshot, ViewKey, view_key},
};
use crate::{RequestColumns, index::KeyIndex, keys::column_named};

/// Maximum bytes of an answer that is gathered on the thread of the connection.
const INLINE_BYTES: u64 = 512 << 10;

/// Maximum bytes of keys and request columns that are encoded on the thread of the connection.
const INLINE_KEY_BYTES: usize = 128 << 10;

/// Successive lookups with the same selection of columns, in one dataset or, after [`join`](Lookup::join), in several.
#[derive(Clone)]
pub struct Lookup {
    datasets: Vec<DatasetLookup>,
    /// Columns that come with the keys and follow the columns of the datasets.
    request_columns: Option<Arc<RequestColumns>>,
    /// Schemas of the datasets and the joined schema of the last answer.
    schema: Option<(Vec<SchemaRef>, SchemaRef)>,
    /// Tenant to which large answers and loaded views belong.
    tenant: Tenant,
}

/// A lookup in one dataset.
#[derive(Clone)]
struct DatasetLookup {
    online: OnlineDataset,
    /// Names of the caller's key columns; empty for the names of the dataset's key.
    columns: Vec<String>,
    /// The selection in its encoded form. A lookup can exist for as long as a stream of its caller, and the decoded form is larger.
    view: ViewKey,
    /// Snapshot and rows of the last answer, with the last-use clock of their view.
    last: Option<(Weak<LoadedSnapshot>, Weak<LookupRows>, Arc<AtomicU64>)>,
}

/// Snapshot and rows of one dataset during a lookup.
struct Source {
    snapshot: Arc<LoadedSnapshot>,
    rows: Arc<LookupRows>,
}

/// Answer to a lookup. All rows of one dataset are from one snapshot.
pub struct Answer {
    /// For each dataset, the rows that the answer was gathered from.
    pub lookup_rows: Vec<Arc<LookupRows>>,
    /// For each dataset, the number of keys that were found.
    pub found: Vec<u64>,
    /// One row per key, in the order of the keys. The columns of the datasets follow each other.
    pub batch: WireBatch,
}

impl OnlineDataset {
    /// Creates a lookup of `select`, `columns` and `tensors`, restricted to rows that match `filter`; the other fields of
    /// `selection` are ignored.
    ///
    /// `key` names the caller's key columns, in the order of the dataset's key; empty for the names of the dataset's key.
    pub fn lookup(&self, selection: &v1::Train, key: Vec<String>) -> Lookup {
        let view = view_key(&super::dataset::selection(self.dataset(), selection));
        let dataset = DatasetLookup { online: self.clone(), columns: key, view, last: None };
        Lookup { datasets: vec![dataset], request_columns: None, schema: None, tenant: Tenant::SERVER }
    }
}

impl Lookup {
    /// Adds the datasets of another lookup, whose columns follow those of this one.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.datasets.extend(other.datasets);
        self
    }

    /// Adds columns that come with the keys. In answers they follow the columns of the datasets.
    #[must_use]
    pub fn with_request_columns(self, columns: Arc<RequestColumns>) -> Self {
        let request_columns = (!columns.schema().fields().is_empty()).then_some(columns);
        Self { request_columns, ..self }
    }

    /// Makes the work for large answers work of `tenant`, and the views that the lookup loads views of `tenant`.
    #[must_use]
    pub fn of_tenant(self, tenant: Tenant) -> Self {
        Self { tenant, ..self }
    }

    /// Memory of the selections and of the names of the caller's key columns, in bytes.
    pub fn request_bytes(&self) -> u64 {
        let bytes = |dataset: &DatasetLookup| {
            let names = dataset.columns.iter().map(|name| size_of::<String>() + name.len());
            dataset.view.len() + names.sum::<usize>()
        };
        self.datasets.iter().map(bytes).sum::<usize>() as u64
    }

    /// Tenant of the work for large answers.
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Returns the current rows of each dataset. Loads them on first use.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid selection; [`Error::TooLarge`] if the rows do not fit in memory; [`Error::Unavailable`]
    /// before the first snapshot is loaded.
    pub async fn lookup_rows(&mut self) -> Result<Vec<Arc<LookupRows>>, Error> {
        Ok(self.sources().await?.into_iter().map(|source| source.rows).collect())
    }

    /// Names and types of the caller's key columns, each once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] before the first snapshot of a dataset is loaded; [`Error::Invalid`] if the request names another
    /// number of columns than the key of a dataset has.
    pub fn key_columns(&self) -> Result<Vec<(String, DataType)>, Error> {
        let mut columns: Vec<(String, DataType)> = Vec::new();
        for dataset in &self.datasets {
            let current = dataset.online.current().ok_or_else(|| dataset.online.not_loaded())?;
            let expected = current.index.key().columns();
            let names: Vec<&String> = match dataset.columns.as_slice() {
                [] => expected.iter().map(|(name, _)| name).collect(),
                names => names.iter().collect(),
            };
            if names.len() != expected.len() {
                return Err(dataset.other_columns(expected.len()));
            }
            for (name, (_, data_type)) in names.into_iter().zip(expected) {
                if columns.iter().all(|(known, _)| known != name) {
                    columns.push((name.clone(), data_type.clone()));
                }
            }
        }
        Ok(columns)
    }

    /// Names of the columns of a request that are read: the caller's key columns and the request columns. A name can appear twice.
    pub fn request_names(&self) -> Vec<String> {
        let keys = self.datasets.iter().flat_map(|dataset| match dataset.columns.as_slice() {
            [] => dataset.online.key_names(),
            names => names,
        });
        let columns = self.request_columns.iter().flat_map(|columns| columns.schema().fields());
        keys.cloned().chain(columns.map(|field| field.name().clone())).collect()
    }

    /// Returns the schema of answers: the columns of the first dataset, then those of the others, whose column `found` is named
    /// `DATASET_found`, then the request columns.
    ///
    /// # Errors
    /// [`Error::Invalid`] if two columns have the same name.
    pub fn schema(&mut self, lookup_rows: &[Arc<LookupRows>]) -> Result<SchemaRef, Error> {
        if let ([only], None) = (lookup_rows, &self.request_columns) {
            return Ok(Arc::clone(only.view().schema()));
        }
        let schemas = || lookup_rows.iter().map(|rows| rows.view().schema());
        if let Some((before, schema)) = &self.schema
            && before.len() == lookup_rows.len()
            && before.iter().zip(schemas()).all(|(one, other)| Arc::ptr_eq(one, other))
        {
            return Ok(Arc::clone(schema));
        }
        let schema = self.joined_schema(lookup_rows)?;
        self.schema = Some((schemas().cloned().collect(), Arc::clone(&schema)));
        Ok(schema)
    }

    fn joined_schema(&self, lookup_rows: &[Arc<LookupRows>]) -> Result<SchemaRef, Error> {
        let (mut fields, mut names): (Vec<Field>, HashSet<String>) = Default::default();
        for (at, (dataset, rows)) in self.datasets.iter().zip(lookup_rows).enumerate() {
            let dataset_fields = rows.view().schema().fields();
            for (place, field) in dataset_fields.iter().enumerate() {
                let mut field = field.as_ref().clone();
                if at > 0 && place + 1 == dataset_fields.len() {
                    field.set_name(format!("{}_{}", dataset.name(), field.name()));
                }
                if !names.insert(field.name().clone()) {
                    let reason = format!(
                        "'{}' of dataset '{}' appears twice in the answer; rename it with `select` and `AS`, or list \
                         the columns",
                        field.name(),
                        dataset.name()
                    );
                    return Err(Error::invalid("joins", reason));
                }
                fields.push(field);
            }
        }
        for field in self.request_columns.iter().flat_map(|columns| columns.schema().fields()) {
            if !names.insert(field.name().clone()) {
                let reason = format!("'{}' is also the name of a feature; rename one of them", field.name());
                return Err(Error::invalid("request_columns", reason));
            }
            fields.push(field.as_ref().clone());
        }
        Ok(Arc::new(Schema::new(fields)))
    }

    /// Looks up the rows of `keys`, a batch with one column per key column.
    ///
    /// # Errors
    /// As [`lookup_rows`](Self::lookup_rows), and [`Error::Invalid`] for keys of an incompatible type or too many keys.
    pub async fn look_up(&mut self, keys: &RecordBatch) -> Result<Answer, Error> {
        let keys = self.encode(keys).await?;
        self.gather(keys, 0).await
    }

    /// Validates and encodes a batch of keys, and copies its request columns.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    pub async fn encode(&mut self, keys: &RecordBatch) -> Result<LookupKeys, Error> {
        if let Some(dataset) = self.datasets.first() {
            dataset.check_count(keys.num_rows())?;
        }
        let max_inline_keys = self.datasets.first().map_or(0, |first| first.online.config().max_inline_keys);
        let sources = self.sources().await?;
        let row_bytes = sources.iter().map(|source| source.rows.row_bytes()).sum();
        let of_dataset = |(dataset, source): (&DatasetLookup, Source)| {
            let index = Arc::clone(&source.snapshot.index);
            let columns = dataset.key_columns(keys, &index)?;
            Ok::<_, Error>((index, columns))
        };
        let parts: Vec<_> = self.datasets.iter().zip(sources).map(of_dataset).collect::<Result<_, _>>()?;
        let is_short = keys.num_rows() <= max_inline_keys
            && keys.columns().iter().map(bytes_of).sum::<usize>() <= INLINE_KEY_BYTES;
        let (request_columns, keys) = (self.request_columns.clone(), keys.clone());
        let encode = move || {
            let encode = |(index, columns): (Arc<KeyIndex>, RecordBatch)| {
                let encoded = index.key().encode(&columns)?;
                Ok::<_, Error>((index, encoded))
            };
            let datasets = parts.into_iter().map(encode).collect::<Result<_, _>>()?;
            let columns = request_columns.iter().map(|columns| columns.read(&keys));
            let columns: Vec<RecordBatch> = columns.collect::<Result<_, _>>()?;
            let column_bytes =
                columns.iter().flat_map(RecordBatch::columns).map(|column| bytes_of(column) as u64).sum();
            Ok(LookupKeys { datasets, columns, column_bytes, row_bytes })
        };
        match self.datasets.first() {
            Some(first) if !is_short => {
                let flow = Flow::of(self.tenant);
                first.online.lookup_pool().run_for(flow, Priority::Interactive, encode).await
            }
            _ => encode(),
        }
    }

    /// Gathers the rows of `keys` and their request columns, padded with rows of nulls and zeros to at least `min_rows` rows.
    ///
    /// # Errors
    /// As [`lookup_rows`](Self::lookup_rows), and [`Error::TooLarge`] if the answer exceeds `max_answer_bytes`;
    /// [`Error::Unavailable`] if a new snapshot changed the type of the key since the keys were encoded.
    pub async fn gather(&mut self, keys: LookupKeys, min_rows: usize) -> Result<Answer, Error> {
        let Some(first) = self.datasets.first() else {
            return Err(Error::Internal("the lookup has no dataset".into()));
        };
        let (online, count) = (first.online.clone(), keys.len().max(min_rows));
        let started = Instant::now();
        let sources = self.sources().await?;
        for (dataset, (source, (index, _))) in self.datasets.iter().zip(sources.iter().zip(&keys.datasets)) {
            let current = &source.snapshot.index;
            if !Arc::ptr_eq(current, index) && current.key() != index.key() {
                let reason = format!(
                    "dataset '{}': a new snapshot changed the type of the key; retry",
                    dataset.name()
                );
                return Err(Error::Unavailable(reason));
            }
        }
        let row_bytes: u64 = sources.iter().map(|source| source.rows.row_bytes()).sum();
        let padding = count.saturating_sub(keys.len()) as u64;
        let padding_bytes =
            padding.saturating_mul(self.request_columns.as_ref().map_or(0, |columns| columns.row_bytes()));
        let bytes =
            (count as u64).saturating_mul(row_bytes).saturating_add(keys.column_bytes + padding_bytes);
        let Config { max_inline_keys, .. } = *online.config();
        let is_short = count <= max_inline_keys && bytes <= INLINE_BYTES;
        let request_columns = self.request_columns.clone();
        let answer = move || {
            let (mut lookup_rows, mut batches) = (Vec::new(), Vec::new());
            for (Source { snapshot, rows }, (_, keys)) in sources.into_iter().zip(&keys.datasets) {
                let mut numbers = snapshot.index.rows(keys);
                numbers.resize(numbers.len().max(min_rows), None);
                batches.push(rows.gather(numbers).map_err(of_answer)?);
                lookup_rows.push(rows);
            }
            let found = batches.iter().map(|batch| batch.rows).collect();
            if let Some(columns) = request_columns {
                batches.push(columns.join(&keys.columns, count)?);
            }
            Ok(Answer { lookup_rows, found, batch: WireBatch::join_columns(batches).map_err(of_answer)? })
        };
        let flow = Flow::of(self.tenant);
        let answer: Answer = match is_short {
            true => answer(),
            false => online.lookup_pool().run_for(flow, Priority::Interactive, answer).await,
        }?;
        metrics::counter!("forebay_lookup_keys_total").increment(count as u64);
        metrics::counter!("forebay_lookup_keys_found_total").increment(answer.found.iter().sum());
        metrics::histogram!("forebay_lookup_duration_seconds").record(started.elapsed());
        Ok(answer)
    }

    async fn sources(&mut self) -> Result<Vec<Source>, Error> {
        let mut sources = Vec::with_capacity(self.datasets.len());
        for dataset in &mut self.datasets {
            sources.push(dataset.source(self.tenant).await?);
        }
        Ok(sources)
    }
}

/// Bytes of the values of a column.
fn bytes_of(column: &ArrayRef) -> usize {
    column.to_data().get_slice_memory_size().unwrap_or(0)
}

/// Returns the error of an answer, whose size has another limit than that of a batch.
fn of_answer(error: Error) -> Error {
    match error {
        Error::TooLarge { needed, limit, .. } => Error::TooLarge {
            what: "the answer".to_owned(),
            needed,
            limit,
            advice: "send fewer keys at a time, request fewer columns or raise lookups.max_answer_bytes"
                .to_owned(),
        },
        other => other,
    }
}

impl DatasetLookup {
    fn name(&self) -> &str {
        self.online.dataset()
    }

    fn check_count(&self, count: usize) -> Result<(), Error> {
        let Config { max_keys, .. } = *self.online.config();
        if count > max_keys {
            return Err(Error::invalid("keys", format!("{count} at once, expected at most {max_keys}")));
        }
        Ok(())
    }

    /// Returns the caller's key columns under the names of the dataset's key.
    fn key_columns(&self, keys: &RecordBatch, index: &KeyIndex) -> Result<RecordBatch, Error> {
        let expected = index.key().columns();
        if self.columns.is_empty() {
            return Ok(keys.clone());
        }
        if self.columns.len() != expected.len() {
            return Err(self.other_columns(expected.len()));
        }
        let column = |(name, (key_name, _)): (&String, &(String, _))| {
            Ok::<_, Error>((key_name.clone(), Arc::clone(column_named(keys, name)?), true))
        };
        let columns = self.columns.iter().zip(expected).map(column).collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_from_iter_with_nullable(columns)
            .map_err(|error| Error::invalid("keys", error.to_string()))
    }

    /// The error of a request that does not name as many columns as the key has.
    fn other_columns(&self, expected: usize) -> Error {
        let (found, name) = (self.columns.len(), self.name());
        Error::invalid(
            "key",
            format!("names {found} columns, expected {expected} as in the key of dataset '{name}'"),
        )
    }

    async fn source(&mut self, tenant: Tenant) -> Result<Source, Error> {
        let current = self.online.current().ok_or_else(|| self.online.not_loaded())?;
        if let Some((snapshot, rows, last_use)) = &self.last
            && std::ptr::eq(snapshot.as_ptr(), &raw const *current)
            && let Some(rows) = rows.upgrade()
        {
            self.online.record_use(last_use);
            return Ok(Source { snapshot: current, rows });
        }
        let (rows, last_use) = self.online.view(&current, &self.view, tenant).await?;
        // Weak references, so that an idle lookup does not keep an outdated snapshot in memory.
        self.last = Some((Arc::downgrade(&current), Arc::downgrade(&rows), last_use));
        Ok(Source { snapshot: current, rows })
    }
}
