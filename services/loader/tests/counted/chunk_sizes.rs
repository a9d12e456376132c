//! The number of rows decoded at once changes neither the bytes of a batch nor the names of columns on disk.

use forebay_loader::Config;
use forebay_proto::v1::Train;

use crate::{
    fixture::{counters::Counters, digests, everything::everything, open, reader, store},
    tiers::{AMPLE, DECODED, always, of_epoch, written},
};

#[tokio::test(flavor = "multi_thread")]
async fn columns_on_disk_are_found_with_another_number_of_rows_decoded_at_once() {
    let counters = Counters::from_zero().await;
    let folder = tempfile::TempDir::new().unwrap();
    let files = [everything(5_000, |row| row % 7 == 1), everything(777, |row| row % 3 == 0)];
    let reader = reader(store(&files, 3_000).await).await;
    let all = Train { batch_size: 500, ..Train::default() };
    let select = ["f64 * 2 AS twice", "upper(text) AS text", "i8", "list"].map(str::to_owned).to_vec();
    let computed = Train { select, filter: "full % 3 <> 1".into(), ..all.clone() };
    let mut expected: Option<Vec<Vec<u64>>> = None;
    for decode_rows in [8192, 16] {
        let loader = open(folder.path(), AMPLE, AMPLE, &Config { decode_rows, ..always() });
        let jobs = [of_epoch(&all, 0, &reader), of_epoch(&computed, 0, &reader)];
        let before = counters.get(DECODED);
        let mut found = Vec::new();
        for job in jobs {
            found.push(digests(loader.batches(job, 0, 0)).await.unwrap());
        }
        written(&loader).await;
        let decoded = counters.get(DECODED) - before;
        match &expected {
            None => assert!(decoded > 0, "nothing was on disk"),
            Some(expected) => {
                assert_eq!(&found, expected, "{decode_rows} rows decoded at once");
                assert_eq!(decoded, 0, "columns were decoded again");
            }
        }
        expected = Some(found);
    }
}
