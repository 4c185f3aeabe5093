//! KubeVirt's own command line on the tests' cluster.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{Cluster, cluster::setting, watching::until_some};

/// Name of the variable with the path of the program, which `hack/test` builds.
const PROGRAM: &str = "DRYDOCK_TEST_VIRTCTL";

impl Cluster {
    /// Runs virtctl; returns what it printed.
    ///
    /// # Errors
    /// If it fails, with what it printed on its standard error.
    pub fn virtctl(&self, arguments: &[&str]) -> Result<String> {
        let done = self.run_virtctl(arguments)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !done.status.success() {
            bail!("virtctl {arguments:?}: {}{}", text(&done.stdout), text(&done.stderr));
        }
        Ok(text(&done.stdout))
    }

    /// Runs virtctl, which is to fail; returns the lines of its standard error.
    ///
    /// # Errors
    /// If it succeeds.
    pub fn virtctl_refused(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let done = self.run_virtctl(arguments)?;
        if done.status.success() {
            bail!("virtctl {arguments:?} succeeded");
        }
        let text = String::from_utf8_lossy(&done.stderr);
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Starts virtctl, which goes on until its user or the cluster ends it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn virtctl_begun(&self, arguments: &[&str]) -> Result<Session> {
        let mut command = Command::new(program()?);
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments);
        Session::start(command)
    }

    /// Starts virtctl at a terminal of its own, as for a console.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn virtctl_at_terminal(&self, arguments: &[&str]) -> Result<Session> {
        let mut command = Command::new("script");
        let kubeconfig = self.kubeconfig().display().to_string();
        let line = format!("{} --kubeconfig {kubeconfig} {}", program()?, arguments.join(" "));
        command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        Session::start(command)
    }

    fn run_virtctl(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(program()?)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments)
            .output()
            .context("virtctl")
    }
}

fn program() -> Result<String> {
    setting(PROGRAM).with_context(|| format!("run by `hack/test cluster`: {PROGRAM} is not set"))
}

/// A virtctl that goes on. It is killed when dropped.
#[derive(Debug)]
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Session {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("virtctl")?;
        let output = Arc::new(Mutex::new(Vec::new()));
        for stream in [
            child
                .stdout
                .take()
                .map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            child
                .stderr
                .take()
                .map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        ]
        .into_iter()
        .flatten()
        {
            let output = Arc::clone(&output);
            thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 4096];
                while let Ok(length) = stream.read(&mut buffer)
                    && length > 0
                {
                    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                    output.extend_from_slice(&buffer[..length]);
                }
            });
        }
        let input = child.stdin.take();
        Ok(Self { child, input, output })
    }

    /// Returns what it has printed so far.
    pub fn printed(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&output).into_owned()
    }

    /// Types a text.
    ///
    /// # Errors
    /// If it has ended.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let input = self.input.as_mut().context("its input is closed")?;
        input.write_all(text.as_bytes())?;
        Ok(input.flush()?)
    }

    /// Waits until it has printed a text.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_printed(&self, text: &str) -> Result<String> {
        let what = format!("virtctl to print {text:?}");
        let found = until_some(&what, || async {
            Ok(Some(self.printed()).filter(|printed| printed.contains(text)))
        });
        found.await.with_context(|| format!("it printed {:?}", self.printed()))
    }

    /// Waits until it ends; returns whether it succeeded.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_ended(&mut self) -> Result<bool> {
        let child = Mutex::new(&mut self.child);
        let ended = until_some("virtctl to end", || async {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(child.try_wait()?)
        });
        let status = ended.await;
        status
            .map(|status| status.success())
            .with_context(|| format!("it printed {:?}", self.printed()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
