//! Progress of the counting of rows, while a server plans a training with a filter or with groups.

use std::{convert::Infallible, time::Duration};

use forebay_proto::v1::{CountResult, Train};
use prost::Message;

use crate::{route::Transport, training::ticket};

/// Time after which a server that plans a training is asked for the progress of its counting.
const ASKED_AFTER: Duration = Duration::from_secs(3);

/// Returns true if the server counts rows before it can answer.
pub(crate) fn is_counted(train: &Train) -> bool {
    !train.filter.is_empty() || !train.group_by.is_empty()
}

/// Calls `progress` while the server of `transport` counts the rows of `train`. Never returns. The server counts the rows once for this
/// call and the plan together. Its errors are those of the plan.
pub(crate) async fn watch(
    transport: &Transport,
    train: &Train,
    progress: impl Fn(CountResult),
) -> Infallible {
    tokio::time::sleep(ASKED_AFTER).await;
    let counted = transport.action_results("count-rows", ticket(train), |result| {
        CountResult::decode(result).into_iter().for_each(&progress);
    });
    drop(counted.await);
    std::future::pending().await
}
