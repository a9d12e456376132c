//! Golden vectors of the order of plan version 1.
//!
//! A failure means that existing tickets now select different batches. Do not update the vectors: a different order
//! requires a new plan version with its own golden vectors, in addition to these.

use forebay_plan::{EpochOrder, Key, Level, Packs, Partitions, Permutation, Remainder, Shuffle, Steps};
use xxhash_rust::xxh3::xxh3_64;

const VERSION: u32 = 1;

/// 100 blocks of various sizes up to 1,000, some of them empty.
fn uneven_blocks() -> Vec<u32> {
    (0..100u32).map(|block| if block % 7 == 3 { 0 } else { block * 37 % 1001 }).collect()
}

/// xxh3 over all values, little-endian.
fn permutation_digest(n: u64, key: Key) -> u64 {
    let mut values = Vec::new();
    Permutation::new(n, key).fill(0..n, &mut values);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// xxh3 over all (block, item) pairs, little-endian.
fn order_digest(order: &EpochOrder) -> u64 {
    let mut locations = Vec::new();
    order.locate_range(0..order.items(), &mut locations);
    let words = locations.iter().flat_map(|location| [location.block, location.item]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    xxh3_64(&bytes)
}

fn pairs(order: &EpochOrder, positions: std::ops::Range<u64>) -> Vec<(u32, u32)> {
    let mut locations = Vec::new();
    order.locate_range(positions, &mut locations);
    locations.iter().map(|location| (location.block, location.item)).collect()
}

#[test]
fn the_version_is_1() {
    assert_eq!(forebay_plan::PLAN_VERSION, VERSION);
}

#[test]
fn plan_version_1_is_frozen_for_permutations() {
    let key = Key::derive(VERSION, 7, 3, Level::Rows, 11);
    let all = |n| -> Vec<u64> { (0..n).map(|i| Permutation::new(n, key).get(i)).collect() };
    assert_eq!(all(1), [0]);
    assert_eq!(all(2), [1, 0]);
    assert_eq!(all(5), [0, 4, 3, 2, 1]);
    assert_eq!(all(9), [5, 7, 6, 8, 4, 2, 0, 1, 3]);
    assert_eq!(all(20), [8, 18, 16, 11, 1, 15, 14, 19, 10, 3, 9, 17, 0, 7, 5, 6, 13, 2, 4, 12]);

    let digests =
        [100, 4_095, 4_096, 65_535, 65_536, 65_537, 1_048_576, 1_000_003].map(|n| permutation_digest(n, key));
    assert_eq!(
        digests,
        [
            0x8a82_6b6b_72b5_4aec,
            0xd247_d9a9_5777_9e87,
            0xcb79_c4f3_b8e5_b236,
            0xfd07_61ab_d36b_acc5,
            0x6310_5e6e_f3b1_c7df,
            0xee01_20e9_c9fd_e1fb,
            0x168e_6fdd_0249_9419,
            0x9f43_c306_8702_afd9
        ]
    );

    let ends = |n| [0, 1, n / 2, n - 1].map(|i| Permutation::new(n, key).get(i));
    assert_eq!(ends(10_000_000_000), [5_074_316_172, 2_346_003_908, 9_542_095_660, 3_006_318_018]);
    assert_eq!(
        ends(1 << 62),
        [
            943_480_524_502_052_246,
            3_923_995_510_941_942_513,
            2_194_376_041_291_088_407,
            4_354_997_194_155_582_872
        ]
    );
}

#[test]
fn plan_version_1_is_frozen_for_keys() {
    let first = |seed, epoch, level, window| {
        Permutation::new(1 << 40, Key::derive(VERSION, seed, epoch, level, window)).get(0)
    };
    assert_eq!(first(0, 0, Level::Blocks, 0), 306_518_854_900);
    assert_eq!(first(0, 0, Level::Rows, 0), 481_454_313_016);
    assert_eq!(first(0, 0, Level::Rows, 1), 985_454_630_397);
    assert_eq!(first(0, 1, Level::Rows, 0), 373_042_675_475);
    assert_eq!(first(1, 0, Level::Rows, 0), 597_074_944_036);
    assert_eq!(first(u64::MAX, u64::MAX, Level::Blocks, u64::MAX), 642_375_617_274);
}

#[test]
fn plan_version_1_is_frozen_for_epoch_orders() {
    let few = |shuffle| {
        let order = EpochOrder::new(&[3, 0, 2, 4, 1], shuffle, 1, 2);
        pairs(&order, 0..10)
    };
    assert_eq!(
        few(Shuffle::Window { rows: 3, keep_block_order: false }),
        [(3, 1), (3, 2), (3, 3), (3, 0), (2, 1), (0, 1), (0, 0), (0, 2), (2, 0), (4, 0)]
    );
    assert_eq!(
        few(Shuffle::Window { rows: 3, keep_block_order: true }),
        [(0, 1), (0, 2), (0, 0), (4, 0), (3, 2), (2, 1), (3, 0), (3, 1), (3, 3), (2, 0)]
    );
    assert_eq!(
        few(Shuffle::Global),
        [(3, 0), (3, 2), (0, 0), (3, 3), (3, 1), (2, 0), (0, 1), (0, 2), (4, 0), (2, 1)]
    );
    assert_eq!(
        few(Shuffle::None),
        [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (3, 3), (4, 0)]
    );

    let digest = |shuffle| order_digest(&EpochOrder::new(&uneven_blocks(), shuffle, 42, 5));
    assert_eq!(digest(Shuffle::Window { rows: 4096, keep_block_order: false }), 0x569d_24b9_20c7_e572);
    assert_eq!(digest(Shuffle::Window { rows: 4096, keep_block_order: true }), 0x3aa6_e034_784e_0340);
    assert_eq!(digest(Shuffle::Global), 0x0a1b_bf1a_615d_800e);
    assert_eq!(digest(Shuffle::None), 0x78c0_f423_778c_a07e);
}

#[test]
fn plan_version_1_is_frozen_for_ten_billion_items() {
    let mut blocks = vec![16_384; 610_351];
    blocks.push(9_216);
    let order = EpochOrder::new(&blocks, Shuffle::Window { rows: 1_048_576, keep_block_order: false }, 0, 0);
    assert_eq!(order.items(), 10_000_000_000);
    assert_eq!(order.windows(), 9_536);
    assert_eq!(
        pairs(&order, 1_000_000_000..1_000_000_004),
        [(541_220, 3604), (204_072, 16_041), (185_700, 7194), (5424, 2028)]
    );
    assert_eq!(pairs(&order, 9_999_999_998..10_000_000_000), [(442_790, 826), (324_457, 8315)]);
}

#[test]
fn plan_version_1_is_frozen_for_packs() {
    // Groups of 1 to 23 rows.
    let lengths: Vec<u32> = (0..1000u32).map(|group| group * group % 23 + 1).collect();
    let rows = lengths.iter().map(|rows| u64::from(*rows)).sum();
    let count = Packs::count(rows, 19, 100).unwrap();
    let packs = Packs::cut(lengths, rows, count);
    assert_eq!((rows, packs.len()), (8998, 110));
    let starts: Vec<u64> = (0..12).map(|pack| packs.groups(pack..pack + 1).start).collect();
    assert_eq!(starts, [0, 10, 18, 30, 38, 45, 56, 64, 74, 83, 90, 101]);
    let all = (0..count).map(|pack| packs.groups(pack..pack + 1));
    assert_eq!(
        xxh3_64(&all.flat_map(|groups| groups.start.to_le_bytes()).collect::<Vec<u8>>()),
        0x4763_2684_bbe5_a6ba
    );
}

/// xxh3 over all (block, item) pairs of an epoch with `count` partitions, little-endian, in the order of its positions.
fn partitioned_digest(count: u32, shuffle: Shuffle) -> u64 {
    let partitions = Partitions::new(&uneven_blocks(), count);
    let orders: Vec<EpochOrder> = (0..count).map(|k| partitions.epoch(k, shuffle, 42, 5)).collect();
    let steps = Steps::new(partitions.items(), 64, 1, Remainder::Short).expect("sizes are at least 1");
    let mut locations = Vec::new();
    for step in 0..steps.count() {
        for (k, order) in (0..count).zip(&orders) {
            order.locate_range(partitions.positions(&steps, step, 0, k), &mut locations);
        }
    }
    assert_eq!(locations.len() as u64, partitions.items());
    let words = locations.iter().flat_map(|location| [location.block, location.item]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    xxh3_64(&bytes)
}

#[test]
fn plan_version_1_is_frozen_for_partitions() {
    let partitions = Partitions::new(&[7, 0, 3, 9, 2, 4], 2);
    let fragments = |k| -> Vec<(u32, u32, u32)> {
        partitions.fragments(k).iter().map(|own| (own.block, own.first, own.items)).collect()
    };
    assert_eq!(fragments(0), [(0, 0, 7), (4, 0, 2), (5, 0, 3)]);
    assert_eq!(fragments(1), [(1, 0, 0), (2, 0, 3), (3, 0, 9), (5, 3, 1)]);
    let shuffle = Shuffle::Window { rows: 10, keep_block_order: false };
    let items = |k| pairs(&partitions.epoch(k, shuffle, 1, 2), 0..partitions.items_of(k));
    assert_eq!(
        items(0),
        [(4, 0), (0, 0), (0, 4), (0, 1), (4, 1), (0, 2), (0, 5), (5, 2), (5, 0), (0, 3), (5, 1), (0, 6)]
    );
    assert_eq!(
        items(1),
        [
            (3, 2),
            (3, 4),
            (3, 0),
            (3, 8),
            (3, 7),
            (5, 3),
            (2, 1),
            (3, 3),
            (3, 6),
            (3, 5),
            (2, 2),
            (3, 1),
            (2, 0)
        ]
    );

    let shuffles = [
        Shuffle::Window { rows: 4096, keep_block_order: false },
        Shuffle::Window { rows: 4096, keep_block_order: true },
        Shuffle::Global,
    ];
    let digests = |count| shuffles.map(|shuffle| partitioned_digest(count, shuffle));
    // The digests of the epoch order.
    assert_eq!(digests(1), [0x569d_24b9_20c7_e572, 0x3aa6_e034_784e_0340, 0x0a1b_bf1a_615d_800e]);
    assert_eq!(digests(2), [0xcab0_30aa_dd69_7ce5, 0x549b_d5ef_1662_f0ec, 0x788b_d4f2_5757_15d6]);
    assert_eq!(digests(8), [0x7bbd_61f9_416d_da59, 0x67e0_4e97_d860_6759, 0x4143_b0f1_be8d_942e]);
}
