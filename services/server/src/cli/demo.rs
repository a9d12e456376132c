//! `forebay demo`: streams a dataset over Arrow Flight to a trainer in the same process.

mod report;
mod trainer;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use arrow_schema::{DataType, Schema};
use clap::Args;
use forebay_proto::v1;
use forebay_sample_data::{lineitem, ranking};

use super::runtime::runtime;
use crate::{Server, Settings, settings::default_cache_dir};
use report::Report;
use trainer::Trainer;

/// Flags of `forebay demo`.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Path or URL of a Parquet file or of a folder of Parquet files [default: the TPC-H table `lineitem`, generated once and kept].
    source: Option<String>,
    /// Scale factor of the generated TPC-H data; 1 generates 6,001,215 rows.
    #[arg(long, default_value_t = 1.0, conflicts_with = "source")]
    scale: f64,
    /// Generates a log of 20,000 search queries with 20 ranked items each instead of TPC-H data, and shuffles whole queries
    /// [default: false].
    #[arg(long, conflicts_with_all = ["source", "scale"])]
    ranking: bool,
    /// Number of rows per batch.
    #[arg(long, default_value_t = 16_384)]
    batch_size: u64,
    /// Shuffle seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Numeric column that the trainer predicts [default: l_extendedprice for TPC-H data, clicked with --ranking, else the last
    /// numeric column].
    #[arg(long)]
    label: Option<String>,
    /// Keeps the server running after the demo, until it is interrupted [default: false].
    #[arg(long)]
    serve: bool,
    /// Directory for the generated data, which is stored in its folder `demo` [default: $XDG_CACHE_HOME/forebay or
    /// ~/.cache/forebay].
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
}

/// Number of queries in the log of rankings.
const QUERIES: u64 = 20_000;
/// Column that groups the log of rankings.
const QUERY_ID: &str = "query_id";

/// Columns of the demo's model.
struct Roles {
    features: Vec<String>,
    label: String,
}

impl Demo {
    /// Runs the demo.
    ///
    /// # Errors
    /// If the dataset can't be read, or the stream fails.
    pub(super) fn run(self) -> anyhow::Result<()> {
        let settings = Settings::default();
        runtime(settings.io_threads, settings.blocking_threads, &settings.storage)?
            .block_on(self.stream(settings))
    }

    async fn stream(self, mut settings: Settings) -> anyhow::Result<()> {
        let folder = self.cache_dir.clone().unwrap_or_else(default_cache_dir).join("demo");
        let (name, source) = match &self.source {
            Some(source) => (dataset_name(source), source.clone()),
            None if self.ranking => {
                ("ranking".to_owned(), generated(&folder, |folder| ranking::at(folder, QUERIES)).await?)
            }
            None => {
                let scale = self.scale;
                ("lineitem".to_owned(), generated(&folder, move |folder| lineitem::at(folder, scale)).await?)
            }
        };
        // A temporary cache: the first epoch is always cold, and other servers may run concurrently.
        let cache = tempfile::tempdir().context("can't create a temporary folder")?;
        settings.cache_dir = cache.path().to_owned();
        settings.grpc = "127.0.0.1:0".parse().map_err(anyhow::Error::msg)?;
        settings.http = settings.grpc.clone();
        settings.datasets = [(name.clone(), source.clone())].into();
        let server = Server::start(settings).await?;

        let mut trainer = Trainer::connect(server.grpc()).await?;
        let roles = self.roles(&trainer.schema(&name).await?)?;
        let train = self.request(&name, &roles);
        let plan = trainer.plan(&train).await?;
        let mut epochs = Vec::new();
        for epoch in [0, 1] {
            epochs.push((epoch, trainer.train_epoch(&v1::Train { epoch, ..train.clone() }).await?));
        }
        let again = trainer.digest_of(&train).await?;
        let (dashboard, features) = (server.http().to_string(), roles.features.len());
        let report = Report { source, dashboard, features, label: roles.label, plan, epochs, again };
        print!("{report}");
        ensure!(report.is_repeatable(), "two streams with the same seed differ");
        if self.serve {
            println!("\nserving at grpc://{}; interrupt to stop", server.grpc());
            return server.run_until_signal().await;
        }
        server.drain().await;
        Ok(())
    }

    fn roles(&self, schema: &Schema) -> anyhow::Result<Roles> {
        let is_number = |data_type: &DataType| data_type.is_numeric() || data_type == &DataType::Boolean;
        let is_key = |name: &str| self.ranking && name == QUERY_ID;
        let numeric: Vec<String> = schema
            .fields()
            .iter()
            .filter(|field| is_number(field.data_type()) && !is_key(field.name()))
            .map(|field| field.name().clone())
            .collect();
        let default = match &self.source {
            Some(_) => numeric.last().cloned(),
            None if self.ranking => Some("clicked".to_owned()),
            None => Some("l_extendedprice".to_owned()),
        };
        let label = self.label.clone().or(default).context("the data has no numeric column to predict")?;
        ensure!(numeric.contains(&label), "--label {label}: the data has no numeric column with this name");
        let features: Vec<String> = numeric.into_iter().filter(|name| *name != label).collect();
        ensure!(!features.is_empty(), "the data has no numeric column to predict {label} from");
        Ok(Roles { features, label })
    }

    fn request(&self, dataset: &str, roles: &Roles) -> v1::Train {
        let tensor = |name: &str, columns: &[String]| v1::Tensor {
            name: name.to_owned(),
            columns: columns.to_vec(),
            dtype: "float32".to_owned(),
            null_value: Some(0.0),
            ..v1::Tensor::default()
        };
        v1::Train {
            dataset: dataset.to_owned(),
            tensors: vec![tensor("x", &roles.features), tensor("y", std::slice::from_ref(&roles.label))],
            // With `group_by`, the batch size counts queries.
            batch_size: if self.ranking {
                (self.batch_size / ranking::ITEMS).max(1)
            } else {
                self.batch_size
            },
            group_by: if self.ranking { vec![QUERY_ID.to_owned()] } else { Vec::new() },
            seed: self.seed,
            job_name: "demo".to_owned(),
            label_column: roles.label.clone(),
            ..v1::Train::default()
        }
    }
}

/// Generates data on a blocking thread and returns its folder.
async fn generated(
    folder: &Path,
    at: impl FnOnce(&Path) -> anyhow::Result<PathBuf> + Send + 'static,
) -> anyhow::Result<String> {
    let folder = folder.to_owned();
    let data = tokio::task::spawn_blocking(move || at(&folder)).await??;
    Ok(data.to_string_lossy().into_owned())
}

/// Derives the name of a dataset from the last part of its path or URL.
fn dataset_name(source: &str) -> String {
    let last = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = last.strip_suffix(".parquet").unwrap_or(last);
    let name: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "data".to_owned() } else { name }
}
