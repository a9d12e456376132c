//! `forebay demo`: the whole way, from Parquet to a trainer, in one process over real Flight.

pub mod lineitem;
pub mod once;
mod ranked;
pub mod ranking;
mod report;
mod trainer;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use arrow_schema::{DataType, Schema};
use clap::Args;
use forebay_proto::v1;

use crate::{Server, Settings, cli::runtime, settings::default_cache_dir};
use report::Report;
use trainer::Trainer;

/// Flags of `forebay demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// A Parquet file or a folder of them, a path or URL. Without it, TPC-H's `lineitem` is generated
    /// once and kept.
    source: Option<String>,
    /// TPC-H scale factor of the generated data: 1 is 6,001,215 rows.
    #[arg(long, default_value_t = 1.0, conflicts_with = "source")]
    scale: f64,
    /// A log of rankings instead: queries shuffled whole, their features sent once a batch.
    #[arg(long, conflicts_with_all = ["source", "scale", "label"])]
    ranking: bool,
    /// Rows a batch.
    #[arg(long, default_value_t = 16_384)]
    batch_size: u64,
    /// Seed of the order.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The column to predict; the last numeric one if it is not given.
    #[arg(long)]
    label: Option<String>,
    /// Leave the service running afterwards.
    #[arg(long)]
    serve: bool,
    /// Folder for the generated data and the service's cache.
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
}

/// Queries of the log of rankings.
const QUERIES: u64 = 20_000;

/// Columns by the part they play in the demo's model.
struct Roles {
    features: Vec<String>,
    label: String,
}

impl Demo {
    /// Runs the demo to its end.
    ///
    /// # Errors
    /// When there is no data, or the stream fails.
    pub fn run(self) -> anyhow::Result<()> {
        let settings = Settings::default();
        runtime(settings.io_threads, settings.file_threads)?.block_on(self.stream(settings))
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
        // A cache of its own: the demo is cold each time, and runs beside any other server.
        let cache = tempfile::tempdir().context("can't make a temporary folder")?;
        settings.cache_dir = cache.path().to_owned();
        settings.grpc = "127.0.0.1:0".parse().map_err(anyhow::Error::msg)?;
        settings.http.set_port(0);
        settings.datasets = [(name.clone(), source.clone())].into();
        let server = Server::start(settings).await?;

        let mut trainer = Trainer::connect(server.grpc()).await?;
        if self.ranking {
            ranked::run(&mut trainer, &name, Path::new(&source), self.batch_size, self.seed).await?;
            return self.end(server).await;
        }
        let roles = self.roles(&trainer.schema(&name).await?)?;
        let train = self.request(&name, &roles);
        let mut report = Report::new(&source, server.http().to_string(), &roles.features, &roles.label);
        let summary = trainer.plan(&train).await?;
        report.plan(&summary);
        for epoch in [0, 1] {
            let passed = trainer.train_epoch(&v1::Train { epoch, ..train.clone() }).await?;
            report.epoch(epoch, passed);
        }
        let again = trainer.digest_of(&train).await?;
        report.finish(&again);
        print!("{report}");
        ensure!(report.is_repeatable(), "two runs of one seed differ");
        self.end(server).await
    }

    async fn end(&self, server: Server) -> anyhow::Result<()> {
        if self.serve {
            println!("\nserving at grpc://{} until it is interrupted", server.grpc());
            return server.run_until_signal().await;
        }
        server.drain().await;
        Ok(())
    }

    fn roles(&self, schema: &Schema) -> anyhow::Result<Roles> {
        let is_number = |data_type: &DataType| data_type.is_numeric() || data_type == &DataType::Boolean;
        let numeric: Vec<String> = schema
            .fields()
            .iter()
            .filter(|field| is_number(field.data_type()))
            .map(|field| field.name().clone())
            .collect();
        let default = match &self.source {
            Some(_) => numeric.last().cloned(),
            None => Some("l_extendedprice".to_owned()),
        };
        let label = self.label.clone().or(default).context("the data has no numeric column to predict")?;
        ensure!(numeric.contains(&label), "--label {label}: there is no numeric column of this name");
        let features: Vec<String> = numeric.into_iter().filter(|name| *name != label).collect();
        ensure!(!features.is_empty(), "the data has no numeric column to predict {label} from");
        Ok(Roles { features, label })
    }

    fn request(&self, dataset: &str, roles: &Roles) -> v1::Train {
        let tensor = |name: &str, columns: &[String]| v1::Tensor {
            name: name.to_owned(),
            columns: columns.to_vec(),
            dtype: "float32".to_owned(),
            fill: Some(0.0),
            ..v1::Tensor::default()
        };
        v1::Train {
            dataset: dataset.to_owned(),
            tensors: vec![tensor("x", &roles.features), tensor("y", std::slice::from_ref(&roles.label))],
            batch_size: self.batch_size,
            seed: self.seed,
            job: "demo".to_owned(),
            label: roles.label.clone(),
            ..v1::Train::default()
        }
    }
}

/// The folder of the generated data, made if it is not there.
async fn generated(
    folder: &Path,
    at: impl FnOnce(&Path) -> anyhow::Result<PathBuf> + Send + 'static,
) -> anyhow::Result<String> {
    let folder = folder.to_owned();
    let made = tokio::task::spawn_blocking(move || at(&folder)).await??;
    Ok(made.to_string_lossy().into_owned())
}

/// The last part of a path or URL, in the letters that a dataset's name may have.
fn dataset_name(source: &str) -> String {
    let last = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = last.strip_suffix(".parquet").unwrap_or(last);
    let name: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "data".to_owned() } else { name }
}
