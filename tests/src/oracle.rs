//! An independent computation of a node's labels by `tests/oracle`, from the output of virsh.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::{Cluster, cluster::repository};

/// The settings that the labels depend on, in addition to the machine.
#[derive(Clone, Debug, Default)]
pub struct LabelInputs {
    /// Additional obsolete models.
    pub obsolete: Vec<String>,
    /// The minimum model; Penryn if absent.
    pub minimum: Option<String>,
    /// Masked features.
    pub mask: Vec<String>,
}

/// Returns the expected labels of a node, from virsh in the agent's container on that node.
///
/// # Errors
/// If virsh or the computation fails.
pub async fn labels(cluster: &Cluster, node: &str, inputs: &LabelInputs) -> Result<BTreeMap<String, String>> {
    let oracle = repository().join("tests/oracle");
    let script = fs::read_to_string(oracle.join("query_virsh.sh"))?;
    let printed = cluster
        .in_agent(node, &script)
        .await
        .context("virsh in the agent's container")?;
    let folder = TempDir::with_prefix("drydock-oracle-")?;
    fs::create_dir(folder.path().join("cpu_map"))?;
    // The output is a sequence of files, each of which follows a line `=== name`.
    for part in printed.split("\n=== ").skip(1) {
        let (name, content) = part.split_once('\n').context("a part without a name")?;
        fs::write(folder.path().join(name.trim()), content)?;
    }
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let mut command = Command::new("python3");
    command
        .arg(oracle.join("node_labels.py"))
        .args(["domcapabilities.xml", "baseline.xml", "capabilities.xml"].map(path))
        .args(["--cpu-map", &path("cpu_map"), "--obsolete", &inputs.obsolete.join(",")])
        .args(["--mask", &inputs.mask.join(",")]);
    if let Some(minimum) = &inputs.minimum {
        command.args(["--minimum", minimum]);
    }
    let done = command.output()?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(serde_json::from_slice(&done.stdout)?)
}
