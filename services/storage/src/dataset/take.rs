//! Taking and loading of snapshots. Taking one lists the files, reads their footers, merges their schemas and stores
//! the manifest.

use std::sync::Arc;

use futures::{TryStreamExt, future::BoxFuture, stream::FuturesOrdered};
use object_store::PutMode;
use tokio::task::coop::consume_budget;

use crate::{
    Config, Error, File, Location, RowGroup, Snapshot, State,
    blocking::blocking,
    dataset::{
        listing::{Listed, Listing, list, tables},
        manifest,
        memory::SnapshotMemory,
        merged_footers::MergedFooters,
        partitions::Partitions,
        snapshot::{Parts, delivered_schema, locate, max_joined_bytes, row_group_memory, snapshot_id},
    },
    store::{generations::generation, request::in_time, target::Target},
};

/// Takes a snapshot of the current files of a dataset.
///
/// If `state` holds a manifest of the same files, the snapshot is loaded from it and no footer is read. Otherwise every
/// footer is read, and the manifest is stored in `state`. `progress` is called after each file, in order, with the
/// number of files done and the total number of files.
///
/// # Errors
/// Errors of the location, of a file, [`Error::Mismatch`] between files, or [`Error::Limit`] if the memory budget of `state` has no room
/// for the snapshot. No manifest is stored in that case.
pub fn take_snapshot<'a>(
    dataset: &'a str,
    location: &'a Location,
    state: &'a State,
    config: &'a Config,
    progress: impl Fn(u64, u64) + Send + Sync + 'a,
) -> BoxFuture<'a, Result<Snapshot, Error>> {
    let taken = boxed(dataset, location, state, config, None, Box::new(progress));
    Box::pin(
        async move { Ok(Arc::into_inner(taken.await?).expect("a snapshot without a previous one is new")) },
    )
}

/// Takes a snapshot like [`take_snapshot`], after the snapshot `previous` of the same dataset, if there is one. Returns `previous` if no
/// file has changed. If only files were added since, only their footers are read, unless a new file comes first or changes the columns.
///
/// # Errors
/// As [`take_snapshot`].
pub fn refresh_snapshot<'a>(
    dataset: &'a str,
    location: &'a Location,
    state: &'a State,
    config: &'a Config,
    previous: Option<&'a Arc<Snapshot>>,
    progress: impl Fn(u64, u64) + Send + Sync + 'a,
) -> BoxFuture<'a, Result<Arc<Snapshot>, Error>> {
    boxed(dataset, location, state, config, previous, Box::new(progress))
}

type Progress<'a> = Box<dyn Fn(u64, u64) + Send + Sync + 'a>;

/// Non-generic part of [`refresh_snapshot`], so that the code is compiled in this crate rather than in each caller's.
fn boxed<'a>(
    dataset: &'a str,
    location: &'a Location,
    state: &'a State,
    config: &'a Config,
    previous: Option<&'a Arc<Snapshot>>,
    progress: Progress<'a>,
) -> BoxFuture<'a, Result<Arc<Snapshot>, Error>> {
    Box::pin(take_inner(dataset, location, state, config, previous, progress))
}

async fn take_inner(
    dataset: &str,
    location: &Location,
    state: &State,
    config: &Config,
    previous: Option<&Arc<Snapshot>>,
    progress: Progress<'_>,
) -> Result<Arc<Snapshot>, Error> {
    let mut memory = state.memory();
    let listing = list(location, config).await?;
    let listed = listed_memory(&listing, location);
    memory.raise(listed, location.url()).await?;
    // Work on all files of a dataset is done on blocking threads: there can be a million.
    let (listing, id) = blocking(move || {
        let id = snapshot_id(listing.files.iter().map(|file| (file.path.as_str(), &file.version)));
        Ok((listing, id))
    })
    .await?;
    let files = listing.files.len() as u64;
    // The snapshot that is in memory is not parsed again. A second copy would need memory.
    if let Some(previous) = previous.filter(|previous| previous.id() == id)
        && state.has_snapshot(dataset, &id).await?
    {
        progress(files, files);
        return Ok(Arc::clone(previous));
    }
    let mode = match state.load_snapshot(dataset, &id).await {
        Ok(Some(snapshot)) => {
            progress(files, files);
            return Ok(Arc::new(snapshot));
        }
        Ok(None) => PutMode::Create,
        Err(error @ Error::Corrupt { .. }) => {
            tracing::warn!(dataset, id, %error, "replacing a corrupt manifest");
            PutMode::Overwrite
        }
        Err(error) => return Err(error),
    };
    listing.skipped.log(dataset);
    if listing.folder {
        tables::check_parents(location).await?;
    }
    let previous = previous.map(Arc::as_ref);
    let mut room = Room { memory: &mut memory, listed, location: location.url() };
    let parts = read_footers(listing, location, state, config, previous, &mut room, progress).await?;
    let described = blocking(|| {
        let snapshot = Snapshot::new(parts).expect("the parts come from one listing");
        let bytes = (snapshot.memory_bytes(), manifest::expected_bytes(&snapshot));
        Ok((snapshot, bytes))
    });
    let (snapshot, (bytes, manifest_bytes)) = described.await?;
    memory.raise(bytes.saturating_add(manifest_bytes), location.url()).await?;
    let snapshot = state.save_snapshot(dataset, snapshot, mode).await?;
    memory.lower(bytes);
    tracing::info!(dataset, id, files = snapshot.files().len(), rows = snapshot.rows(), "took a snapshot");
    Ok(Arc::new(snapshot.charged_to(memory)))
}

/// Loads the snapshot `id` from its manifest.
///
/// # Errors
/// [`Error::UnknownSnapshot`] if there is no manifest, [`Error::Corrupt`] if it is damaged, [`Error::Unavailable`] when
/// the store fails, [`Error::Limit`] if the memory budget of `state` has no room for it.
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

/// Memory for the files that are described.
struct Room<'a> {
    memory: &'a mut SnapshotMemory,
    /// Bytes of the listing.
    listed: u64,
    /// URL of the dataset.
    location: &'a str,
}

/// Memory of a listing and of what is derived from it until the snapshot is taken, in bytes.
fn listed_memory(listing: &Listing, location: &Location) -> u64 {
    let each = size_of::<Listed>() + size_of::<Target>() + size_of::<File>() + location.url().len();
    let texts = |file: &Listed| 3 * (file.path.len() + file.version.etag.as_ref().map_or(0, String::len));
    listing.files.iter().map(|file| (each + texts(file)) as u64).sum()
}

async fn read_footers(
    listing: Listing,
    location: &Location,
    state: &State,
    config: &Config,
    previous: Option<&Snapshot>,
    room: &mut Room<'_>,
    progress: Progress<'_>,
) -> Result<Parts, Error> {
    let (listing, of) = (Arc::new(listing), location.clone());
    let found = {
        let listing = Arc::clone(&listing);
        // Counts as a request of 1 KiB for each file, whose inode is read if it is local.
        let bytes = (listing.files.len() as u64) << 10;
        let find = async move { Ok(blocking(move || found_files(&listing, &of)).await) };
        in_time(location, bytes, find).await.map_err(|error| Error::unavailable(location.url(), &error))??
    };
    let known = previous.and_then(|previous| known_files(previous, &listing));
    let mut merged = match (known, previous) {
        (Some(known), Some(previous)) => {
            let before = MergedFooters::of_snapshot(previous, &found.targets[0]);
            let columns = before.fields.clone();
            match merge_footers(Some(before), &known, &found, location, state, config, room, &progress).await
            {
                // A column that became nullable, say, changes how the files before are described.
                Ok(merged) => (merged.0.fields == columns).then_some(merged),
                // Without the footers of the files before, the types that they declare are not known.
                Err(Error::Mismatch { .. }) => None,
                Err(error) => return Err(error),
            }
        }
        _ => None,
    };
    if merged.is_none() {
        let unknown = vec![None; found.targets.len()];
        merged = Some(merge_footers(None, &unknown, &found, location, state, config, room, &progress).await?);
    }
    let (merged, row_groups) = merged.expect("just merged");
    let folder = listing.folder;
    let files = Arc::unwrap_or_clone(listing).files;
    let files = files.into_iter().zip(found.partitions.values).zip(row_groups);
    let files = files.map(|((listed, partitions), row_groups)| File {
        path: listed.path,
        version: listed.version,
        partitions,
        row_groups,
    });
    let files: Vec<File> = files.collect();
    Ok(Parts {
        folder,
        max_joined_bytes: max_joined_bytes(&files),
        files,
        partition_columns: found.partitions.fields.len(),
        schema: delivered_schema(merged.fields, found.partitions.fields),
        nulls: merged.nulls,
    })
}

/// The files of a listing.
struct Found {
    partitions: Partitions,
    targets: Vec<Target>,
}

fn found_files(listing: &Listing, location: &Location) -> Result<Found, Error> {
    let paths = listing.files.iter().map(|file| file.path.as_str());
    let partitions = Partitions::read(paths, |path| location.child_url(path))?;
    let targets = listing.files.iter().map(|file| {
        let (path, url) = locate(location, listing.folder, &file.path)?;
        let generation = generation(location, &path);
        Ok(Target { path, url, version: file.version.clone(), generation })
    });
    Ok(Found { partitions, targets: targets.collect::<Result<_, Error>>()? })
}

/// Row groups of the files that `previous` has, by their index in the listing. Returns `None` unless the listing has all
/// files of `previous`, unchanged and in the same order, and begins with the same file.
fn known_files<'a>(previous: &'a Snapshot, listing: &Listing) -> Option<Vec<Option<&'a [RowGroup]>>> {
    let mut before = previous.files().iter().peekable();
    let mut known = Vec::with_capacity(listing.files.len());
    for file in &listing.files {
        let same = before.next_if(|known| known.path == file.path && known.version == file.version);
        known.push(same.map(|same| &same.row_groups[..]));
    }
    let has_all = before.peek().is_none() && previous.parts().folder == listing.folder;
    (has_all && known.first().is_some_and(Option::is_some)).then_some(known)
}

/// Reads the footers of the files that are not `known`, and merges them into `merged`. Returns the row groups of each
/// file.
#[expect(clippy::too_many_arguments, reason = "each is a different thing, and the function has two callers")]
async fn merge_footers(
    mut merged: Option<MergedFooters>,
    known: &[Option<&[RowGroup]>],
    found: &Found,
    location: &Location,
    state: &State,
    config: &Config,
    room: &mut Room<'_>,
    progress: &Progress<'_>,
) -> Result<(MergedFooters, Vec<Vec<RowGroup>>), Error> {
    let (targets, total) = (&found.targets, found.targets.len() as u64);
    let compute = state.compute();
    let footer = |index: usize| state.footers().get(location, &targets[index], config, compute);
    // In order, because the schemas of the other files are compared to that of the first. Footers that wait for their turn
    // are kept by the cache alone, which bounds their size. Not more are loaded than it can keep.
    let preload = |index: usize| async move {
        match known[index] {
            Some(_) => Ok(0),
            None => state.footers().preload(location, &targets[index], config, compute).await,
        }
    };
    let (mut indices, mut loading) = (0..targets.len(), FuturesOrdered::new());
    let mut concurrent = config.concurrent_footers.max(1);
    let mut row_groups = Vec::with_capacity(targets.len());
    let mut described = 0_u64;
    loop {
        while loading.len() < concurrent
            && let Some(index) = indices.next()
        {
            loading.push_back(preload(index));
        }
        let Some(bytes) = loading.try_next().await? else { break };
        concurrent = concurrent.min(config.footer_memory_bytes / bytes.max(1)).max(1);
        let index = row_groups.len();
        row_groups.push(match (known[index], &mut merged) {
            (Some(known), _) => known.to_vec(),
            (None, None) => {
                let footer = footer(index).await?;
                let first = MergedFooters::new(&footer, &targets[index], &found.partitions.fields)?;
                merged.insert(first).row_groups(&footer)
            }
            (None, Some(merged)) => {
                let footer = footer(index).await?;
                merged.add(&footer, &targets[index])?;
                merged.row_groups(&footer)
            }
        });
        described += row_groups.last().map_or(0, |groups: &Vec<RowGroup>| row_group_memory(groups));
        room.memory.raise(room.listed.saturating_add(described), room.location).await?;
        progress(row_groups.len() as u64, total);
        // Files that are known cause no wait.
        consume_budget().await;
    }
    Ok((merged.expect("a listing has files"), row_groups))
}
