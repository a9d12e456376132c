use forebay_proto::v1;
use forebay_storage::{Config, Location};

use super::*;

fn jobs(folder: &std::path::Path, max_jobs: usize) -> Jobs {
    let config = Config::default();
    let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
    Jobs::new(&State::open(location, None, &config), max_jobs)
}

fn train(job: &str, seed: u64) -> v1::Train {
    v1::Train {
        dataset: "d".into(),
        snapshot: "s".into(),
        job_name: job.into(),
        seed,
        batch_size: 8,
        ..v1::Train::default()
    }
}

async fn find(jobs: &Jobs, wanted: &str) -> Result<Found, Error> {
    jobs.find(wanted, |_| true).await
}

#[test]
fn what_only_picks_batches_makes_no_other_job() {
    let whole = train("ctr", 7);
    let part = v1::Train {
        rank: Some(3),
        lane: Some(1),
        lanes: Some(2),
        epoch: 4,
        epochs: Some(2),
        start_step: 9,
        steps: 1,
        content_hash: Some(false),
        ..whole.clone()
    };
    assert_eq!(JobRecord::new(&whole, 1.0), JobRecord::new(&part, 1.0));
    assert_eq!(JobRecord::new(&whole, 1.0).id.len(), 32);
    for other in [train("ctr", 8), train("ctr2", 7), v1::Train { world_size: Some(2), ..whole.clone() }] {
        assert_ne!(JobRecord::new(&other, 1.0).id, JobRecord::new(&whole, 1.0).id);
    }
}

#[tokio::test]
async fn records_that_did_not_change_are_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(folder.path(), 100);
    let [first, second] = [1, 2].map(|seed| JobRecord::new(&train("ctr", seed), 10.0));
    jobs.keep(&first).await.unwrap();
    assert_eq!(*jobs.list().await.unwrap(), std::slice::from_ref(&first));
    // The same version with other bytes, which would not be a valid record.
    let path = folder.path().join("jobs").join(format!("{}.job", first.id));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let written = file.metadata().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'x'; written.len() as usize], 0).unwrap();
    file.set_modified(written.modified().unwrap()).unwrap();
    jobs.keep(&second).await.unwrap();
    assert_eq!(jobs.list().await.unwrap().len(), 2);
    // A new version is read, and a removed record is no longer listed.
    file.set_modified(written.modified().unwrap() + std::time::Duration::from_secs(2)).unwrap();
    assert_eq!(*jobs.list().await.unwrap(), std::slice::from_ref(&second));
    std::fs::remove_file(folder.path().join("jobs").join(format!("{}.job", second.id))).unwrap();
    assert_eq!(*jobs.list().await.unwrap(), []);
}

#[tokio::test]
async fn callers_that_wait_while_the_jobs_are_listed_share_the_next_list() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(folder.path(), 100);
    let job = JobRecord::new(&train("ctr", 1), 10.0);
    let late = async {
        jobs.keep(&job).await.unwrap();
        jobs.list().await
    };
    let (first, second, third, late) = tokio::join!(jobs.list(), jobs.list(), jobs.list(), late);
    assert!(!Arc::ptr_eq(first.as_ref().unwrap(), second.as_ref().unwrap()));
    assert!(Arc::ptr_eq(second.as_ref().unwrap(), third.as_ref().unwrap()));
    assert_eq!(*late.unwrap(), [job], "a list that was begun before the call is not shared");
}

#[tokio::test]
async fn a_job_is_found_by_id_and_by_name_and_the_one_seen_last_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(folder.path(), 100);
    let error = find(&jobs, "ctr").await.unwrap_err();
    assert!(error.message().contains("no jobs are recorded"), "{error}");
    let (first, second) = (JobRecord::new(&train("ctr", 1), 10.0), JobRecord::new(&train("ctr", 2), 20.0));
    assert!(jobs.keep(&second).await.unwrap());
    assert!(jobs.keep(&first).await.unwrap());
    let found = find(&jobs, "ctr").await.unwrap();
    assert_eq!((found.record, found.others), (second.clone(), vec![first.id.clone()]));
    assert_eq!(find(&jobs, &first.id).await.unwrap().record, first);
    // Seen again: by another server, whose clock is behind.
    assert!(!jobs.keep(&JobRecord { first_seen: 5.0, last_seen: 5.0, ..second.clone() }).await.unwrap());
    let again = find(&jobs, &second.id).await.unwrap().record;
    assert_eq!((again.first_seen, again.last_seen), (5.0, 20.0));
    let error = find(&jobs, "ctrs").await.unwrap_err();
    assert!(error.message().contains("did you mean 'ctr'?"), "{error}");
    let hidden = jobs.find("ctr", |_| false).await.unwrap_err();
    assert!(hidden.message().contains("no jobs are recorded"), "{hidden}");
}

#[tokio::test]
async fn a_damaged_record_is_omitted_and_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(folder.path(), 100);
    let (whole, damaged) = (JobRecord::new(&train("ctr", 1), 10.0), JobRecord::new(&train("ctr", 2), 20.0));
    jobs.keep(&whole).await.unwrap();
    jobs.keep(&damaged).await.unwrap();
    std::fs::write(folder.path().join(format!("jobs/{}.job", damaged.id)), "no record").unwrap();
    assert_eq!(*jobs.list().await.unwrap(), std::slice::from_ref(&whole));
    assert_eq!(find(&jobs, "ctr").await.unwrap().record, whole);
    jobs.keep(&damaged).await.unwrap();
    assert_eq!(*jobs.list().await.unwrap(), [damaged, whole]);
}

#[tokio::test]
async fn notes_are_written_once_a_job_and_no_more_than_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(folder.path(), 3);
    let (notes, write) = Notes::new(jobs.clone());
    let writing = tokio::spawn(write);
    for seed in 0..6 {
        for rank in 0..4 {
            notes.note(&v1::Train { rank: Some(rank), ..train("ctr", seed) });
        }
        notes.written().await;
    }
    assert_eq!(jobs.documents.list().await.unwrap().len(), 3);
    writing.abort();
}

/// Writes a record at `written`, in Unix seconds.
async fn keep_at(jobs: &Jobs, folder: &std::path::Path, record: &JobRecord, written: u64) {
    jobs.keep(record).await.unwrap();
    let path = folder.join("jobs").join(format!("{}.job", record.id));
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(written)).unwrap();
}

fn seeds(records: &[JobRecord]) -> Vec<u64> {
    records.iter().map(|record| record.request.seed).collect()
}

#[tokio::test]
async fn many_jobs_of_one_dataset_do_not_displace_those_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let writer = jobs(folder.path(), 4);
    let other = v1::Train { dataset: "other".into(), ..train("ctr", 1) };
    keep_at(&writer, folder.path(), &JobRecord::new(&other, 1.0), 1).await;
    for seed in 2..9 {
        keep_at(&writer, folder.path(), &JobRecord::new(&train("ctr", seed), seed as f64), seed).await;
    }
    assert_eq!(seeds(&writer.list().await.unwrap()), [8, 7, 6, 1]);
    // A server that did not write the records removes the same ones.
    let restarted = jobs(folder.path(), 4);
    restarted.forget_old().await.unwrap();
    assert_eq!(seeds(&restarted.list().await.unwrap()), [8, 7, 6, 1]);
    assert_eq!(restarted.documents.list().await.unwrap().len(), 4);
    // So does the one that wrote them.
    let next = JobRecord::new(&train("ctr", 9), 9.0);
    keep_at(&writer, folder.path(), &next, 9).await;
    writer.forget_old().await.unwrap();
    assert_eq!(seeds(&writer.list().await.unwrap()), [9, 8, 7, 1]);
    assert_eq!(
        writer.datasets.lock().await.len(),
        5,
        "only the last list and the removed record are remembered"
    );
}

#[tokio::test]
async fn a_damaged_record_does_not_prevent_the_removal_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let [first, damaged, last] = [1, 2, 3].map(|seed| JobRecord::new(&train("ctr", seed), seed as f64));
    for (record, written) in [(&first, 1), (&damaged, 2), (&last, 3)] {
        keep_at(&jobs(folder.path(), 100), folder.path(), record, written).await;
    }
    std::fs::write(folder.path().join(format!("jobs/{}.job", damaged.id)), "no record").unwrap();
    jobs(folder.path(), 2).forget_old().await.unwrap();
    let left = jobs(folder.path(), 100);
    assert_eq!(left.documents.list().await.unwrap().len(), 2);
    assert_eq!(*left.list().await.unwrap(), [last]);
}

#[tokio::test]
async fn a_state_that_fails_holds_nothing_up_and_what_was_lost_is_noted_again() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(folder.path(), 100);
    std::fs::write(folder.path().join("jobs"), "in the way").unwrap();
    let (notes, write) = Notes::new(jobs.clone());
    let writing = tokio::spawn(write);
    notes.note(&train("ctr", 1));
    notes.written().await;
    std::fs::remove_file(folder.path().join("jobs")).unwrap();
    notes.note(&train("ctr", 1));
    notes.written().await;
    assert_eq!(jobs.list().await.unwrap().len(), 1);
    writing.abort();
}
