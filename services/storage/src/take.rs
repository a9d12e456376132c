//! Taking a snapshot: list, read every footer, agree on a schema, keep the manifest.

use std::{ops::Range, sync::Arc};

use arrow_schema::{Field, Schema};
use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use object_store::PutMode;

use crate::{
    Config, Error, Location, RowGroup, Snapshot, State,
    estimate::{chunk_bytes, leaf_types},
    footer::Footer,
    footers::Target,
    listing::{Listing, list},
    partitions::Partitions,
    schema::merge,
    snapshot::{File, Parts, delivered_schema, locate, snapshot_id},
};

/// Pins the files that a dataset has now. If their list was pinned before, its manifest answers, and no
/// footer is read; else every footer is, and the manifest is kept in `state`. `progress` is told of
/// (files done, files in all), in order.
///
/// # Errors
/// Whatever is wrong with the location, a file, or the files together; nothing is kept then.
pub fn take_snapshot<'a>(
    dataset: &'a str,
    location: &'a Location,
    state: &'a State,
    config: &'a Config,
    progress: impl Fn(u64, u64) + Send + Sync + 'a,
) -> BoxFuture<'a, Result<Snapshot, Error>> {
    boxed(dataset, location, state, config, Box::new(progress))
}

type Progress<'a> = Box<dyn Fn(u64, u64) + Send + Sync + 'a>;

/// Boxed where no parameter has a type of the caller's: what is generic, and what it awaits, is compiled in the caller's crate.
fn boxed<'a>(
    dataset: &'a str,
    location: &'a Location,
    state: &'a State,
    config: &'a Config,
    progress: Progress<'a>,
) -> BoxFuture<'a, Result<Snapshot, Error>> {
    Box::pin(take_inner(dataset, location, state, config, progress))
}

async fn take_inner(
    dataset: &str,
    location: &Location,
    state: &State,
    config: &Config,
    progress: Progress<'_>,
) -> Result<Snapshot, Error> {
    let listing = list(location, config).await?;
    let id = snapshot_id(listing.files.iter().map(|file| (file.path.as_str(), &file.version)));
    let mode = match state.find(dataset, &id).await {
        Ok(Some(snapshot)) => {
            let files = listing.files.len() as u64;
            progress(files, files);
            return Ok(snapshot);
        }
        Ok(None) => PutMode::Create,
        Err(error @ Error::Corrupt { .. }) => {
            tracing::warn!(dataset, id, %error, "making a corrupt manifest again");
            PutMode::Overwrite
        }
        Err(error) => return Err(error),
    };
    let parts = read_footers(listing, location, state, config, progress).await?;
    let snapshot = Snapshot::new(parts).expect("the parts were made of one listing");
    let snapshot = state.keep(dataset, snapshot, mode).await?;
    tracing::info!(dataset, id, files = snapshot.files().len(), rows = snapshot.rows(), "took a snapshot");
    Ok(snapshot)
}

/// The snapshot that a ticket pins, from its manifest.
///
/// # Errors
/// [`Error::UnknownSnapshot`] if none is kept, [`Error::Corrupt`] if the manifest is damaged.
pub fn load_snapshot<'a>(
    dataset: &'a str,
    id: &'a str,
    state: &'a State,
) -> BoxFuture<'a, Result<Snapshot, Error>> {
    Box::pin(async move {
        let unknown = || Error::UnknownSnapshot { dataset: dataset.to_owned(), id: id.to_owned() };
        let well_formed = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !well_formed {
            return Err(unknown());
        }
        state.find(dataset, id).await?.ok_or_else(unknown)
    })
}

async fn read_footers(
    listing: Listing,
    location: &Location,
    state: &State,
    config: &Config,
    progress: Progress<'_>,
) -> Result<Parts, Error> {
    let Listing { folder, files } = listing;
    let total = files.len() as u64;
    let paths = files.iter().map(|file| file.path.as_str());
    let partitions = Partitions::read(paths, |path| location.child_url(path))?;

    let targets = files.iter().map(|file| {
        let (path, url) = locate(location, folder, &file.path)?;
        Ok(Target { path, url, version: file.version.clone() })
    });
    let targets: Vec<Target> = targets.collect::<Result<_, Error>>()?;
    // In order: the first file's schema is the one that the others are held against.
    let footers =
        stream::iter(0..targets.len()).map(|index| state.footers().get(location, &targets[index], config));
    let mut footers = footers.buffered(config.concurrent_footers.max(1));

    let mut merged: Option<Merged> = None;
    let mut row_groups = Vec::with_capacity(files.len());
    while let Some(footer) = footers.try_next().await? {
        let target = &targets[row_groups.len()];
        let merged = match &mut merged {
            None => merged.insert(Merged::new(&footer, target, &partitions.fields)?),
            Some(merged) => {
                merged.add(&footer, target)?;
                merged
            }
        };
        row_groups.push(merged.count(&footer));
        progress(row_groups.len() as u64, total);
    }
    drop(footers);
    let merged = merged.expect("a listing has files");

    let files = files.into_iter().zip(partitions.values).zip(row_groups);
    let files = files.map(|((listed, partitions), row_groups)| File {
        path: listed.path,
        version: listed.version,
        partitions,
        row_groups,
    });
    Ok(Parts {
        folder,
        files: files.collect(),
        partition_columns: partitions.fields.len(),
        schema: delivered_schema(merged.fields, partitions.fields),
        nulls: merged.nulls,
    })
}

/// What the files agree on so far.
struct Merged {
    first: String,
    fields: Vec<Field>,
    nulls: Vec<Option<u64>>,
}

impl Merged {
    fn new(footer: &Footer, target: &Target, partitions: &[Field]) -> Result<Self, Error> {
        let fields: Vec<Field> = footer.schema().fields().iter().map(|field| (**field).clone()).collect();
        if let Some(both) =
            partitions.iter().find(|key| fields.iter().any(|field| field.name() == key.name()))
        {
            let detail = format!("column {} is in the file and in the names of its folders", both.name());
            return Err(Error::unsupported(&target.url, detail));
        }
        Ok(Self { first: target.url.clone(), nulls: vec![Some(0); fields.len()], fields })
    }

    fn add(&mut self, footer: &Footer, target: &Target) -> Result<(), Error> {
        let schema = footer.schema();
        for (position, merged) in self.fields.iter_mut().enumerate() {
            let Some(root) = root(schema, position, merged.name()) else {
                let expected = merged.data_type().to_string();
                return Err(self.mismatch(target, position, expected, "absent".to_owned()));
            };
            let field = schema.field(root);
            let Some(both) = merge(merged, field) else {
                let (first, name) = (&self.first, merged.name());
                let (expected, found) = (merged.data_type(), field.data_type());
                return Err(Error::type_mismatch(first, &target.url, name, expected, found));
            };
            *merged = both;
        }
        let known = |field: &Field| self.fields.iter().any(|merged| merged.name() == field.name());
        if schema.fields().len() > self.fields.len()
            && let Some(extra) = schema.fields().iter().find(|field| !known(field))
        {
            return Err(Error::Mismatch {
                first: self.first.clone(),
                second: target.url.clone(),
                column: extra.name().clone(),
                expected: "absent".to_owned(),
                found: extra.data_type().to_string(),
            });
        }
        Ok(())
    }

    fn mismatch(&self, target: &Target, column: usize, expected: String, found: String) -> Error {
        Error::Mismatch {
            first: self.first.clone(),
            second: target.url.clone(),
            column: self.fields[column].name().clone(),
            expected,
            found,
        }
    }

    /// Counts a file's row groups, column by column.
    fn count(&mut self, footer: &Arc<Footer>) -> Vec<RowGroup> {
        let groups = footer.metadata().row_groups().iter();
        let mut counted: Vec<RowGroup> = groups
            .map(|group| RowGroup {
                rows: u32::try_from(group.num_rows()).expect("checked when the footer was parsed"),
                bytes: u64::try_from(group.total_byte_size()).expect("checked when the footer was parsed"),
                columns: Vec::with_capacity(self.fields.len()),
            })
            .collect();
        for (position, field) in self.fields.iter().enumerate() {
            let root = root(footer.schema(), position, field.name()).expect("the file has the column");
            let leaves = footer.leaves(root);
            let types = leaf_types(field.data_type());
            for (counted, group) in counted.iter_mut().zip(footer.metadata().row_groups()) {
                let chunks = leaves
                    .clone()
                    .zip(&types)
                    .map(|(leaf, leaf_type)| chunk_bytes(leaf_type, group.column(leaf), counted.rows.into()));
                counted.columns.push(chunks.fold(0, u64::saturating_add));
            }
            let nulls = column_nulls(footer, footer.schema().field(root), leaves);
            self.nulls[position] = self.nulls[position].zip(nulls).map(|(a, b)| a.saturating_add(b));
        }
        counted
    }
}

/// Nulls of one column in one file, where its footer tells.
fn column_nulls(footer: &Footer, field: &Field, leaves: Range<usize>) -> Option<u64> {
    if !field.is_nullable() {
        return Some(0);
    }
    // Of a nested column the leaf's count would include nulls further in.
    if field.data_type().is_nested() {
        return None;
    }
    let groups = footer.metadata().row_groups().iter().filter(|group| group.num_rows() > 0);
    let mut counts = groups.map(|group| group.column(leaves.start).statistics()?.null_count_opt());
    counts.try_fold(0, |sum: u64, count| Some(sum.saturating_add(count?)))
}

/// The position of the column `name`, looked for first where it lies in the first file.
pub(crate) fn root(schema: &Schema, likely: usize, name: &str) -> Option<usize> {
    let fields = schema.fields();
    if fields.get(likely).is_some_and(|field| field.name() == name) {
        return Some(likely);
    }
    fields.iter().position(|field| field.name() == name)
}
