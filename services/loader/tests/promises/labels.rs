//! The distribution of a label is estimated from blocks that are spread evenly over the dataset.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use forebay_loader::Config;
use forebay_proto::v1::Train;
use forebay_storage::Reader;
use object_store::{ObjectStoreExt, path::Path};

use crate::fixture::{job, loader, numbered, reader, store};

/// Dataset whose blocks have two rows labelled with the number of the block, one without a label, and one labelled NaN.
async fn numbered_blocks(blocks: u32) -> Reader {
    let file = |block: u32| {
        let block = f64::from(block);
        let labels: ArrayRef =
            Arc::new(Float64Array::from(vec![Some(block), Some(block), None, Some(f64::NAN)]));
        RecordBatch::try_from_iter([("label", labels)]).unwrap()
    };
    reader(store(&(0..blocks).map(file).collect::<Vec<_>>(), 4).await).await
}

fn labelled(filter: &str) -> Train {
    Train { batch_size: 1, label_column: "label".into(), filter: filter.into(), ..Train::default() }
}

/// Mean label as estimated by a new loader.
async fn mean(reader: &Reader, train: &Train) -> Option<f64> {
    let loader = loader(1 << 24, 2, Config::default());
    loader.label(&job(train, reader)).await.unwrap().map(|known| known.mean)
}

#[track_caller]
fn assert_near(mean: Option<f64>, expected: f64) {
    assert!(mean.is_some_and(|mean| (mean - expected).abs() < 1e-9), "{mean:?}, expected {expected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mean_of_a_label_is_that_of_the_middle_blocks_of_at_most_sixteen_intervals() {
    let reader = numbered_blocks(7).await;
    assert_near(mean(&reader, &labelled("")).await, 3.0);
    // 14 intervals of 3 blocks, of which the second is read: 1, 4 and so on up to 40.
    let reader = numbered_blocks(42).await;
    assert_near(mean(&reader, &labelled("")).await, 20.5);
    // The filter keeps rows of blocks 12 to 41. They form 15 intervals of 2 blocks, and the second block of each is read: 13,
    // 15 and so on up to 41. NaN has to be excluded, because it is greater than any number.
    assert_near(mean(&reader, &labelled("label >= 12 AND NOT isnan(label)")).await, 27.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_label_has_no_estimate() {
    let reader = numbered_blocks(2).await;
    assert_eq!(mean(&reader, &Train { batch_size: 1, ..Train::default() }).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_is_estimated_once_for_all_requests_with_the_same_filter() {
    let store = store(&[numbered(0..100)], 10).await;
    let reader = reader(Arc::clone(&store) as _).await;
    let loader = loader(1 << 24, 2, Config::default());
    let of = |filter: &str| {
        let train = Train { label_column: "x".into(), filter: filter.into(), ..labelled("") };
        job(&train, &reader)
    };
    let (all, some) = (of(""), of("id < 50"));
    let known = loader.label(&all).await.unwrap();
    store.delete(&Path::from("data/part-000.parquet")).await.unwrap();
    assert_eq!(loader.label(&all).await.unwrap(), known);
    assert!(loader.label(&some).await.is_err(), "the file is gone");
}
