//! Commands for the server that `forebay.open` of the Python package starts. The package contains them, and this binary: it passes them to
//! the Python of the environment that it is installed in.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use clap::Args;

/// Program for Python. The current directory may contain another `forebay`.
const PROGRAM: &str = "\
import sys
sys.path = [folder for folder in sys.path if folder]
try:
    from forebay.__main__ import main
except ModuleNotFoundError as error:
    sys.exit(f'forebay: {error}: this command requires the Python package forebay, which {sys.executable} does not have')
main()
";
/// Names of Python in the folder of this binary, by preference, as in a virtual environment.
const NAMES: [&str; 2] = ["python3", "python"];

/// Flags of `forebay dashboard`.
#[derive(Debug, Args)]
pub(super) struct Dashboard {
    /// Port on 127.0.0.1; 0 selects a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

/// Flags of `forebay cache`.
#[derive(Debug, Args)]
pub(super) struct Cache {
    /// Removes what is cached in the folders that no server uses, except for the snapshots, which checkpoints need [default: false].
    #[arg(long)]
    clear: bool,
    /// With --clear: removes the snapshots too, without which checkpoints can't be loaded [default: false].
    #[arg(long, requires = "clear")]
    state: bool,
}

impl Dashboard {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(&["dashboard", "--port", &self.port.to_string()])
    }
}

impl Cache {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(&self.words())
    }

    /// Returns the arguments with which the Python package runs the same command.
    fn words(&self) -> Vec<&'static str> {
        let flags = [(self.clear, "--clear"), (self.state, "--state")];
        let given = flags.into_iter().filter_map(|(is_given, flag)| is_given.then_some(flag));
        std::iter::once("cache").chain(given).collect()
    }
}

/// Replaces this process by Python, which runs the command.
///
/// # Errors
/// If there is no Python.
pub(super) fn run(words: &[&str]) -> anyhow::Result<()> {
    // A link to the binary, as pipx makes one, is followed.
    let binary = env::current_exe().ok();
    let python = python(binary.as_deref().and_then(Path::parent));
    let error = Command::new(&python).arg("-c").arg(PROGRAM).args(words).exec();
    Err(error).with_context(|| {
        format!("can't run {}; this command requires the Python package forebay", python.display())
    })
}

/// Returns the Python in a folder, or the first one on the PATH.
fn python(folder: Option<&Path>) -> PathBuf {
    let local =
        folder.and_then(|folder| NAMES.map(|name| folder.join(name)).into_iter().find(|path| path.exists()));
    local.unwrap_or_else(|| PathBuf::from(NAMES[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_the_cache_are_passed_to_python() {
        for (clear, state, words) in [
            (false, false, &["cache"][..]),
            (true, false, &["cache", "--clear"]),
            (true, true, &["cache", "--clear", "--state"]),
        ] {
            assert_eq!(Cache { clear, state }.words(), words);
        }
    }

    #[test]
    fn the_python_of_the_environment_precedes_the_one_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(python(Some(folder.path())), Path::new("python3"));
        std::fs::write(folder.path().join("python"), "").unwrap();
        assert_eq!(python(Some(folder.path())), folder.path().join("python"));
        std::fs::write(folder.path().join("python3"), "").unwrap();
        assert_eq!(python(Some(folder.path())), folder.path().join("python3"));
        assert_eq!(python(None), Path::new("python3"));
    }
}
