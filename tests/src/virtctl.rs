//! KubeVirt's own command-line tool, virtctl, on the tests' cluster.

use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::{Cluster, cluster::program, session::Session};

/// Name of the environment variable with the path of the program, which `hack/test` builds.
const PROGRAM: &str = "DRYDOCK_TEST_VIRTCTL";

impl Cluster {
    /// Runs virtctl, and returns its output.
    ///
    /// # Errors
    /// If virtctl fails, with its standard error.
    pub fn virtctl(&self, arguments: &[&str]) -> Result<String> {
        let done = self.run_virtctl(arguments)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !done.status.success() {
            bail!("virtctl {arguments:?}: {}{}", text(&done.stdout), text(&done.stderr));
        }
        Ok(text(&done.stdout))
    }

    /// Runs virtctl, which has to fail, and returns the lines of its standard error.
    ///
    /// # Errors
    /// If virtctl succeeds.
    pub fn virtctl_refused(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let done = self.run_virtctl(arguments)?;
        if done.status.success() {
            bail!("virtctl {arguments:?} succeeded");
        }
        let text = String::from_utf8_lossy(&done.stderr);
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Starts virtctl in the background; it runs until its user or the cluster ends it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn virtctl_begun(&self, arguments: &[&str]) -> Result<Session> {
        let mut command = Command::new(program(PROGRAM)?);
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments);
        Session::start(command)
    }

    /// Starts virtctl on its own terminal, as for a console.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn virtctl_at_terminal(&self, arguments: &[&str]) -> Result<Session> {
        let mut command = Command::new("script");
        let kubeconfig = self.kubeconfig().display().to_string();
        let line = format!(
            "{} --kubeconfig {kubeconfig} {}",
            program(PROGRAM)?,
            arguments.join(" ")
        );
        command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        Session::start(command)
    }

    fn run_virtctl(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(program(PROGRAM)?)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments)
            .output()
            .context("virtctl")
    }
}
