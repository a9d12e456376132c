//! Writing and reading of sections.

use std::sync::atomic::Ordering::Relaxed;

use futures::FutureExt;

use super::*;

#[tokio::test]
async fn sections_are_aligned_and_returned_in_request_order() {
    let fixture = Fixture::new();
    let disk = fixture.open(64 * MIB);
    let lengths = [100, 0, 200_000, 9_000_000, 1, 64, 65];
    let sections = lengths.iter().enumerate().map(|(name, &length)| section(1, name as u128, length));
    assert_eq!(disk.put(1, sections.collect(), LOAD_TIME).await, Outcome::Written);
    let wanted = [5, 3, 0, 99, 6, 1, 2, 4, 3];
    let read = disk.get(1, &wanted).await;
    for (&name, read) in wanted.iter().zip(&read) {
        let Some(&length) = lengths.get(name as usize) else {
            assert!(read.is_none());
            continue;
        };
        let read = read.as_ref().unwrap();
        assert_eq!(read.as_slice(), section(1, name, length).1.concat());
        assert!(length == 0 || read.as_ptr().align_offset(64) == 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writers_of_one_section_write_it_once() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    let gate = fixture.files.gate.lock();
    let first = tokio::spawn({
        let disk = disk.clone();
        async move { put(&disk, 1, &[1, 2], 1000).await }
    });
    while disk.resident_bytes() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(disk.put(1, vec![section(1, 2, 1000)], LOAD_TIME).now_or_never(), Some(Outcome::Present));
    assert_eq!(disk.sections(1, &[2]), [false], "not written yet");
    drop(gate);
    assert_eq!(first.await.unwrap(), Outcome::Written);
    assert_eq!(fixture.files.writes.load(Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_over_the_queue_limit_are_rejected_but_one_is_always_accepted() {
    let fixture = Fixture::new();
    let config = DiskConfig { capacity_bytes: Some(MIB), max_write_queue_bytes: 4096, ..patient() };
    let disk = fixture.try_open(config, Arc::new(NoForecast)).unwrap();
    let gate = fixture.files.gate.lock();
    let first = tokio::spawn({
        let disk = disk.clone();
        async move { put(&disk, 1, &[1], 100_000).await }
    });
    while disk.resident_bytes() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(disk.put(2, vec![section(2, 1, 10)], LOAD_TIME).now_or_never(), Some(Outcome::Busy));
    let mut waiting = Box::pin(disk.write_space(10));
    assert!(waiting.as_mut().now_or_never().is_none(), "it waits for space in the queue");
    drop(gate);
    assert_eq!(first.await.unwrap(), Outcome::Written);
    let space = waiting.await;
    assert_eq!(disk.put(2, vec![section(2, 1, 4000)], LOAD_TIME).now_or_never(), Some(Outcome::Busy));
    assert_eq!(disk.put_within(space, 3, vec![section(3, 1, 10)], LOAD_TIME).await, Outcome::Written);
    assert_eq!(put(&disk, 2, &[1], 10).await, Outcome::Written);
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::await_holding_lock)] // The lock is what writes wait for.
async fn sections_that_need_more_than_their_space_in_the_queue_take_what_is_free() {
    let fixture = Fixture::new();
    let config = DiskConfig { capacity_bytes: Some(MIB), max_write_queue_bytes: 20 << 10, ..patient() };
    let disk = fixture.try_open(config, Arc::new(NoForecast)).unwrap();
    let gate = fixture.files.gate.lock();
    let first = tokio::spawn({
        let disk = disk.clone();
        async move { put(&disk, 9, &[1], 12_000).await }
    });
    while disk.resident_bytes() == 0 {
        std::thread::yield_now();
    }
    let (small, other) = (disk.write_space(1 << 10).await, disk.write_space(6 << 10).await);
    let sections = vec![section(1, 1, 5000)];
    assert!((4 << 10..8 << 10).contains(&Disk::file_bytes(&sections)));
    assert_eq!(disk.put_within(small, 1, sections.clone(), LOAD_TIME).await, Outcome::Busy);
    let small = disk.write_space(1 << 10).await;
    drop((other, gate));
    assert_eq!(disk.put_within(small, 1, sections, LOAD_TIME).await, Outcome::Written);
    assert_eq!(first.await.unwrap(), Outcome::Written);
    // All space is free again.
    assert!(disk.write_space(20 << 10).now_or_never().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_wait_for_space_leave_half_of_the_queue_to_those_that_do_not() {
    let fixture = Fixture::new();
    let config = DiskConfig { capacity_bytes: Some(MIB), max_write_queue_bytes: 20 << 10, ..patient() };
    let disk = fixture.try_open(config, Arc::new(NoForecast)).unwrap();
    // Half of the queue is sufficient for any file.
    let space = disk.write_space(1 << 30).await;
    let mut waiting = Box::pin(disk.write_space(1));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert_eq!(put(&disk, 1, &[1], 8000).await, Outcome::Written);
    let large = vec![section(2, 1, 100_000)];
    assert_eq!(disk.put_within(space, 2, large, LOAD_TIME).await, Outcome::Written);
    waiting.await;
}
