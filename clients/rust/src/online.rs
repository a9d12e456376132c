//! Lookups and batch queues, over DoExchange streams.
//!
//! ```text
//! Lookups, Caller --> Requests: opens an exchange when needed
//!                        |
//!                     Exchange: requests in flight --> one answer for each
//!
//! Worker --next--> InferenceBatch --reply--> Replies: the exchange that the batch came from
//! ```

mod answer;
mod caller;
mod exchange;
mod inference_batch;
mod lookups;
mod replies;
mod reply_types;
mod requests;
mod worker;

pub use caller::{Answer, Caller};
pub use inference_batch::InferenceBatch;
pub use lookups::{Found, Lookups};
pub use worker::Worker;
