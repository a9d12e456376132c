//! Random sequences of operations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Action {
    Put {
        entry: u128,
        names: Vec<u128>,
        length: usize,
    },
    Get {
        entry: u128,
        names: Vec<u128>,
    },
    Remove {
        entry: u128,
    },
    Pin {
        entry: u128,
    },
    Unpin {
        entry: u128,
    },
    /// Begins a new process, which has not recovered the files.
    Restart,
    Recover,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let names = || proptest::collection::vec(0u128..6, 1..5);
    let action = prop_oneof![
        6 => (0u128..12, names(), 0usize..9000)
            .prop_map(|(entry, names, length)| Action::Put { entry, names, length }),
        6 => (0u128..12, names()).prop_map(|(entry, names)| Action::Get { entry, names }),
        1 => (0u128..12).prop_map(|entry| Action::Remove { entry }),
        1 => (0u128..12).prop_map(|entry| Action::Pin { entry }),
        1 => (0u128..12).prop_map(|entry| Action::Unpin { entry }),
        1 => Just(Action::Restart),
        2 => Just(Action::Recover),
    ];
    proptest::collection::vec(action, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn index_directory_and_budget_are_consistent_after_any_operations(actions in actions(), forecast in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let fixture = Fixture::new();
            let forecast: Arc<dyn Forecast<u128>> =
                if forecast { Arc::new(ByEntryNumber) } else { Arc::new(NoForecast) };
            let open = || {
                let config = DiskConfig { capacity_bytes: Some(60_000), ..patient() };
                fixture.try_open_unrecovered(config, Arc::clone(&forecast)).unwrap()
            };
            let (mut disk, recovery) = open();
            let mut recovery = Some(recovery);
            // All lengths with which each section was written.
            let mut lengths = BTreeMap::<(u128, u128), BTreeSet<usize>>::new();
            for action in actions {
                let before = fixture.on_disk();
                match action {
                    Action::Put { entry, names, length } => {
                        for name in &names {
                            lengths.entry((entry, *name)).or_default().insert(length);
                        }
                        let outcome = put(&disk, entry, &names, length).await;
                        assert_eq!(outcome == Outcome::Recovering, recovery.is_some());
                    }
                    Action::Get { entry, names } => {
                        let present = disk.sections(entry, &names);
                        let read = disk.get(entry, &names).await;
                        for ((name, present), read) in names.into_iter().zip(present).zip(read) {
                            assert_eq!(present, read.is_some());
                            let Some(read) = read else { continue };
                            assert!(lengths[&(entry, name)].contains(&read.len()));
                            assert_eq!(read.as_slice(), section(entry, name, read.len()).1.concat());
                        }
                    }
                    // A removal waits for the recovery.
                    Action::Remove { .. } if recovery.is_some() => {}
                    Action::Remove { entry } => {
                        disk.remove_where(|other| other == entry).await;
                        assert!(!disk.sections(entry, &[0, 1, 2, 3, 4, 5]).contains(&true));
                    }
                    Action::Pin { entry } => disk.pin(entry),
                    Action::Unpin { entry } => disk.unpin(entry),
                    Action::Restart => {
                        drop((disk, recovery));
                        let opened = open();
                        (disk, recovery) = (opened.0, Some(opened.1));
                    }
                    Action::Recover => {
                        if let Some(recovery) = recovery.take() {
                            recovery.run();
                        }
                    }
                }
                assert_eq!(disk.is_recovered(), recovery.is_none());
                match &recovery {
                    Some(_) => assert_eq!(fixture.on_disk(), before),
                    None => assert_consistent(&fixture, &disk),
                }
            }
        });
    }
}
