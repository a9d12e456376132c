//! Where the stall is, as it is told to people: answers of the API, in words and numbers.

mod answers;
mod gauges;
mod observer;
mod pipeline;
mod words;

pub(crate) use answers::{SessionAnswer, StallsAnswer, VerdictAnswer};
pub(crate) use observer::Observer;
pub(crate) use pipeline::{Pipeline, StageAnswer};
pub(crate) use words::Facts;
