//! Who takes part, and how each is started and asked.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use forebay_proto::{Encoding, v1};
use serde_json::json;
use tokio::runtime::Runtime;

use super::python::Python;
use crate::{
    Source,
    ask::{Ask, Passed},
    data::{Data, Prepared},
    process::Process,
    scenario::Scenario,
    server::{self, Server, Transport},
    usage::Usage,
};

/// A way to get batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contestant {
    Prepared,
    Forebay,
    ForebayNormal,
    ForebayInOrder,
    ForebayRagged,
    Stock,
    StockColumns,
    PreparedPyarrow,
    ForebayPyarrow,
    ForebayPyarrowNormal,
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

impl Contestant {
    pub(super) const ALL: [Self; 19] = [
        Self::Prepared,
        Self::Forebay,
        Self::ForebayNormal,
        Self::ForebayInOrder,
        Self::ForebayRagged,
        Self::Stock,
        Self::StockColumns,
        Self::PreparedPyarrow,
        Self::ForebayPyarrow,
        Self::ForebayPyarrowNormal,
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
            Self::Prepared => "prepared",
            Self::Forebay => "forebay",
            Self::ForebayNormal => "forebay-normal",
            Self::ForebayInOrder => "forebay-in-order",
            Self::ForebayRagged => "forebay-ragged",
            Self::Stock => "stock",
            Self::StockColumns => "stock-columns",
            Self::PreparedPyarrow => "prepared-pyarrow",
            Self::ForebayPyarrow => "forebay-pyarrow",
            Self::ForebayPyarrowNormal => "forebay-pyarrow-normal",
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
            Self::Prepared => "prepared buffers, framed as Forebay's -> forebay-client",
            Self::Forebay => "shuffled, warm -> forebay-client",
            Self::ForebayNormal => "shuffled, warm, --cpu-scheduling normal -> forebay-client",
            Self::ForebayInOrder => "shuffle none, warm -> forebay-client",
            Self::ForebayRagged => "shuffled, warm, all lists as one ragged tensor -> forebay-client",
            Self::Stock => "arrow-flight + tonic, table in RAM, take, shuffled -> arrow-flight client",
            Self::StockColumns => "as stock, with the columns of a tensor as they are in the files",
            Self::PreparedPyarrow => "pyarrow server, one prepared batch -> pyarrow client",
            Self::ForebayPyarrow => "shuffled, warm -> pyarrow client",
            Self::ForebayPyarrowNormal => "shuffled, warm, --cpu-scheduling normal -> pyarrow client",
            Self::ForebayPyarrowHash => "shuffled, warm, with content hashes -> pyarrow client",
            Self::PyarrowServer => "pyarrow server, table in RAM, take, shuffled -> pyarrow client",
            Self::PyarrowServerColumns => {
                "as pyarrow-server, with the columns of a tensor as they are in the files"
            }
            Self::PyarrowLoader => "2 worker processes, row groups, shuffle buffer, shared memory",
            Self::ForebayPython => "shuffled, warm -> the Python package forebay, to NumPy",
            Self::ForebayPythonUnix => "the same over a Unix socket",
            Self::TorchLoader => "PyTorch DataLoader, 2 workers, row groups by pyarrow, shuffle buffer",
            Self::TorchLoaderColumns => {
                "as torch-loader, a tensor for each column, put together by the trainer"
            }
            Self::PetastormLoader => "Petastorm batch reader, 2 worker processes, shuffling queue",
        }
    }

    /// Of Forebay's own server.
    fn server_flags(self) -> &'static [&'static str] {
        match self {
            Self::ForebayNormal | Self::ForebayPyarrowNormal => &["--cpu-scheduling", "normal"],
            _ => &[],
        }
    }

    /// To Forebay's own server.
    fn transport(self) -> Transport {
        if self == Self::ForebayPythonUnix { Transport::Unix } else { Transport::Tcp }
    }

    pub(super) fn needs_python(self) -> bool {
        !matches!(
            self,
            Self::Prepared
                | Self::Forebay
                | Self::ForebayNormal
                | Self::ForebayInOrder
                | Self::ForebayRagged
                | Self::Stock
                | Self::StockColumns
        )
    }

    /// Whether it has a part in a scenario: some differ from others only where columns are put into tensors, or are lists.
    pub(super) fn suits(self, scenario: &Scenario) -> bool {
        match self {
            Self::StockColumns | Self::PyarrowServerColumns => !scenario.request.tensors.is_empty(),
            Self::ForebayRagged => matches!(scenario.data, Data::Lists(_)),
            _ => true,
        }
    }
}

/// What all contestants work on.
pub(super) struct Contest<'a> {
    source: &'a Source,
    scenario: &'a Scenario,
    data: &'a Prepared,
    python: anyhow::Result<Python>,
    program: PathBuf,
    /// The order of names that a request with prefixes means, with tensors and without.
    request: serde_json::Value,
    columns_request: serde_json::Value,
}

/// What both sides have used.
pub(super) struct Used {
    pub(super) server: Usage,
    pub(super) client: Usage,
}

/// A contestant that runs.
pub(super) struct Running<'a> {
    scenario: &'a Scenario,
    contestant: Contestant,
    // Fields end in their order: consumers before servers.
    consumer: Process,
    server: Side,
}

/// The serving side.
enum Side {
    Forebay(Server),
    Other(Process),
    /// The consumer reads files itself.
    None,
}

impl<'a> Contest<'a> {
    pub(super) fn new(
        source: &'a Source,
        scenario: &'a Scenario,
        data: &'a Prepared,
        python: anyhow::Result<Python>,
    ) -> anyhow::Result<Self> {
        let files: Vec<String> =
            crate::table::files(&data.path)?.iter().map(|file| file.display().to_string()).collect();
        let names = |patterns: &[String]| crate::table::expand(patterns, data.sizes.names());
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
        let columns = scenario.request.without_tensors(data.sizes.names())?.columns;
        let columns_request = json!({
            "files": files, "columns": columns, "tensors": [], "batch_size": scenario.batch_size,
        });
        let program = std::env::current_exe().context("can't tell where this program lies")?;
        Ok(Self { source, scenario, data, python, program, request, columns_request })
    }

    /// Starts the server, if there is one, and its consumer; both are ready.
    pub(super) fn start(&self, contestant: Contestant) -> anyhow::Result<Running<'a>> {
        let mut server = match contestant {
            Contestant::Prepared => Side::Other(self.own("serve-prepared", &[])?),
            Contestant::Stock => Side::Other(self.own("serve-stock", &[])?),
            Contestant::StockColumns => Side::Other(self.own("serve-stock", &["--without-tensors"])?),
            Contestant::PreparedPyarrow => Side::Other(self.script("prepared.py", &self.request)?),
            Contestant::PyarrowServer => Side::Other(self.script("flight_server.py", &self.request)?),
            Contestant::PyarrowServerColumns => {
                Side::Other(self.script("flight_server.py", &self.columns_request)?)
            }
            Contestant::PyarrowLoader
            | Contestant::TorchLoader
            | Contestant::TorchLoaderColumns
            | Contestant::PetastormLoader => Side::None,
            _ => Side::Forebay(Server::start_with(
                &self.scenario.name,
                &self.data.path.display().to_string(),
                contestant.transport(),
                contestant.server_flags(),
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
        let mut consumer = match contestant {
            Contestant::Stock | Contestant::StockColumns => self.consumer("stock", &url)?,
            ours if !ours.needs_python() => self.consumer("forebay", &url)?,
            Contestant::PyarrowLoader => self.script("loader.py", &self.request)?,
            Contestant::TorchLoader => self.script("torch_loader.py", &self.request)?,
            Contestant::TorchLoaderColumns => {
                let mut request = self.request.clone();
                request["by_column"] = true.into();
                self.script("torch_loader.py", &request)?
            }
            Contestant::PetastormLoader => self.script("petastorm_loader.py", &self.request)?,
            Contestant::ForebayPython | Contestant::ForebayPythonUnix => self.client("package.py", &url)?,
            _ => self.client("client.py", &url)?,
        };
        consumer.ready()?;
        Ok(Running { scenario: self.scenario, contestant, consumer, server })
    }

    fn python(&self) -> anyhow::Result<&Python> {
        self.python.as_ref().map_err(|error| anyhow::anyhow!("python: {error:#}"))
    }

    /// A script that loads the data itself.
    fn script(&self, name: &'static str, request: &serde_json::Value) -> anyhow::Result<Process> {
        let mut command = self.python()?.command(name);
        command.arg(request.to_string());
        Process::spawn(name, command)
    }

    /// A script that receives from the Flight server at `url`.
    fn client(&self, name: &'static str, url: &str) -> anyhow::Result<Process> {
        let mut command = self.python()?.command(name);
        command.arg(url.replace("http://", "grpc://"));
        Process::spawn(name, command)
    }

    fn own(&self, subcommand: &'static str, flags: &[&str]) -> anyhow::Result<Process> {
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
    /// Has it stream `epochs` epochs from `epoch` on.
    pub(super) fn ask(&mut self, epoch: u64, epochs: u64, compute_ms: Option<f64>) -> anyhow::Result<Passed> {
        self.consumer.ask(&Ask { ticket: self.ticket(epoch, epochs), compute_ms })
    }

    fn ticket(&self, epoch: u64, epochs: u64) -> String {
        if !matches!(self.server, Side::Forebay(_)) {
            return json!({ "epoch": epoch, "epochs": epochs }).to_string();
        }
        let mut train = self.scenario.train(epoch, epochs);
        match self.contestant {
            Contestant::ForebayPyarrowHash => train.hash = Some(true),
            Contestant::ForebayInOrder => {
                let none = Some(v1::shuffle::None {});
                train.shuffle = Some(v1::Shuffle { none, ..v1::Shuffle::default() });
            }
            Contestant::ForebayRagged => {
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
