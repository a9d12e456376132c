use std::collections::HashSet;

use forebay_explain::JobRecord;
use forebay_proto::v1;
use forebay_storage::{Config, Location};

use super::*;

fn values(folder: &std::path::Path) -> Values {
    let config = Config::default();
    let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
    let state = State::open(location, None, &config);
    let values = Values::new(&state, Jobs::new(&state, 100), StoredValues::new(&state));
    Values { listed_for: Duration::ZERO, ..values }
}

fn limited(folder: &std::path::Path, bytes: u64, sets: usize) -> Values {
    Values { limits: Limits { bytes, sets }, ..values(folder) }
}

/// Keeps the record of a job that used the sets at the time `last_seen`.
async fn use_sets(values: &Values, numbers: &[u8], last_seen: DateTime<Utc>) -> JobRecord {
    let named =
        |number: &u8| v1::NamedValues { name: format!("ids{number}"), sha256: hash(*number), count: 3 };
    let named = numbers.iter().map(named).collect();
    let train = v1::Train { dataset: "d".into(), values: named, ..v1::Train::default() };
    let record = JobRecord::new(&train, last_seen.timestamp() as f64);
    values.jobs.keep(&record).await.unwrap();
    record
}

/// Uploads a set of zeros.
async fn put<'a>(
    values: &Values,
    tenant: impl Into<Option<&'a str>>,
    number: u8,
    bytes: usize,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    values.put(tenant.into(), &hash(number), vec![0; bytes].into(), now).await
}

/// Name of the charge of a tenant for a set.
fn charge(tenant: &str, number: u8) -> String {
    format!("{}-{}", hash(number), owner_of(Some(tenant)))
}

/// Locks what a server knows of a tenant.
async fn known<'a>(
    values: &Values,
    tenant: impl Into<Option<&'a str>>,
) -> tokio::sync::OwnedMutexGuard<Tenant> {
    values.tenants.lock(&owner_of(tenant.into())).await
}

async fn is_charged(values: &Values, tenant: &str, number: u8) -> bool {
    values.charges.head(&charge(tenant, number)).await.unwrap().is_some()
}

fn hash(number: u8) -> String {
    format!("{number:064x}")
}

async fn names(documents: &Documents) -> Vec<String> {
    let mut names: Vec<String> =
        documents.list().await.unwrap().into_iter().map(|meta| meta.name[..64].to_owned()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_set_is_kept_as_long_as_a_job_record_refers_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let values = values(folder.path());
    let now = Utc::now();
    for number in [1, 2] {
        put(&values, None, number, 3, now).await.unwrap();
    }
    let record = use_sets(&values, &[1], now).await;
    values.remove_unused(now).await.unwrap();
    assert_eq!(names(&values.sets).await, [hash(1), hash(2)], "a new set is kept");
    let later = now + TimeDelta::hours(2);
    values.remove_unused(later).await.unwrap();
    assert_eq!(names(&values.sets).await, [hash(1)]);
    assert_eq!(names(&values.charges).await, [hash(1)]);
    std::fs::remove_file(folder.path().join("jobs").join(format!("{}.job", record.id))).unwrap();
    values.remove_unused(later).await.unwrap();
    assert!(names(&values.sets).await.is_empty() && names(&values.charges).await.is_empty());
}

#[tokio::test]
async fn the_sets_of_a_tenant_are_limited_and_shared_with_others() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1000, 100);
    let now = Utc::now();
    for number in [1, 2, 1] {
        put(&values, "a", number, 400, now).await.unwrap();
    }
    let refused = put(&values, "a", 3, 400, now).await.unwrap_err();
    assert_eq!(refused.grpc_code(), tonic::Code::ResourceExhausted);
    assert!(refused.message().contains("token 'a' has 876 bytes of stored sets"), "{refused}");
    assert!(
        refused.message().contains("in 2 sets, and this set has 400; the limit is 1000 in 100"),
        "{refused}"
    );
    assert!(refused.message().contains("or that a training of this server uses"), "{refused}");
    // Another tenant has room, also for the same set.
    for number in [2, 3] {
        put(&values, "b", number, 400, now).await.unwrap();
    }
    assert_eq!(names(&values.sets).await, [1, 2, 3].map(hash));
    assert_eq!(names(&values.charges).await, [1, 2, 2, 3].map(hash));
    // Sets that no job uses give way an hour later, the one first that was sent first.
    let later = now + TimeDelta::hours(2);
    put(&values, "a", 4, 400, later).await.unwrap();
    assert_eq!(names(&values.charges).await, [1, 2, 3, 4].map(hash));
    assert!(!is_charged(&values, "a", 2).await, "the second set is charged to the other tenant");
}

#[tokio::test]
async fn the_least_recently_used_sets_of_a_tenant_give_way_although_job_records_refer_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1000, 100);
    let now = Utc::now();
    for (tenant, number) in [("a", 1), ("a", 2), ("b", 2)] {
        put(&values, tenant, number, 400, now).await.unwrap();
    }
    use_sets(&values, &[1], now + TimeDelta::minutes(90)).await;
    use_sets(&values, &[2], now).await;
    let soon = now + TimeDelta::minutes(50);
    let refused = put(&values, "a", 3, 400, soon).await.unwrap_err();
    assert_eq!(refused.grpc_code(), tonic::Code::ResourceExhausted, "sets of the last hour do not give way");
    let later = now + TimeDelta::hours(2);
    put(&values, "a", 3, 400, later).await.unwrap();
    assert_eq!(names(&values.charges).await, [1, 2, 3].map(hash));
    assert!(!is_charged(&values, "a", 2).await, "the second set is charged to the other tenant");
    // A set of the maximum size needs the room of all others.
    let even_later = now + TimeDelta::hours(4);
    put(&values, "a", 4, 900, even_later).await.unwrap();
    assert_eq!(names(&values.charges).await, [2, 4].map(hash));
    assert_eq!(names(&values.sets).await, [1, 2, 3, 4].map(hash), "sets are only removed by the sweep");
    use_sets(&values, &[1, 2, 3, 4], even_later).await;
    values.remove_unused(even_later).await.unwrap();
    assert_eq!(names(&values.sets).await, [2, 4].map(hash));
    assert_eq!(names(&values.charges).await, [2, 4].map(hash));
}

#[tokio::test]
async fn the_number_of_sets_of_a_tenant_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1 << 20, 4);
    let now = Utc::now();
    for number in 1..=4 {
        put(&values, None, number, 3, now).await.unwrap();
    }
    put(&values, None, 4, 3, now).await.unwrap();
    let refused = put(&values, None, 5, 3, now).await.unwrap_err();
    assert!(refused.message().contains("in 4 sets, and this set has 3"), "{refused}");
    use_sets(&values, &[1, 3, 4], now - TimeDelta::hours(1)).await;
    put(&values, None, 5, 3, now + TimeDelta::hours(2)).await.unwrap();
    assert_eq!(names(&values.charges).await, [1, 3, 4, 5].map(hash), "a set without a job gives way first");
}

#[tokio::test]
async fn an_upload_lists_the_state_only_if_the_set_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let (values, other) = (limited(folder.path(), 1000, 100), limited(folder.path(), 1000, 100));
    let now = Utc::now();
    put(&values, None, 1, 300, now).await.unwrap();
    put(&other, None, 2, 300, now).await.unwrap();
    // This server does not know the set of the other one yet.
    for number in [3, 4] {
        put(&values, None, number, 300, now).await.unwrap();
    }
    let refused = put(&values, None, 5, 300, now).await.unwrap_err();
    assert!(refused.message().contains("has 1352 bytes of stored sets of values in 4 sets"), "{refused}");
    // Without a listing, the server would not know that its sets are gone.
    let values = Values { listed_for: Duration::from_secs(3600), ..values };
    for number in 1..=4 {
        values.sets.delete(&hash(number)).await.unwrap();
    }
    assert!(put(&values, None, 5, 300, now).await.is_err(), "the last listing counts for a while");
    let values = Values { listed_for: Duration::ZERO, ..values };
    put(&values, None, 5, 300, now).await.unwrap();
}

#[tokio::test]
async fn small_uploads_of_a_tenant_at_a_limit_rarely_list_the_state() {
    for (bytes, sets) in [(64 * 10_060, 1000), (1 << 30, 64)] {
        let folder = tempfile::tempdir().unwrap();
        let values = limited(folder.path(), bytes, sets);
        let now = Utc::now();
        let mut listings = HashSet::new();
        for number in 0..128 {
            // Sets that were sent long ago and give way.
            put(&values, None, number, 10_000, now + TimeDelta::hours(2)).await.unwrap();
            listings.insert(known(&values, None).await.listed);
        }
        let kept = values.charges.list().await.unwrap().len();
        assert!((60..=64).contains(&kept), "{kept} sets within the limits {bytes} and {sets}");
        // One at the start. 64 further sets need room, which is made for at least 4 of them at once.
        assert!((2..=17).contains(&listings.len()), "{} listings", listings.len());
    }
}

#[tokio::test]
async fn a_sweep_lists_the_sets_of_all_tenants_so_that_uploads_need_not() {
    let folder = tempfile::tempdir().unwrap();
    let (values, other) = (values(folder.path()), values(folder.path()));
    let now = Utc::now();
    for (tenant, number) in [("a", 1), ("b", 2)] {
        put(&values, tenant, number, 3, now).await.unwrap();
    }
    put(&other, "a", 3, 3, now).await.unwrap();
    values.remove_unused(now).await.unwrap();
    let listed = known(&values, "a").await.listed;
    for (tenant, number, sets) in [("a", 4, 3), ("b", 5, 2)] {
        put(&values, tenant, number, 3, now).await.unwrap();
        let known = known(&values, tenant).await;
        assert_eq!((known.listed, known.sets.len()), (listed, sets));
    }
}

#[tokio::test]
async fn a_listing_that_overlaps_an_upload_or_an_eviction_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1 << 20, 2);
    let later = Utc::now() + TimeDelta::hours(2);
    for number in [1, 2] {
        put(&values, "a", number, 100, later).await.unwrap();
    }
    let early = values.list().await.unwrap();
    // It replaces the first set.
    put(&values, "a", 3, 100, later).await.unwrap();
    values.tenants.update(&early).await;
    assert_eq!(known(&values, "a").await.listed, None, "the next upload lists the state");
    put(&values, "a", 3, 100, later).await.unwrap();
    let mut sets: Vec<String> = known(&values, "a").await.sets.keys().cloned().collect();
    sets.sort_unstable();
    assert_eq!(sets, [2, 3].map(hash));
}

#[tokio::test]
async fn concurrent_uploads_of_a_tenant_do_not_exceed_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1 << 20, 5);
    let uploads = (0..20).map(|number| {
        let values = values.clone();
        tokio::spawn(async move { put(&values, None, number, 3, Utc::now()).await.is_ok() })
    });
    let stored =
        futures::future::join_all(uploads).await.into_iter().filter(|stored| *stored.as_ref().unwrap());
    assert_eq!(stored.count(), 5);
    assert_eq!(values.sets.list().await.unwrap().len(), 5);
}

#[tokio::test]
async fn an_upload_does_not_wait_for_another_one_of_its_tenant_whose_write_takes_long() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1000, 2);
    let now = Utc::now();
    let write = values.lock_set(&hash(1)).await;
    let slow = tokio::spawn({
        let values = values.clone();
        async move { put(&values, "a", 1, 400, now).await }
    });
    while !known(&values, "a").await.is_writing(&hash(1)) {
        tokio::task::yield_now().await;
    }
    put(&values, "a", 2, 400, now).await.unwrap();
    assert_eq!(names(&values.sets).await, [hash(2)]);
    // A listing lacks the set that is being written, but the set counts.
    let listing = values.list().await.unwrap();
    known(&values, "a").await.adopt(&listing);
    assert!(put(&values, "a", 3, 100, now).await.is_err(), "two sets are the limit");
    drop(write);
    slow.await.unwrap().unwrap();
    assert_eq!(names(&values.sets).await, [1, 2].map(hash));
    assert!(!known(&values, "a").await.is_writing(&hash(1)));
}

/// Makes a document that is listed and cannot be deleted: a folder with its name.
fn make_undeletable(folder: &std::path::Path, name: &str) {
    let path = folder.join("values").join(name);
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let file = path.join(name);
    std::fs::write(&file, content).unwrap();
    // Before the others.
    let written = std::time::SystemTime::now() - Duration::from_secs(60);
    std::fs::File::open(file).unwrap().set_modified(written).unwrap();
}

#[tokio::test]
async fn an_upload_whose_caller_disconnects_is_completed_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1 << 20, 50);
    let (mut number, mut interrupted) = (0, 0);
    while interrupted < 3 && number < 40 {
        number += 1;
        let path = folder.path().join(format!("values/{}.values", hash(number)));
        let temporary = path.with_file_name(format!("{}.values#1", hash(number)));
        let mut upload = Box::pin(put(&values, "a", number, 100, Utc::now()));
        while futures::poll!(&mut upload).is_pending() {
            if temporary.exists() || path.exists() {
                // The set is being written.
                interrupted += 1;
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(upload);
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert!(interrupted > 0, "none of {number} uploads was interrupted");
    while put(&values, "a", number + 1, 100, Utc::now()).await.is_ok() {
        number += 1;
    }
    assert_eq!((number, values.sets.list().await.unwrap().len()), (50, 50));
}

#[tokio::test]
async fn a_set_that_was_sent_again_since_it_was_listed_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (values, other) = (values(folder.path()), values(folder.path()));
    for number in [1, 2, 3] {
        put(&values, "a", number, 100, Utc::now()).await.unwrap();
    }
    // The third set has no charge.
    values.charges.delete(&charge("a", 3)).await.unwrap();
    let hours_ago = std::time::SystemTime::now() - Duration::from_secs(2 * 3600);
    for file in std::fs::read_dir(folder.path().join("values")).unwrap() {
        std::fs::File::open(file.unwrap().path()).unwrap().set_modified(hours_ago).unwrap();
    }
    let listing = values.list().await.unwrap();
    put(&other, "a", 1, 100, Utc::now()).await.unwrap();
    put(&other, "b", 3, 100, Utc::now()).await.unwrap();
    values.sweep(listing, &HashMap::new(), Utc::now()).await;
    assert_eq!(names(&values.sets).await, [1, 3].map(hash));
    assert_eq!(names(&values.charges).await, [1, 3].map(hash));
}

#[tokio::test]
async fn a_set_without_a_charge_is_removed_although_job_records_refer_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let values = values(folder.path());
    let now = Utc::now();
    for (tenant, number) in [("a", 1), ("b", 1), ("a", 2), ("b", 2)] {
        put(&values, tenant, number, 100, now).await.unwrap();
    }
    use_sets(&values, &[1, 2], now).await;
    // Two servers evict a set at the same time, each one for another tenant.
    for tenant in ["a", "b"] {
        values.charges.delete(&charge(tenant, 1)).await.unwrap();
    }
    values.remove_unused(now).await.unwrap();
    assert_eq!(names(&values.sets).await, [1, 2].map(hash), "its upload may not be complete");
    values.remove_unused(now + TimeDelta::hours(2)).await.unwrap();
    assert_eq!(names(&values.sets).await, [hash(2)]);
    assert_eq!(names(&values.charges).await, [2, 2].map(hash));
}

#[tokio::test]
async fn an_upload_removes_nothing_of_other_tenants_and_does_not_fail_with_what_cannot_be_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1 << 20, 4);
    let (now, later) = (Utc::now(), Utc::now() + TimeDelta::hours(2));
    for (tenant, number) in [("b", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5), ("a", 6)] {
        put(&values, tenant, number, 100, now).await.unwrap();
    }
    make_undeletable(folder.path(), &format!("{}.values", hash(1)));
    make_undeletable(folder.path(), &format!("{}.charge", charge("a", 3)));
    for number in [7, 8, 9] {
        put(&values, "a", number, 100, later).await.unwrap();
    }
    // The charges of `a` that were written first are deleted, except the one that cannot be.
    assert_eq!(names(&values.charges).await, [1, 2, 3, 7, 8, 9].map(hash));
    // What cannot be deleted does not keep other sets.
    values.remove_unused(later).await.unwrap();
    assert_eq!(names(&values.charges).await, [hash(3)]);
    assert_eq!(names(&values.sets).await, [1, 3].map(hash));
}

#[tokio::test]
async fn an_upload_that_needs_room_fails_if_too_many_charges_cannot_be_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let values = limited(folder.path(), 1 << 20, 20);
    let (now, later) = (Utc::now(), Utc::now() + TimeDelta::hours(2));
    for number in 1..=20 {
        put(&values, "a", number, 100, now).await.unwrap();
        make_undeletable(folder.path(), &format!("{}.charge", charge("a", number)));
    }
    let error = put(&values, "a", 21, 100, later).await.unwrap_err();
    assert_eq!(error.grpc_code(), tonic::Code::Unavailable, "{error}");
    assert!(error.message().contains(".charge"), "{error}");
}
