//! The Python environment and scripts of the systems compared.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{paths, process::run};

const SCRIPTS: &[(&str, &str)] = included!(
    "peers" "": "accelerator.py" "client.py" "copy_only.py" "flight_server.py" "lines.py" "loader.py"
    "lookups.py" "package.py" "petastorm_loader.py" "table.py" "torch_loader.py"
);
const REQUIREMENTS: &str = include_str!("../peers/requirements.txt");
const VARIABLE: &str = "FOREBAY_PYTHON";

/// An interpreter with pyarrow, and the folder of the scripts.
pub(crate) struct Python {
    interpreter: PathBuf,
    scripts: TempDir,
}

impl Python {
    /// Selects the interpreter: `named`, `FOREBAY_PYTHON`, the environment of the acceptance tests, or a new environment.
    pub(crate) fn prepare(named: Option<PathBuf>) -> anyhow::Result<Self> {
        let scripts = tempfile::tempdir()?;
        for (name, text) in SCRIPTS {
            std::fs::write(scripts.path().join(name), text)?;
        }
        let interpreter = match named.or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from)) {
            Some(named) => named,
            None => environment()?,
        };
        run(Command::new(&interpreter).args(["-c", "import numpy, pyarrow.flight, pyarrow.parquet"]))?;
        Ok(Self { interpreter, scripts })
    }

    /// Returns true if a module can be imported.
    pub(crate) fn has(&self, module: &str) -> bool {
        run(Command::new(&self.interpreter).args(["-c", &format!("import {module}")])).is_ok()
    }

    /// Returns a command that runs one of the scripts.
    pub(crate) fn command(&self, script: &str) -> Command {
        let mut command = Command::new(&self.interpreter);
        // -B: no bytecode files in the folder of the scripts.
        command.arg("-B").arg(self.scripts.path().join(script));
        command
    }
}

fn environment() -> anyhow::Result<PathBuf> {
    let python = |folder: &Path| folder.join("bin/python");
    let shared = python(&paths::target()?.join("acceptance/venv"));
    if shared.is_file() {
        return Ok(shared);
    }
    let folder = paths::loadtests()?.join("venv");
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == REQUIREMENTS) {
        return Ok(python(&folder));
    }
    eprintln!("creating a Python environment in {}", folder.display());
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let unfinished = folder.join("unfinished.txt");
    std::fs::write(&unfinished, REQUIREMENTS)?;
    let mut install = Command::new(python(&folder));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&unfinished);
    run(&mut install)?;
    std::fs::rename(unfinished, stamp)?;
    Ok(python(&folder))
}
