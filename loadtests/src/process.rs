//! A child process with a protocol of JSON lines. Dropping it stops it.

use std::{
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    protocol::{RunRequest, RunResult},
    usage::{Threads, Usage},
};

/// Maximum time to load the data.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum time to listen, for servers that load data later.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum time to exit after the end of the input.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
const LOG_TAIL_BYTES: usize = 2000;

/// A child process. Dropping it closes its input and then kills it.
pub(crate) struct Process {
    /// The first line of the process: `{"ready": true}` and perhaps more, or null if it was not awaited.
    pub(crate) ready: Value,
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    log: std::fs::File,
}

impl Process {
    /// Starts `command`, which exits when its input ends, and waits until it has loaded its data. Its standard error is part of
    /// error messages.
    pub(crate) fn spawn(name: &str, command: Command) -> anyhow::Result<Self> {
        let mut process = Self::spawn_with(name, command, Stdio::piped())?;
        process.ready = process.line(LOAD_TIMEOUT)?;
        Ok(process)
    }

    /// Starts `forebay-load consume` with a client library, connected to the server at `url`.
    pub(crate) fn consumer(client: &str, url: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--client", client, "--url", url]);
        Self::spawn("consume", command)
    }

    /// Starts a server without input, and waits for the line with its address. It is killed when dropped.
    pub(crate) fn server(name: &str, command: Command) -> anyhow::Result<Self> {
        let mut process = Self::spawn_with(name, command, Stdio::null())?;
        process.ready = process.line(LISTEN_TIMEOUT)?;
        Ok(process)
    }

    /// Starts a server of another project without input, and waits until it listens at `port`. It is killed when dropped.
    pub(crate) fn other_server(name: &str, command: Command, port: u16) -> anyhow::Result<Self> {
        let process = Self::spawn_with(name, command, Stdio::null())?;
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < deadline, "{name} does not listen\n{}", process.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    fn spawn_with(name: &str, mut command: Command, input: Stdio) -> anyhow::Result<Self> {
        let log = tempfile::tempfile()?;
        command.stdin(input).stdout(Stdio::piped()).stderr(log.try_clone()?);
        let mut child =
            command.spawn().with_context(|| format!("can't start {}", command.get_program().display()))?;
        let output = child.stdout.take().context("the child has an output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { ready: Value::Null, name: name.to_owned(), input: child.stdin.take(), child, lines, log })
    }

    /// Performs one run.
    pub(crate) fn run(&mut self, request: &RunRequest) -> anyhow::Result<RunResult> {
        self.send(request)?;
        self.receive()
    }

    /// Sends a request without waiting for the answer.
    pub(crate) fn send(&mut self, request: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let input = self.input.as_mut().context("the child has an input")?;
        if let Err(error) = input.write_all(&line).and_then(|()| input.flush()) {
            bail!("{}: {error}\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Waits for an answer.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        Ok(serde_json::from_value(self.line(RUN_TIMEOUT)?)?)
    }

    /// Returns the resources that the process and its children have used so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of_tree(self.child.id())
    }

    /// Memory and threads of the process.
    pub(crate) fn threads(&self) -> Threads {
        Threads::of(self.child.id())
    }

    /// Fails if the process has exited.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} exited ({status})\n{}", self.name, self.log_tail()),
            None => Ok(()),
        }
    }

    /// Sends SIGTERM and returns at once.
    pub(crate) fn terminate(&self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    fn line(&mut self, timeout: Duration) -> anyhow::Result<Value> {
        let line = match self.lines.recv_timeout(timeout) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("{} printed nothing for {timeout:?}\n{}", self.name, self.log_tail())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} exited ({status})\n{}", self.name, self.log_tail())
            }
        };
        let value: Value =
            serde_json::from_str(&line).with_context(|| format!("{} printed {line:?}", self.name))?;
        if let Some(error) = value.get("error").and_then(Value::as_str) {
            bail!("{}: {error}", self.name);
        }
        Ok(value)
    }

    fn log_tail(&self) -> String {
        let (mut file, mut log) = (&self.log, Vec::new());
        // An unreadable log makes only the message shorter.
        drop(file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut log)));
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).trim().to_owned()
    }

    fn exits_within(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// Runs `command` to its end. The error contains the last line of its standard error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let done = command.stdin(Stdio::null()).output();
    let name = command.get_program().display();
    let done = done.with_context(|| format!("can't run {name}"))?;
    let log = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{name}: {}", log.trim().lines().last().unwrap_or("failed"));
    Ok(())
}

/// Returns a port that no process listens at, for servers that cannot choose one themselves.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Drop for Process {
    fn drop(&mut self) {
        let has_input = self.input.take().is_some();
        if !has_input || !self.exits_within(EXIT_TIMEOUT) {
            self.kill();
        }
    }
}
