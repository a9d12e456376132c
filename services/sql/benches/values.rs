//! Time of a filter for each row: with a set of 100,000 values, next to a comparison.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_sql::{Expression, ValueSet};

const ROWS: i64 = 65_536;
const VALUES: i64 = 100_000;

/// A set in its encoded form: the kind, the width of the values, and the values.
fn set(kind: u8, width: u8, values: impl Iterator<Item = Vec<u8>>) -> Arc<ValueSet> {
    let mut encoded = b"FBV1".to_vec();
    encoded.extend([kind, 0, width, 0]);
    encoded.extend(VALUES.to_le_bytes());
    encoded.extend(values.flatten());
    Arc::new(ValueSet::read(Buffer::from(encoded)).expect("the set is in its canonical form"))
}

fn bench(criterion: &mut Criterion) {
    // Every other number and text is a member.
    let integers = set(1, 8, (0..VALUES).map(|number| (2 * number).to_le_bytes().to_vec()));
    let texts = set(
        3,
        0,
        (0..VALUES).map(|number| {
            let text = format!("user {:09}", 2 * number);
            [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
        }),
    );
    // Numbers in an order that is not that of the set.
    let numbers = || (0..ROWS).map(|row| row * 40_503 % (2 * VALUES));
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(numbers()))),
        (
            "name",
            Arc::new(StringArray::from_iter_values(numbers().map(|number| format!("user {number:09}")))),
        ),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("the columns have as many rows");
    let sets = [("ids".to_owned(), integers), ("names".to_owned(), texts)];
    let mut group = criterion.benchmark_group("filter");
    group.throughput(Throughput::Elements(ROWS as u64));
    for filter in ["id < 100000", "id IN (:ids)", "name < 'user 000100000'", "name IN (:names)"] {
        let compiled = Expression::filter_with(filter, &batch.schema(), &sets).expect("the filter is valid");
        group.bench_function(filter, |bench| {
            bench.iter(|| compiled.evaluate(&batch).expect("a result for each row"));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
