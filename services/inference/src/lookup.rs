//! Lookups: keys in, rows out, of one dataset or of several at once.

use std::{
    collections::HashSet,
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Instant,
};

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use forebay_loader::{Error, Priority, Resident, WireBatch};
use forebay_proto::v1;

use crate::{
    index::KeyIndex,
    keys::EncodedKeys,
    online::{Config, Generation, Online},
};

/// An answer of about so many bytes or fewer may be made by a thread that reads the network.
const INLINE_BYTES: u64 = 512 << 10;

/// Lookups that want the same of a row, one after the other; of several datasets at once if they were put
/// [beside](Lookup::beside) each other.
#[derive(Clone)]
pub struct Lookup {
    parts: Vec<Part>,
    /// Of the last answer, and what it was made of.
    schema: Option<(Vec<SchemaRef>, SchemaRef)>,
}

/// A lookup in one dataset.
#[derive(Clone)]
struct Part {
    online: Online,
    wanted: v1::Train,
    /// What of the caller's columns is the key; those of the dataset's names if it is empty.
    columns: Vec<String>,
    view: Vec<u8>,
    /// What the last one was answered from, if it is still there.
    ready: Option<(Weak<Generation>, Weak<Resident>, Arc<AtomicU64>)>,
}

/// A part's snapshot, while it is looked at.
struct Ready {
    generation: Arc<Generation>,
    resident: Arc<Resident>,
}

/// Keys that were found to be of the right types, for each of a lookup's datasets. Others can be put behind them.
#[derive(Clone)]
pub struct Keys {
    parts: Vec<(Arc<KeyIndex>, EncodedKeys)>,
    row_bytes: u64,
}

/// What a lookup is answered with; what is of one dataset is of one snapshot.
pub struct Answer {
    /// Of which the rows are: an entry for each dataset.
    pub residents: Vec<Arc<Resident>>,
    /// How many keys were found in each.
    pub found: Vec<u64>,
    /// The rows of the keys, in their order; the columns of the datasets stand beside each other.
    pub batch: WireBatch,
}

impl Lookup {
    /// In one dataset, by the caller's columns `columns`; `view` names what is wanted.
    pub(crate) fn new(online: Online, wanted: v1::Train, columns: Vec<String>, view: Vec<u8>) -> Self {
        Self { parts: vec![Part { online, wanted, columns, view, ready: None }], schema: None }
    }

    /// Looks up in the datasets of both at once.
    #[must_use]
    pub fn beside(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// What there is of the rows now, of each dataset: their snapshot and their schema. What is wanted for the first time is
    /// brought into memory first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a request that makes no sense; [`Error::TooLarge`] for more than fits; [`Error::Unavailable`] while
    /// there is no snapshot.
    pub async fn residents(&mut self) -> Result<Vec<Arc<Resident>>, Error> {
        Ok(self.ready().await?.into_iter().map(|ready| ready.resident).collect())
    }

    /// The schema of answers from these: the columns of the first dataset, then those of the others, whose `found` is called
    /// `DATASET_found`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that stands twice.
    pub fn schema(&mut self, residents: &[Arc<Resident>]) -> Result<SchemaRef, Error> {
        if let [only] = residents {
            return Ok(Arc::clone(only.view().schema()));
        }
        let parts = || residents.iter().map(|resident| resident.view().schema());
        if let Some((of, schema)) = &self.schema
            && of.len() == residents.len()
            && of.iter().zip(parts()).all(|(one, other)| Arc::ptr_eq(one, other))
        {
            return Ok(Arc::clone(schema));
        }
        let schema = self.joined_schema(residents)?;
        self.schema = Some((parts().cloned().collect(), Arc::clone(&schema)));
        Ok(schema)
    }

    fn joined_schema(&self, residents: &[Arc<Resident>]) -> Result<SchemaRef, Error> {
        let (mut fields, mut names): (Vec<Field>, HashSet<String>) = Default::default();
        for (at, (part, resident)) in self.parts.iter().zip(residents).enumerate() {
            let of_dataset = resident.view().schema().fields();
            for (place, field) in of_dataset.iter().enumerate() {
                let mut field = field.as_ref().clone();
                if at > 0 && place + 1 == of_dataset.len() {
                    field.set_name(format!("{}_{}", part.dataset(), field.name()));
                }
                if !names.insert(field.name().clone()) {
                    let reason = format!(
                        "'{}' of dataset '{}' stands twice in the answer; give it another name with `select` and `AS`, or \
                         name the columns",
                        field.name(),
                        part.dataset()
                    );
                    return Err(Error::invalid("with", reason));
                }
                fields.push(field);
            }
        }
        Ok(Arc::new(Schema::new(fields)))
    }

    /// The rows of `keys`, a column for each of the key's by its name.
    ///
    /// # Errors
    /// As for [`residents`](Self::residents), and [`Error::Invalid`] for keys of another type, or too many of them.
    pub async fn look_up(&mut self, keys: &RecordBatch) -> Result<Answer, Error> {
        let keys = self.encode(keys).await?;
        self.gather(keys, 0).await
    }

    /// The keys in a batch of the caller's.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    pub async fn encode(&mut self, keys: &RecordBatch) -> Result<Keys, Error> {
        if let Some(part) = self.parts.first() {
            part.check_count(keys.num_rows())?;
        }
        let ready = self.ready().await?;
        let row_bytes = ready.iter().map(|ready| ready.resident.row_bytes()).sum();
        let encode = |(part, ready): (&Part, Ready)| {
            let index = &ready.generation.index;
            let encoded = index.key().encode(&part.columns_of(keys, index)?)?;
            Ok::<_, Error>((Arc::clone(index), encoded))
        };
        Ok(Keys { parts: self.parts.iter().zip(ready).map(encode).collect::<Result<_, _>>()?, row_bytes })
    }

    /// The rows of keys, and behind them rows of nulls and zeros up to `least`.
    ///
    /// # Errors
    /// As [`residents`](Self::residents), and [`Error::TooLarge`] for more than an answer may have; [`Error::Unavailable`] when the
    /// type of the key has changed with the snapshot since they were encoded.
    pub async fn gather(&mut self, keys: Keys, least: usize) -> Result<Answer, Error> {
        let Some(first) = self.parts.first() else {
            return Err(Error::Internal("a lookup in no dataset".into()));
        };
        let (online, count) = (first.online.clone(), keys.len().max(least));
        let started = Instant::now();
        let ready = self.ready().await?;
        for (part, (ready, (index, _))) in self.parts.iter().zip(ready.iter().zip(&keys.parts)) {
            let now = &ready.generation.index;
            if !Arc::ptr_eq(now, index) && now.key() != index.key() {
                let reason =
                    format!("the key of '{}' is of another type in the new snapshot", part.dataset());
                return Err(Error::Unavailable(reason));
            }
        }
        let row_bytes: u64 = ready.iter().map(|ready| ready.resident.row_bytes()).sum();
        let Config { max_inline_keys, .. } = *online.config();
        let is_short = count <= max_inline_keys && (count as u64).saturating_mul(row_bytes) <= INLINE_BYTES;
        let answer = move || {
            let (mut residents, mut batches) = (Vec::new(), Vec::new());
            for (Ready { generation, resident }, (_, keys)) in ready.into_iter().zip(&keys.parts) {
                let mut rows = generation.index.rows(keys);
                rows.resize(rows.len().max(least), None);
                batches.push(resident.gather(rows)?);
                residents.push(resident);
            }
            let found = batches.iter().map(|batch| batch.rows).collect();
            Ok(Answer { residents, found, batch: WireBatch::beside(batches)? })
        };
        let answer: Answer =
            if is_short { answer() } else { online.lookups().run(Priority::First, answer).await }?;
        metrics::counter!("forebay_online_keys_total").increment(count as u64);
        metrics::counter!("forebay_online_keys_found_total").increment(answer.found.iter().sum());
        metrics::histogram!("forebay_online_lookup_duration_seconds").record(started.elapsed());
        Ok(answer)
    }

    async fn ready(&mut self) -> Result<Vec<Ready>, Error> {
        let mut ready = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            ready.push(part.ready().await?);
        }
        Ok(ready)
    }
}

impl Keys {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.parts.first().map_or(0, |(_, keys)| keys.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, keys)| keys.memory_bytes()).sum()
    }

    /// Bytes that a row of their answer takes in the mean.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Adds others of the same lookup behind these. `false`, and nothing is added, if the key was of another type when they were
    /// encoded.
    #[must_use]
    pub fn append(&mut self, others: &Self) -> bool {
        let are_alike = |((index, _), (other, _)): (&(Arc<KeyIndex>, _), &(Arc<KeyIndex>, _))| {
            Arc::ptr_eq(index, other) || index.key() == other.key()
        };
        if self.parts.len() != others.parts.len() || !self.parts.iter().zip(&others.parts).all(are_alike) {
            return false;
        }
        for ((_, keys), (_, others)) in self.parts.iter_mut().zip(&others.parts) {
            keys.append(others);
        }
        true
    }
}

impl Part {
    fn dataset(&self) -> &str {
        self.online.dataset()
    }

    fn check_count(&self, count: usize) -> Result<(), Error> {
        let Config { max_keys, .. } = *self.online.config();
        if count > max_keys {
            return Err(Error::invalid("keys", format!("{count} at once, expected at most {max_keys}")));
        }
        Ok(())
    }

    /// The caller's columns under the names that the key's have.
    fn columns_of(&self, keys: &RecordBatch, index: &KeyIndex) -> Result<RecordBatch, Error> {
        let wanted = index.key().columns();
        if self.columns.is_empty() {
            return Ok(keys.clone());
        }
        if self.columns.len() != wanted.len() {
            let (found, expected) = (self.columns.len(), wanted.len());
            let reason =
                format!("names {found} columns, that of dataset '{}' has {expected}", self.dataset());
            return Err(Error::invalid("key", reason));
        }
        let column = |(name, (called, _)): (&String, &(String, _))| {
            let Some(column) = keys.column_by_name(name) else {
                let schema = keys.schema();
                let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                return Err(Error::invalid("keys", format!("there is no column '{name}' among {names:?}")));
            };
            Ok((called.clone(), Arc::clone(column), true))
        };
        let columns = self.columns.iter().zip(wanted).map(column).collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_from_iter_with_nullable(columns)
            .map_err(|error| Error::invalid("keys", error.to_string()))
    }

    async fn ready(&mut self) -> Result<Ready, Error> {
        let dataset = self.online.dataset();
        let current = self.online.current();
        let current = current.ok_or_else(|| {
            Error::Unavailable(format!("'{dataset}' is still being made ready to be looked up"))
        })?;
        if let Some((generation, resident, used)) = &self.ready
            && std::ptr::eq(generation.as_ptr(), &raw const *current)
            && let Some(resident) = resident.upgrade()
        {
            self.online.note_use(used);
            return Ok(Ready { generation: current, resident });
        }
        let (resident, used) = self.online.view(&current, &self.view, &self.wanted).await?;
        // Weak: who asks for nothing keeps no old snapshot.
        self.ready = Some((Arc::downgrade(&current), Arc::downgrade(&resident), used));
        Ok(Ready { generation: current, resident })
    }
}
