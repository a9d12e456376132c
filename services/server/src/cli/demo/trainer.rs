//! The trainer: a stock Flight client and a linear model that is fitted to the batches.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use arrow_array::{Array, RecordBatch, cast::AsArray, types::Float32Type};
use arrow_flight::{
    FlightClient, FlightDescriptor, Ticket, decode::FlightRecordBatchStream, error::FlightError,
    flight_service_client::FlightServiceClient,
};
use arrow_schema::Schema;
use forebay_proto::{Encoding, v1};
use forebay_stall::Moments;
use futures::TryStreamExt;
use tonic::transport::Endpoint;

use crate::{Address, digest::Digest};

/// A trainer that is connected to a server.
pub(super) struct Trainer {
    client: FlightClient,
    model: Model,
}

/// Measurements of one epoch.
pub(super) struct Passed {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) first_batch: Duration,
    /// From the request to the end of the stream.
    pub(super) wall: Duration,
    /// The part of it in which the trainer waited for a batch.
    pub(super) waited: Duration,
    /// Mean loss of the first and of the last tenth of the batches.
    pub(super) loss: (f64, f64),
    pub(super) digest: String,
}

impl Trainer {
    pub(super) async fn connect(server: &Address) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(server.url())?
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(64 << 20)
            .connect()
            .await?;
        let client = FlightServiceClient::new(channel).max_decoding_message_size(1 << 30);
        Ok(Self { client: FlightClient::new_from_inner(client), model: Model::default() })
    }

    pub(super) async fn schema(&mut self, dataset: &str) -> anyhow::Result<Schema> {
        let descriptor = FlightDescriptor::new_path(vec![dataset.to_owned()]);
        self.client.get_schema(descriptor).await.map_err(server_message)
    }

    pub(super) async fn plan(&mut self, train: &v1::Train) -> anyhow::Result<v1::PlanSummary> {
        let info = self
            .client
            .get_flight_info(FlightDescriptor::new_cmd(command(train)))
            .await
            .map_err(server_message)?;
        Ok(Encoding::Protobuf.decode("PlanSummary", &info.app_metadata)?)
    }

    /// Trains on one epoch.
    pub(super) async fn train_epoch(&mut self, train: &v1::Train) -> anyhow::Result<Passed> {
        let started = Instant::now();
        let mut stream = self.open(train).await?;
        let (mut rows, mut bytes) = (0, 0);
        let (mut waited, mut first_batch) = (Duration::ZERO, None);
        let mut digest = Digest::default();
        let mut losses = Vec::new();
        loop {
            let asked = Instant::now();
            let batch = stream.try_next().await.map_err(server_message)?;
            waited += asked.elapsed();
            first_batch.get_or_insert_with(|| started.elapsed());
            let Some(batch) = batch else { break };
            rows += batch.num_rows() as u64;
            bytes += batch
                .columns()
                .iter()
                .map(|column| column.to_data().get_slice_memory_size())
                .sum::<Result<usize, _>>()? as u64;
            digest.update(&batch);
            losses.push(self.model.fit(tensor(&batch, "x")?, tensor(&batch, "y")?));
        }
        let tenth = losses.len().div_ceil(10).max(1);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        Ok(Passed {
            rows,
            bytes,
            first_batch: first_batch.unwrap_or_default(),
            wall: started.elapsed(),
            waited,
            loss: (
                mean(&losses[..tenth.min(losses.len())]),
                mean(&losses[losses.len().saturating_sub(tenth)..]),
            ),
            digest: digest.finish(),
        })
    }

    /// Streams an epoch and returns its digest.
    pub(super) async fn digest_of(&mut self, train: &v1::Train) -> anyhow::Result<String> {
        let mut stream = self.open(train).await?;
        let mut digest = Digest::default();
        while let Some(batch) = stream.try_next().await.map_err(server_message)? {
            digest.update(&batch);
        }
        Ok(digest.finish())
    }

    async fn open(&mut self, train: &v1::Train) -> anyhow::Result<FlightRecordBatchStream> {
        self.client.do_get(Ticket::new(command(train))).await.map_err(server_message)
    }
}

fn command(train: &v1::Train) -> Vec<u8> {
    Encoding::Protobuf.encode(&v1::Command::from(train.clone()))
}

/// Returns the message of the server.
fn server_message(error: FlightError) -> anyhow::Error {
    match error {
        FlightError::Tonic(status) => anyhow::anyhow!("{}", status.message()),
        other => other.into(),
    }
}

/// Returns the values of a tensor, row by row, and the number of values per row.
fn tensor<'a>(batch: &'a RecordBatch, name: &str) -> anyhow::Result<(&'a [f32], usize)> {
    let column = batch.column_by_name(name).with_context(|| format!("the batch has no tensor {name}"))?;
    let list = column.as_fixed_size_list();
    let Some(values) = list.values().as_primitive_opt::<Float32Type>() else {
        bail!("tensor {name} is not of type float32");
    };
    Ok((values.values(), list.value_length() as usize))
}

/// Linear regression by mini-batch gradient descent on standardized values.
#[derive(Default)]
struct Model {
    features: Vec<Moments>,
    label: Moments,
    weights: Vec<f64>,
}

const LEARNING_RATE: f64 = 0.1;

impl Model {
    /// One step; returns the mean squared error before it, in units of the label's variance.
    fn fit(&mut self, (x, width): (&[f32], usize), (y, _): (&[f32], usize)) -> f64 {
        self.features.resize(width, Moments::default());
        self.weights.resize(width, 0.0);
        for (feature, moments) in self.features.iter_mut().enumerate() {
            moments.merge(&Moments::of(x.iter().skip(feature).step_by(width).copied().map(f64::from)));
        }
        self.label.merge(&Moments::of(y.iter().copied().map(f64::from)));
        let scales: Vec<(f64, f64)> = self.features.iter().map(scale).collect();
        let (label_mean, label_scale) = scale(&self.label);
        let mut gradient = vec![0.0; width];
        let mut row = vec![0.0; width];
        let mut loss = 0.0;
        for (values, label) in x.chunks_exact(width).zip(y) {
            let mut predicted = 0.0;
            for feature in 0..width {
                let (mean, scale) = scales[feature];
                row[feature] = (f64::from(values[feature]) - mean) * scale;
                predicted += row[feature] * self.weights[feature];
            }
            let error = predicted - (f64::from(*label) - label_mean) * label_scale;
            loss += error * error;
            for feature in 0..width {
                gradient[feature] += error * row[feature];
            }
        }
        let rows = y.len().max(1) as f64;
        for (weight, gradient) in self.weights.iter_mut().zip(gradient) {
            *weight -= LEARNING_RATE * gradient / rows;
        }
        loss / rows
    }
}

/// Returns the mean and the factor that scales the variance to 1; the factor is 0 for a constant.
fn scale(moments: &Moments) -> (f64, f64) {
    let variance = moments.variance();
    (moments.mean, if variance > 0.0 { variance.sqrt().recip() } else { 0.0 })
}
