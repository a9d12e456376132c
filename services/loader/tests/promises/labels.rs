//! The distribution of a label is estimated from blocks that are spread evenly over the dataset.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use forebay_loader::Config;
use forebay_proto::v1::Train;
use forebay_storage::Reader;

use crate::fixture::{job, loader, reader, store};

/// Dataset of `blocks` blocks of two rows with the number of the block, a row without a label, and one that is not a number.
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

#[tokio::test(flavor = "multi_thread")]
async fn the_mean_of_a_label_is_that_of_the_middle_blocks_of_at_most_sixteen_intervals() {
    let reader = numbered_blocks(7).await;
    assert_eq!(mean(&reader, &labelled("")).await, Some(3.0), "all blocks");
    // 14 intervals of 3 blocks: 1, 4 and so on up to 40.
    let reader = numbered_blocks(42).await;
    assert_eq!(mean(&reader, &labelled("")).await, Some(20.5));
    // 15 intervals of 2 of the blocks with kept rows, from 12 to 41: 13, 15 and so on up to 41.
    assert_eq!(mean(&reader, &labelled("label >= 12 AND NOT isnan(label)")).await, Some(27.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_label_has_no_estimate() {
    let reader = numbered_blocks(2).await;
    assert_eq!(mean(&reader, &Train { batch_size: 1, ..Train::default() }).await, None);
}
