//! The Kubernetes descheduler on the tests' cluster.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::{Cluster, cluster::program, session::Session};

/// Name of the environment variable with the path of the program, which `hack/test` builds.
const PROGRAM: &str = "DRYDOCK_TEST_DESCHEDULER";

const POLICY: &str = "\
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
maxNoOfPodsToEvictTotal: 1
profiles:
- name: taints
  pluginConfig:
  - name: DefaultEvictor
    args:
      podProtections: {defaultDisabled: [PodsWithLocalStorage]}
      labelSelector: {matchLabels: {kubevirt.io: virt-launcher}}
  - name: RemovePodsViolatingNodeTaints
    args: {}
  plugins:
    deschedule: {enabled: [RemovePodsViolatingNodeTaints]}
";

impl Cluster {
    /// Starts the descheduler with evictions in the background (its feature `EvictionsInBackground`).
    ///
    /// Every second the descheduler evicts at most one launcher pod from nodes with a taint that the pod does not
    /// tolerate.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn descheduler_begun(&self) -> Result<Session> {
        let program = program(PROGRAM)?;
        // The folder contains the descheduler's policy, and the certificate that the descheduler creates for itself.
        let folder = TempDir::with_prefix("drydock-descheduler-").context("the descheduler's folder")?;
        let policy = folder.path().join("policy.yaml");
        fs::write(&policy, POLICY).context("the descheduler's policy")?;
        let mut command = Command::new(program);
        command
            .args(["--kubeconfig", &self.kubeconfig().display().to_string()])
            .args(["--policy-config-file", &policy.display().to_string()])
            .args(["--cert-dir", &folder.path().display().to_string()])
            .args(["--bind-address=127.0.0.1", "--descheduling-interval=1s", "--v=3"])
            .arg("--feature-gates=EvictionsInBackground=true");
        Ok(Session::start(command)?.with_folder(folder))
    }
}
