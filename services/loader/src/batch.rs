//! Batches: production in order, assembly from frames, and wire form.

pub(crate) mod assemble;
pub(crate) mod batches;
pub(crate) mod budget;
pub(crate) mod canonical;
mod consumer;
pub(crate) mod pending;
pub(crate) mod producer;
pub(crate) mod segments;
pub(crate) mod wire;
