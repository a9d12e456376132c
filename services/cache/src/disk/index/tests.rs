use proptest::prelude::*;

use super::{super::key::comparisons, *};
use crate::disk::{format::Parts, usage::BLOCK_BYTES};

const ENTRY: u128 = 7;

/// A file of `ENTRY` with empty sections of these names.
fn file(id: u64, names: impl IntoIterator<Item = u128>) -> Arc<Stored> {
    file_of(ENTRY, id, names)
}

fn file_of(entry: u128, id: u64, names: impl IntoIterator<Item = u128>) -> Arc<Stored> {
    let sections: Vec<Parts> = names.into_iter().map(|name| (name, Vec::new())).collect();
    Arc::new(Stored::new(FileKey { entry, id }, Table::new(entry, &sections, Duration::ZERO)))
}

fn add(index: &mut Index, stored: Arc<Stored>) {
    assert!(index.charge(stored.usage(), Usage { bytes: u64::MAX, index_bytes: u64::MAX }));
    index.insert(stored);
}

/// An index of one entry with `files` files of `sections` sections each.
fn index(files: u64, sections: u128) -> Index {
    let mut index = Index::default();
    for id in 1..=files {
        let first = u128::from(id) * sections;
        add(&mut index, file(id, first..first + sections));
    }
    index
}

/// Returns the number of comparisons of each operation on one section of an index of 65,536 sections.
fn costs(index: &mut Index, name: u128, id: u64) -> Vec<(&'static str, u64)> {
    let key = FileKey { entry: ENTRY, id };
    let mut costs = Vec::new();
    let mut counted = |operation, comparisons| costs.push((operation, comparisons));
    let (present, comparisons) = comparisons::of(|| index.sections(ENTRY, &[name, u128::MAX]));
    assert_eq!(present, [true, false]);
    counted("sections", comparisons);
    let (found, comparisons) = comparisons::of(|| index.find(ENTRY, &[name]).len());
    assert_eq!(found, 1);
    counted("find", comparisons);
    let (claimed, comparisons) = comparisons::of(|| index.claim(ENTRY, [name, u128::MAX].into_iter()));
    assert_eq!(claimed, [u128::MAX]);
    counted("claim", comparisons);
    let (stored, comparisons) = comparisons::of(|| index.stored(key).is_some());
    assert!(stored);
    counted("stored", comparisons);
    let new = file(u64::MAX, [u128::MAX]);
    counted("insert", comparisons::of(|| add(index, new)).1);
    let (removed, comparisons) = comparisons::of(|| index.remove(FileKey { entry: ENTRY, id: u64::MAX }));
    assert!(removed.is_some());
    counted("remove", comparisons);
    costs
}

#[test]
fn work_on_one_section_is_logarithmic_however_sections_are_distributed_over_files() {
    // A tree compares up to 11 keys at each of its levels, of which 65,536 keys need at most seven. An operation looks
    // up two names, or one name in each of two maps. A search of all 256 files or sections would exceed the limit.
    const MAX_COMPARISONS: u64 = 2 * 7 * 11;
    for (files, sections) in [(1, 65_536), (256, 256), (65_536, 1)] {
        let mut index = index(files, sections);
        let (name, id) = (u128::from(files) * sections, files);
        for (operation, comparisons) in costs(&mut index, name, id) {
            let context = format!("{operation} with {files} files of {sections} sections");
            assert!(comparisons <= MAX_COMPARISONS, "{comparisons} comparisons of {context}");
        }
    }
}

#[test]
fn work_on_all_sections_of_a_file_is_proportional_to_their_number() {
    let comparisons_per_section = |sections: u128| {
        let names: Vec<u128> = (0..sections).collect();
        let mut index = Index::default();
        let ((), comparisons) = comparisons::of(|| {
            assert_eq!(index.claim(ENTRY, names.iter().copied()), names);
            add(&mut index, file(1, names.iter().copied()));
            index.unclaim(ENTRY, &names);
            assert_eq!(index.claim(ENTRY, names.iter().copied()), []);
            assert_eq!(index.find(ENTRY, &names)[0].1.len(), names.len());
            assert!(index.remove(FileKey { entry: ENTRY, id: 1 }).is_some());
        });
        comparisons / names.len() as u64
    };
    // The factor is that of the logarithms, 16 / 8, and of the tree's granularity.
    assert!(comparisons_per_section(65_536) <= 3 * comparisons_per_section(256));
}

#[test]
fn the_number_of_pinned_bytes_is_known_without_visiting_files() {
    let mut index = index(4096, 1);
    for (pin, files) in [(true, 4096), (true, 4096), (false, 4096), (false, 0), (true, 4096)] {
        let change = || if pin { index.pin(ENTRY) } else { index.unpin(ENTRY) };
        assert_eq!(comparisons::of(change).1, 0);
        assert_eq!(comparisons::of(|| index.pinned_bytes()), (files * BLOCK_BYTES, 0));
    }
    index.remove(FileKey { entry: ENTRY, id: 9 });
    assert_eq!(index.pinned_bytes(), 4095 * BLOCK_BYTES);
}

#[test]
fn the_newest_file_with_a_section_is_used_and_the_next_one_after_its_removal() {
    let mut index = Index::default();
    // Files are recovered in the order of their last writes, which may differ from that of their ids.
    for id in [2, 3, 1] {
        add(&mut index, file(id, [5, 6]));
    }
    add(&mut index, file(4, [6]));
    let found = |index: &Index| {
        let found = index.find(ENTRY, &[6, 9, 5, 6]);
        let ids = found.iter().map(|(stored, places)| {
            (stored.key.id, places.iter().map(|place| (place.requested, place.record)).collect::<Vec<_>>())
        });
        ids.collect::<Vec<_>>()
    };
    assert_eq!(found(&index), [(4, vec![(0, 0), (3, 0)]), (3, vec![(2, 0)])]);
    for id in [4, 3] {
        index.remove(FileKey { entry: ENTRY, id });
    }
    assert_eq!(found(&index), [(2, vec![(0, 1), (2, 0), (3, 1)])]);
    index.remove(FileKey { entry: ENTRY, id: 2 });
    index.remove(FileKey { entry: ENTRY, id: 1 });
    assert_eq!(found(&index), []);
    assert_eq!((index.entries(), index.resident_bytes()), (vec![], 0));
}

#[test]
fn of_a_name_that_a_file_repeats_the_first_section_is_used() {
    let mut index = Index::default();
    add(&mut index, file(1, [5, 6, 5]));
    assert_eq!(index.find(ENTRY, &[5])[0].1[0].record, 0);
    assert!(index.remove(FileKey { entry: ENTRY, id: 1 }).is_some());
    assert_eq!(index.sections(ENTRY, &[5, 6]), [false, false]);
}

#[derive(Debug, Clone)]
enum Action {
    Add { entry: u128, id: u64, names: Vec<u128> },
    Remove { entry: u128, id: u64 },
    Pin { entry: u128 },
    Unpin { entry: u128 },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let (entry, id) = (0u128..3, 1u64..8);
    let names = proptest::collection::vec(0u128..6, 1..5);
    let action = prop_oneof![
        4 => (entry.clone(), id.clone(), names).prop_map(|(entry, id, names)| Action::Add { entry, id, names }),
        2 => (entry.clone(), id).prop_map(|(entry, id)| Action::Remove { entry, id }),
        1 => entry.clone().prop_map(|entry| Action::Pin { entry }),
        1 => entry.prop_map(|entry| Action::Unpin { entry }),
    ];
    proptest::collection::vec(action, 1..80)
}

proptest! {
    #[test]
    fn lookups_and_sizes_equal_those_of_a_list_of_files(actions in actions()) {
        let mut index = Index::default();
        let mut model: BTreeMap<FileKey, Arc<Stored>> = BTreeMap::new();
        let mut pins: HashMap<u128, usize> = HashMap::new();
        for action in actions {
            match action {
                Action::Add { entry, id, names } => {
                    let stored = file_of(entry, id, names);
                    if let std::collections::btree_map::Entry::Vacant(vacant) = model.entry(stored.key) {
                        vacant.insert(Arc::clone(&stored));
                        add(&mut index, stored);
                    }
                }
                Action::Remove { entry, id } => {
                    let key = FileKey { entry, id };
                    prop_assert_eq!(index.remove(key).is_some(), model.remove(&key).is_some());
                }
                Action::Pin { entry } => {
                    index.pin(entry);
                    *pins.entry(entry).or_default() += 1;
                }
                Action::Unpin { entry } => {
                    index.unpin(entry);
                    let count = pins.entry(entry).or_default();
                    *count = count.saturating_sub(1);
                }
            }
            let bytes = |is_counted: &dyn Fn(u128) -> bool| -> u64 {
                let files = model.values().filter(|stored| is_counted(stored.key.entry));
                files.map(|stored| stored.charged_bytes()).sum()
            };
            prop_assert_eq!(index.resident_bytes(), bytes(&|_| true));
            prop_assert_eq!(index.pinned_bytes(), bytes(&|entry| pins.get(&entry).is_some_and(|&pins| pins > 0)));
            for entry in 0..3 {
                let files = || model.values().filter(|stored| stored.key.entry == entry).rev();
                prop_assert_eq!(index.files(entry).len(), files().count());
                for name in 0..6 {
                    let position = |stored: &Arc<Stored>| {
                        let at = stored.table.records.iter().position(|record| record.name == name)?;
                        Some((stored.key.id, at))
                    };
                    let found = index.find(entry, &[name]);
                    let found = found.first().map(|(stored, places)| (stored.key.id, places[0].record));
                    prop_assert_eq!(found, files().find_map(position));
                    prop_assert_eq!(index.sections(entry, &[name]), [found.is_some()]);
                }
            }
        }
    }
}
