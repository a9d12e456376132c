//! Telemetry: events, traces, metrics, and where the time of training jobs goes.
//!
//! - [`events`]: the last events of the server, for the dashboard and the API.
//! - [`audit`]: log lines about changes and failed logins.
//! - [`traces`]: spans of calls, exported over OTLP.
//! - [`stalls`]: the bottleneck of each session and of the server, from the accounts of `forebay_stall`.
//! - [`catalog`]: all metrics in one table; [`recorder`] collects their values, [`metric_readout`] reads them.
//! - [`process`], [`event_loop_delay`]: metrics of the process and of its async runtime.

pub(crate) mod audit;
pub(crate) mod catalog;
pub(crate) mod event_loop_delay;
pub(crate) mod events;
pub(crate) mod metric_readout;
pub(crate) mod process;
pub(crate) mod recorder;
pub(crate) mod stalls;
pub(crate) mod traces;
