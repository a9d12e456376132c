//! Batch queues: small requests in, batches for workers out, and to each request its share of the reply.
//!
//! ```text
//! Queue::submit --> Batcher (admits, closes batches) --> Worker::next
//! PendingRequest::answer <-------- dispatch ------------ Replies::reply
//! ```
//!
//! - [`QueueConfig`]: limits and deadlines, changeable at run time.
//! - [`Batcher`]: all decisions, as pure functions of the time and of earlier calls. It uses a [`CostModel`] of the workers.
//! - [`Queue`]: a [`Batcher`] with a clock, payloads and channels. [`Worker`] and [`PendingRequest`] are its two sides.
//! - [`Forecast`], [`ThroughputLatencyCurve`]: predictions for other settings under the current load.

mod arrivals;
mod batcher;
mod config;
mod cost_model;
mod decision;
mod forecast;
mod handle;
mod notice;
mod outcome;
mod pending;
mod state;
mod status;
mod worker;

pub use batcher::Batcher;
pub use config::QueueConfig;
pub use cost_model::{Coefficients, CostModel};
pub use decision::{
    BatchId, Cause, Class, CloseReason, Decision, FormedBatch, Priority, Refusal, RequestId, Time, WorkerId,
};
pub use forecast::{CurrentSettings, CurvePoint, Forecast, ThroughputLatencyCurve};
pub use handle::Queue;
pub use notice::Notice;
pub use outcome::{Answer, Batch, BatchShape, Failure, FeaturesFailure};
pub use pending::PendingRequest;
pub use status::{Load, Outcomes, QueueStatus, SilentWorker, SuspendedWorker};
pub use worker::{Replies, Worker};
