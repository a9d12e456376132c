use std::task::{Context, Poll, Waker};

use arrow_array::{
    RecordBatch,
    builder::{Int32Builder, ListBuilder},
};
use forebay_proto::v1::Train;

use super::*;
use crate::{FrameBuilder, test_data::reader};

const ROWS: usize = 4096;
const COLUMNS: usize = 50;

/// Lists of which each third has a null item.
fn lists() -> RecordBatch {
    let column = |number: usize| -> ArrayRef {
        let mut lists = ListBuilder::new(Int32Builder::new());
        for row in 0..ROWS {
            for item in 0..(row + number) % 4 {
                lists.values().append_option((row % 3 != 0 || item != 1).then_some((row * item) as i32));
            }
            lists.append(true);
        }
        Arc::new(lists.finish())
    };
    RecordBatch::try_from_iter((0..COLUMNS).map(|number| (format!("l{number}"), column(number)))).unwrap()
}

#[tokio::test]
async fn a_turn_of_gathering_ends_between_tiles_and_the_bytes_stay_the_same() {
    let input = lists();
    let reader = reader("lists", [input.clone()]).await;
    let train = Train { dataset: "lists".into(), batch_size: 1, ..Train::default() };
    let view = Arc::new(View::resolve(reader.snapshot(), &train).unwrap());
    let slabs = Slabs::new(0);
    let mut builder = FrameBuilder::new(Arc::clone(&view), ROWS, "test".into(), &slabs).unwrap();
    builder.append(&input).unwrap();
    let frames = [Arc::new(builder.finish().unwrap())];
    let rows: Vec<RowRef> =
        (0..ROWS as u32).map(|row| RowRef { frame: 0, row: row * 31 % ROWS as u32 }).collect();
    let options = AssembleOptions { hash: true, max_bytes: u64::MAX, max_held_bytes: 0, min_rows: 0 };
    // Each turn is over as soon as the time is read.
    let mut turn = TurnClock::of_turns(std::time::Duration::ZERO);
    let mut work = Box::pin(assemble_in_turns(&view, &frames, &rows, options, &slabs, &mut turn));
    let (mut turns, mut context) = (1, Context::from_waker(Waker::noop()));
    let in_turns = loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(batch) => break batch.unwrap(),
            Poll::Pending => turns += 1,
        }
    };
    // Each column of 4096 values is copied in a turn of about that many values.
    assert!(turns > COLUMNS, "{turns} turns");
    assert!(in_turns == assemble(&view, &frames, &rows, options, &slabs).unwrap(), "the same bytes");
}
