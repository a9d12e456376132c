//! The systems compared, and how each is started and driven.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use forebay_proto::{Encoding, v1};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    data::{Data, Dataset},
    process::Process,
    protocol::{RunRequest, RunResult},
    python::Python,
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    table,
    usage::Usage,
};

/// A system that delivers batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    CopyOnly,
    Forebay,
    ForebayIdle,
    ForebayInOrder,
    ForebayRagged,
    Stock,
    StockColumns,
    CopyOnlyPyarrow,
    ForebayPyarrow,
    ForebayPyarrowIdle,
    ForebayPyarrowHash,
    PyarrowServer,
    PyarrowServerColumns,
    PyarrowLoader,
    ForebayPython,
    ForebayPythonUnix,
    TorchLoader,
    TorchLoaderColumns,
    PetastormLoader,
}

impl System {
    pub(super) const ALL: [Self; 19] = [
        Self::CopyOnly,
        Self::Forebay,
        Self::ForebayIdle,
        Self::ForebayInOrder,
        Self::ForebayRagged,
        Self::Stock,
        Self::StockColumns,
        Self::CopyOnlyPyarrow,
        Self::ForebayPyarrow,
        Self::ForebayPyarrowIdle,
        Self::ForebayPyarrowHash,
        Self::PyarrowServer,
        Self::PyarrowServerColumns,
        Self::PyarrowLoader,
        Self::ForebayPython,
        Self::ForebayPythonUnix,
        Self::TorchLoader,
        Self::TorchLoaderColumns,
        Self::PetastormLoader,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CopyOnly => "copy-only",
            Self::Forebay => "forebay",
            Self::ForebayIdle => "forebay-idle",
            Self::ForebayInOrder => "forebay-in-order",
            Self::ForebayRagged => "forebay-ragged",
            Self::Stock => "stock",
            Self::StockColumns => "stock-columns",
            Self::CopyOnlyPyarrow => "copy-only-pyarrow",
            Self::ForebayPyarrow => "forebay-pyarrow",
            Self::ForebayPyarrowIdle => "forebay-pyarrow-idle",
            Self::ForebayPyarrowHash => "forebay-pyarrow-hash",
            Self::PyarrowServer => "pyarrow-server",
            Self::PyarrowServerColumns => "pyarrow-server-columns",
            Self::PyarrowLoader => "pyarrow-loader",
            Self::ForebayPython => "forebay-python",
            Self::ForebayPythonUnix => "forebay-python-unix",
            Self::TorchLoader => "torch-loader",
            Self::TorchLoaderColumns => "torch-loader-columns",
            Self::PetastormLoader => "petastorm-loader",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::CopyOnly => "copy-only baseline: batches encoded once, Forebay's framing -> forebay-client",
            Self::Forebay => "shuffled, warm -> forebay-client",
            Self::ForebayIdle => "shuffled, warm, --cpu-scheduling idle -> forebay-client",
            Self::ForebayInOrder => "shuffle none, warm -> forebay-client",
            Self::ForebayRagged => "shuffled, warm, all lists as one ragged tensor -> forebay-client",
            Self::Stock => "arrow-flight + tonic, table in RAM, take, shuffled -> arrow-flight client",
            Self::StockColumns => "like stock, with plain columns instead of tensors",
            Self::CopyOnlyPyarrow => {
                "copy-only baseline: pyarrow server with one prepared batch -> pyarrow client"
            }
            Self::ForebayPyarrow => "shuffled, warm -> pyarrow client",
            Self::ForebayPyarrowIdle => "shuffled, warm, --cpu-scheduling idle -> pyarrow client",
            Self::ForebayPyarrowHash => "shuffled, warm, with content hashes -> pyarrow client",
            Self::PyarrowServer => "pyarrow server, table in RAM, take, shuffled -> pyarrow client",
            Self::PyarrowServerColumns => "like pyarrow-server, with plain columns instead of tensors",
            Self::PyarrowLoader => "2 worker processes, row groups, shuffle buffer, shared memory",
            Self::ForebayPython => "shuffled, warm -> the Python package forebay, to NumPy",
            Self::ForebayPythonUnix => "like forebay-python, over a Unix socket",
            Self::TorchLoader => "PyTorch DataLoader, 2 workers, row groups by pyarrow, shuffle buffer",
            Self::TorchLoaderColumns => {
                "like torch-loader, with one tensor per column, stacked by the trainer"
            }
            Self::PetastormLoader => "Petastorm batch reader, 2 worker processes, shuffling queue",
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
        !matches!(
            self,
            Self::CopyOnly
                | Self::Forebay
                | Self::ForebayIdle
                | Self::ForebayInOrder
                | Self::ForebayRagged
                | Self::Stock
                | Self::StockColumns
        )
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
    scenario: &'a Scenario,
    data: &'a Dataset,
    python: anyhow::Result<Python>,
    program: PathBuf,
    /// The request with resolved column names, with tensors and without.
    request: serde_json::Value,
    columns_request: serde_json::Value,
}

/// Resources that both sides have used.
pub(super) struct Used {
    pub(super) server: Usage,
    pub(super) client: Usage,
}

/// A running system.
pub(super) struct Running<'a> {
    scenario: &'a Scenario,
    system: System,
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
        let files: Vec<String> =
            table::files(&data.path)?.iter().map(|file| file.display().to_string()).collect();
        let names = |patterns: &[String]| table::expand(patterns, data.sizes.names());
        let tensors = scenario.request.tensors.iter().map(|tensor| {
            Ok(json!({ "name": tensor.name, "columns": names(&tensor.columns)?, "dtype": tensor.dtype }))
        });
        let tensors = tensors.collect::<anyhow::Result<Vec<_>>>()?;
        let plain: Vec<&str> = match (scenario.request.columns.as_slice(), tensors.is_empty()) {
            ([], true) => data.sizes.names().collect(),
            (columns, _) => columns.iter().map(String::as_str).collect(),
        };
        let request = json!({
            "files": files, "columns": plain, "tensors": tensors, "batch_size": scenario.batch_size,
        });
        let columns = table::without_tensors(&scenario.request, data.sizes.names())?.columns;
        let columns_request = json!({
            "files": files, "columns": columns, "tensors": [], "batch_size": scenario.batch_size,
        });
        let program = std::env::current_exe().context("can't determine the path of this program")?;
        Ok(Self { source, scenario, data, python, program, request, columns_request })
    }

    /// Starts the server, if the system has one, and the consumer, and waits until both are ready.
    pub(super) fn start(&self, system: System) -> anyhow::Result<Running<'a>> {
        let mut server = match system {
            System::CopyOnly => Side::Other(self.own_program("serve-copy-only", &[])?),
            System::Stock => Side::Other(self.own_program("serve-stock", &[])?),
            System::StockColumns => Side::Other(self.own_program("serve-stock", &["--without-tensors"])?),
            System::CopyOnlyPyarrow => Side::Other(self.script("copy_only.py", &self.request)?),
            System::PyarrowServer => Side::Other(self.script("flight_server.py", &self.request)?),
            System::PyarrowServerColumns => {
                Side::Other(self.script("flight_server.py", &self.columns_request)?)
            }
            System::PyarrowLoader
            | System::TorchLoader
            | System::TorchLoaderColumns
            | System::PetastormLoader => Side::None,
            _ => Side::Forebay(Server::start_with(
                &self.scenario.name,
                &self.data.path.display().to_string(),
                system.transport(),
                system.server_flags(),
                &[],
            )?),
        };
        let url = match &mut server {
            Side::Forebay(server) => {
                Runtime::new()?.block_on(server::opened(server.url(), &self.scenario.train(0, 1)))?;
                server.url().to_owned()
            }
            Side::Other(process) => {
                let ready = process.ready()?;
                ready["url"].as_str().context("the ready line has no url")?.to_owned()
            }
            Side::None => String::new(),
        };
        let mut consumer = match system {
            System::Stock | System::StockColumns => self.consumer("stock", &url)?,
            other if !other.requires_python() => self.consumer("forebay", &url)?,
            System::PyarrowLoader => self.script("loader.py", &self.request)?,
            System::TorchLoader => self.script("torch_loader.py", &self.request)?,
            System::TorchLoaderColumns => {
                let mut request = self.request.clone();
                request["by_column"] = true.into();
                self.script("torch_loader.py", &request)?
            }
            System::PetastormLoader => self.script("petastorm_loader.py", &self.request)?,
            System::ForebayPython | System::ForebayPythonUnix => self.client("package.py", &url)?,
            _ => self.client("client.py", &url)?,
        };
        consumer.ready()?;
        Ok(Running { scenario: self.scenario, system, consumer, server })
    }

    fn python(&self) -> anyhow::Result<&Python> {
        self.python.as_ref().map_err(|error| anyhow::anyhow!("python: {error:#}"))
    }

    /// Starts a script that loads the data.
    fn script(&self, name: &'static str, request: &serde_json::Value) -> anyhow::Result<Process> {
        let mut command = self.python()?.command(name);
        command.arg(request.to_string());
        Process::spawn(name, command)
    }

    /// Starts a script that receives from the Flight server at `url`.
    fn client(&self, name: &'static str, url: &str) -> anyhow::Result<Process> {
        let mut command = self.python()?.command(name);
        command.arg(url.replace("http://", "grpc://"));
        Process::spawn(name, command)
    }

    fn own_program(&self, subcommand: &'static str, flags: &[&str]) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.program);
        command.args([subcommand, "--scenario", &self.source.scenario]).args(flags);
        if let Some(folder) = &self.source.data {
            command.arg("--data").arg(Path::new(folder));
        }
        Process::spawn(subcommand, command)
    }

    fn consumer(&self, client: &'static str, url: &str) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.program);
        command.args(["consume", "--client", client, "--url", url]);
        Process::spawn("consume", command)
    }
}

impl Running<'_> {
    /// Streams `epochs` epochs, starting at `epoch`.
    pub(super) fn run(
        &mut self,
        epoch: u64,
        epochs: u64,
        compute_ms: Option<f64>,
    ) -> anyhow::Result<RunResult> {
        self.consumer.run(&RunRequest { ticket: self.ticket(epoch, epochs), compute_ms })
    }

    fn ticket(&self, epoch: u64, epochs: u64) -> String {
        if !matches!(self.server, Side::Forebay(_)) {
            return json!({ "epoch": epoch, "epochs": epochs }).to_string();
        }
        let mut train = self.scenario.train(epoch, epochs);
        match self.system {
            System::ForebayPyarrowHash => train.content_hash = Some(true),
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
        let command = Encoding::Json.encode(&v1::Command::from(train));
        String::from_utf8_lossy(&command).into_owned()
    }

    pub(super) fn usage(&self) -> anyhow::Result<Used> {
        let server = match &self.server {
            Side::Forebay(server) => server.usage()?,
            Side::Other(process) => process.usage()?,
            Side::None => Usage::default(),
        };
        Ok(Used { server, client: self.consumer.usage()? })
    }
}
