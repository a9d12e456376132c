//! The number of workers that a queue needs, for autoscalers.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_demand_is_the_number_of_workers_that_the_arrivals_keep_busy() {
    // Each request fills a batch, which takes 100 ms.
    let config = QueueConfig { max_batch_rows: 10, default_timeout: ms(10_000), ..QueueConfig::default() };
    let (queue, _timer) = queue(config);
    assert_eq!(queue.demand(), None, "no batch was computed");
    let serving = [(); 4].map(|()| tokio::spawn(serve(queue.add_worker(1), ms(100))));
    // 25 requests per second are 2.5 batches in 100 ms.
    for number in 0..1000 {
        tokio::time::sleep(ms(40)).await;
        drop(tokio::spawn(queue.submit(number, (10, 80, 80), None).expect("admitted").answer()));
    }
    let demand = queue.demand().expect("batches were computed");
    assert!((2.4..2.6).contains(&demand), "{demand}");
    serving.iter().for_each(tokio::task::JoinHandle::abort);
    while queue.status().load.workers > 0 {
        tokio::task::yield_now().await;
    }
    let without_workers = queue.demand().expect("batches were computed");
    assert!((2.4..2.6).contains(&without_workers), "{without_workers}");
}
