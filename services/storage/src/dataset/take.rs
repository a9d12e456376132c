//! Taking and loading of snapshots. Taking one lists the files, reads their footers, merges their schemas and stores
//! the manifest.

use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use object_store::PutMode;

use crate::{
    Config, Error, File, Location, Snapshot, State,
    dataset::{
        listing::{Listing, list, tables},
        merged_footers::MergedFooters,
        partitions::Partitions,
        snapshot::{Parts, delivered_schema, locate, snapshot_id},
    },
    store::target::Target,
};

/// Takes a snapshot of the current files of a dataset.
///
/// If `state` holds a manifest of the same files, the snapshot is loaded from it and no footer is read. Otherwise every
/// footer is read, and the manifest is stored in `state`. `progress` is called after each file, in order, with the
/// number of files done and the total number of files.
///
/// # Errors
/// Errors of the location, of a file, or [`Error::Mismatch`] between files. No manifest is stored in that case.
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

/// Non-generic part of [`take_snapshot`], so that the code is compiled in this crate rather than in each caller's.
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
    let mode = match state.load_snapshot(dataset, &id).await {
        Ok(Some(snapshot)) => {
            let files = listing.files.len() as u64;
            progress(files, files);
            return Ok(snapshot);
        }
        Ok(None) => PutMode::Create,
        Err(error @ Error::Corrupt { .. }) => {
            tracing::warn!(dataset, id, %error, "replacing a corrupt manifest");
            PutMode::Overwrite
        }
        Err(error) => return Err(error),
    };
    if listing.folder {
        tables::check_parents(location).await?;
    }
    let parts = read_footers(listing, location, state, config, progress).await?;
    let snapshot = Snapshot::new(parts).expect("the parts come from one listing");
    let snapshot = state.save_snapshot(dataset, snapshot, mode).await?;
    tracing::info!(dataset, id, files = snapshot.files().len(), rows = snapshot.rows(), "took a snapshot");
    Ok(snapshot)
}

/// Loads the snapshot `id` from its manifest.
///
/// # Errors
/// [`Error::UnknownSnapshot`] if there is no manifest, [`Error::Corrupt`] if it is damaged, [`Error::Unavailable`] when
/// the store fails.
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
        state.load_snapshot(dataset, id).await?.ok_or_else(unknown)
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
    // In order, because the schemas of the other files are compared to that of the first.
    let footers =
        stream::iter(0..targets.len()).map(|index| state.footers().get(location, &targets[index], config));
    let mut footers = footers.buffered(config.concurrent_footers.max(1));

    let mut merged: Option<MergedFooters> = None;
    let mut row_groups = Vec::with_capacity(files.len());
    while let Some(footer) = footers.try_next().await? {
        let target = &targets[row_groups.len()];
        let merged = match &mut merged {
            None => merged.insert(MergedFooters::new(&footer, target, &partitions.fields)?),
            Some(merged) => {
                merged.add(&footer, target)?;
                merged
            }
        };
        row_groups.push(merged.row_groups(&footer));
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
