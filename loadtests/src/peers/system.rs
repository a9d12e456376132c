//! The systems compared, and how each is started and driven.

use anyhow::Context;
use clap::{ValueEnum, builder::PossibleValue};
use forebay_proto::v1;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::results::Turn;
use crate::{
    data::{Data, Dataset},
    interference::Clock,
    process::Process,
    protocol::{RunRequest, RunResult, ticket},
    python::Python,
    request::Request,
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    table,
    usage::Usage,
};

/// A system that delivers batches. The comments are the descriptions in the help and in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum System {
    /// Copy-only baseline: batches encoded once, Forebay's framing -> forebay-client.
    CopyOnly,
    /// Shuffled, warm -> forebay-client.
    Forebay,
    /// Shuffled, warm, with content hashes, which requests have by default -> forebay-client.
    ForebayHash,
    /// Shuffled over the whole epoch (shuffle global), warm -> forebay-client.
    ForebayGlobal,
    /// Shuffled, warm, --cpu-scheduling idle -> forebay-client.
    ForebayIdle,
    /// Shuffle none, warm -> forebay-client.
    ForebayInOrder,
    /// Shuffled, warm, all lists as one ragged tensor -> forebay-client.
    ForebayRagged,
    /// arrow-flight + tonic, table in RAM, take, shuffled -> arrow-flight client.
    Stock,
    /// Like stock, with plain columns instead of tensors.
    StockColumns,
    /// Copy-only baseline: pyarrow server with one prepared batch -> pyarrow client.
    CopyOnlyPyarrow,
    /// Shuffled, warm -> pyarrow client.
    ForebayPyarrow,
    /// Shuffled, warm, --cpu-scheduling idle -> pyarrow client.
    ForebayPyarrowIdle,
    /// Shuffled, warm, with content hashes -> pyarrow client.
    ForebayPyarrowHash,
    /// pyarrow server, table in RAM, take, shuffled -> pyarrow client.
    PyarrowServer,
    /// Like pyarrow-server, with plain columns instead of tensors.
    PyarrowServerColumns,
    /// 2 worker processes, row groups, shuffle buffer, shared memory.
    PyarrowLoader,
    /// Shuffled, warm -> the Python package forebay, to NumPy.
    ForebayPython,
    /// Like forebay-python, over a Unix socket.
    ForebayPythonUnix,
    /// PyTorch DataLoader, 2 workers, row groups by pyarrow, shuffle buffer.
    TorchLoader,
    /// Like torch-loader, with one tensor per column, stacked by the trainer.
    TorchLoaderColumns,
    /// Petastorm batch reader, 2 worker processes, shuffling queue.
    PetastormLoader,
}

/// The program that receives the batches of a system.
enum Consumer {
    /// This program, with a client library.
    Rust(&'static str),
    /// A script that receives from a Flight server.
    Client(&'static str),
    /// A script that reads the files itself.
    Loader(&'static str),
}

impl System {
    /// Returns the name on the command line.
    pub(super) fn name(self) -> String {
        self.value().get_name().to_owned()
    }

    /// Returns the description.
    pub(super) fn about(self) -> String {
        self.value().get_help().map(ToString::to_string).unwrap_or_default()
    }

    fn value(self) -> PossibleValue {
        self.to_possible_value().expect("no system is skipped")
    }

    fn consumer(self) -> Consumer {
        match self {
            Self::CopyOnly
            | Self::Forebay
            | Self::ForebayHash
            | Self::ForebayGlobal
            | Self::ForebayIdle
            | Self::ForebayInOrder
            | Self::ForebayRagged => Consumer::Rust("forebay"),
            Self::Stock | Self::StockColumns => Consumer::Rust("stock"),
            Self::ForebayPython | Self::ForebayPythonUnix => Consumer::Client("package.py"),
            Self::PyarrowLoader => Consumer::Loader("loader.py"),
            Self::TorchLoader | Self::TorchLoaderColumns => Consumer::Loader("torch_loader.py"),
            Self::PetastormLoader => Consumer::Loader("petastorm_loader.py"),
            _ => Consumer::Client("client.py"),
        }
    }

    /// Flags of Forebay's server.
    fn server_flags(self) -> &'static [&'static str] {
        match self {
            Self::ForebayIdle | Self::ForebayPyarrowIdle => &["--cpu-scheduling", "idle"],
            _ => &[],
        }
    }

    /// Transport to Forebay's server.
    fn transport(self) -> Transport {
        if self == Self::ForebayPythonUnix { Transport::Unix } else { Transport::Tcp }
    }

    pub(super) fn requires_python(self) -> bool {
        !matches!(self.consumer(), Consumer::Rust(_))
    }

    /// Returns true if the system differs from the others on a scenario. Some differ only with tensors or lists.
    pub(super) fn supports(self, scenario: &Scenario) -> bool {
        match self {
            Self::StockColumns | Self::PyarrowServerColumns => !scenario.request.tensors.is_empty(),
            Self::ForebayRagged => matches!(scenario.data, Data::Lists(_)),
            _ => true,
        }
    }
}

/// The scenario, the data and the programs of all systems.
pub(super) struct Comparison<'a> {
    source: &'a Source,
    pub(super) scenario: &'a Scenario,
    pub(super) data: &'a Dataset,
    python: anyhow::Result<Python>,
    /// The request of scripts, with tensors and without.
    request: Value,
    columns_request: Value,
}

/// A running system.
pub(super) struct Running<'a> {
    scenario: &'a Scenario,
    system: System,
    /// The next unread epoch.
    epoch: u64,
    // Fields are dropped in order: the consumer stops before the server.
    consumer: Process,
    server: Side,
}

/// The server of a system.
enum Side {
    Forebay(Server),
    Other(Process),
    /// The consumer reads the files.
    None,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(
        source: &'a Source,
        scenario: &'a Scenario,
        data: &'a Dataset,
        python: anyhow::Result<Python>,
    ) -> anyhow::Result<Self> {
        let columns = table::without_tensors(&scenario.request, data.sizes.names())?;
        let request = script_request(scenario, &scenario.request, data)?;
        let columns_request = script_request(scenario, &columns, data)?;
        Ok(Self { source, scenario, data, python, request, columns_request })
    }

    /// Starts the server, if the system has one, and the consumer, and streams one epoch of warm-up.
    pub(super) fn start(&self, system: System) -> anyhow::Result<Running<'a>> {
        let server = match system {
            System::CopyOnly => Side::Other(self.source.spawn("serve-copy-only", &[])?),
            System::Stock => Side::Other(self.source.spawn("serve-stock", &[])?),
            System::StockColumns => Side::Other(self.source.spawn("serve-stock", &["--without-tensors"])?),
            System::CopyOnlyPyarrow => Side::Other(self.script("copy_only.py", &self.request)?),
            System::PyarrowServer => Side::Other(self.script("flight_server.py", &self.request)?),
            System::PyarrowServerColumns => {
                Side::Other(self.script("flight_server.py", &self.columns_request)?)
            }
            _ if matches!(system.consumer(), Consumer::Loader(_)) => Side::None,
            _ => Side::Forebay(Server::start_with(
                &self.scenario.name,
                &self.data.path.display().to_string(),
                system.transport(),
                system.server_flags(),
                &[],
            )?),
        };
        let url = match &server {
            Side::Forebay(server) => {
                Runtime::new()?.block_on(server::opened(server.url(), &self.scenario.train(0, 1)))?;
                server.url()
            }
            Side::Other(process) => process.ready["url"].as_str().context("the ready line has no url")?,
            Side::None => "",
        };
        let consumer = match system.consumer() {
            Consumer::Rust(client) => Process::consumer(client, url)?,
            Consumer::Client(script) => self.script(script, &url.replace("http://", "grpc://"))?,
            Consumer::Loader(script) => {
                let mut request = self.request.clone();
                request["by_column"] = (system == System::TorchLoaderColumns).into();
                self.script(script, &request)?
            }
        };
        let mut running = Running { scenario: self.scenario, system, epoch: 0, consumer, server };
        running.run(1, None)?;
        Ok(running)
    }

    /// Starts a script with one argument: the request of the data, or the URL of a server.
    fn script(&self, name: &str, argument: &impl ToString) -> anyhow::Result<Process> {
        let python = self.python.as_ref().map_err(|error| anyhow::anyhow!("python: {error:#}"))?;
        let mut command = python.command(name);
        command.arg(argument.to_string());
        Process::spawn(name, command)
    }
}

/// Returns the files and the columns of `request` for scripts, with resolved names.
fn script_request(scenario: &Scenario, request: &Request, data: &Dataset) -> anyhow::Result<Value> {
    let files: Vec<String> =
        table::files(&data.path)?.iter().map(|file| file.display().to_string()).collect();
    let columns: Vec<String> = match request.is_all() {
        true => data.sizes.names().map(str::to_owned).collect(),
        false => request.columns.clone(),
    };
    let tensors = request.tensors.iter().map(|tensor| {
        let names = table::expand(&tensor.columns, data.sizes.names())?;
        Ok(json!({ "name": tensor.name, "columns": names, "dtype": tensor.dtype }))
    });
    let tensors = tensors.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(json!({ "files": files, "columns": columns, "tensors": tensors, "batch_size": scenario.batch_size }))
}

impl Running<'_> {
    /// Streams the next `epochs` epochs and measures both sides.
    pub(super) fn measure(&mut self, epochs: u64, compute_ms: Option<f64>) -> anyhow::Result<Turn> {
        let (server_before, client_before) = (self.server.usage()?, self.consumer.usage()?);
        let clock = Clock::now()?;
        let result = self.run(epochs, compute_ms)?;
        let (server, client) = (self.server.usage()?, self.consumer.usage()?);
        let server_cpu_seconds = server.cpu_seconds - server_before.cpu_seconds;
        let client_cpu_seconds = client.cpu_seconds - client_before.cpu_seconds;
        Ok(Turn {
            round: 0,
            result,
            server_cpu_seconds,
            client_cpu_seconds,
            server_peak_rss_bytes: server.peak_rss_bytes,
            client_peak_rss_bytes: client.peak_rss_bytes,
            foreign_share: clock.foreign_share_since(server_cpu_seconds + client_cpu_seconds)?,
        })
    }

    fn run(&mut self, epochs: u64, compute_ms: Option<f64>) -> anyhow::Result<RunResult> {
        let result = self.consumer.run(&RunRequest { ticket: self.ticket(epochs), compute_ms })?;
        self.epoch += epochs;
        Ok(result)
    }

    fn ticket(&self, epochs: u64) -> String {
        if !matches!(self.server, Side::Forebay(_)) {
            return json!({ "epoch": self.epoch, "epochs": epochs }).to_string();
        }
        let mut train = self.scenario.train(self.epoch, epochs);
        match self.system {
            System::ForebayHash | System::ForebayPyarrowHash => train.content_hash = Some(true),
            System::ForebayGlobal => {
                let global = Some(v1::shuffle::Global {});
                train.shuffle = Some(v1::Shuffle { global, ..v1::Shuffle::default() });
            }
            System::ForebayInOrder => {
                let none = Some(v1::shuffle::None {});
                train.shuffle = Some(v1::Shuffle { none, ..v1::Shuffle::default() });
            }
            System::ForebayRagged => {
                let columns = std::mem::take(&mut train.columns);
                let columns = if columns.is_empty() { vec!["*".to_owned()] } else { columns };
                let name = "lists".to_owned();
                train.tensors = vec![v1::Tensor { name, columns, ragged: true, ..v1::Tensor::default() }];
            }
            _ => {}
        }
        ticket(train)
    }
}

impl Side {
    fn usage(&self) -> anyhow::Result<Usage> {
        match self {
            Self::Forebay(server) => server.usage(),
            Self::Other(process) => process.usage(),
            Self::None => Ok(Usage::default()),
        }
    }
}
