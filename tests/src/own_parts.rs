//! Drydock's own workloads and pods on the cluster.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

use crate::{Cluster, agent, migrations::pod_has_ended, watching::until_some};

/// The agents' workload, as kubectl names it.
pub const AGENTS: &str = "daemonset/drydock-agent";
/// The controllers'.
pub const CONTROLLERS: &str = "deployment/drydock-controller";
/// So many controllers there are.
const REPLICAS: usize = 2;

impl Cluster {
    /// Begins to put new pods of a workload in place of the old ones.
    ///
    /// # Errors
    /// If kubectl fails.
    pub fn restart(&self, workload: &str) -> Result<()> {
        self.kubectl(&["-n", "drydock", "rollout", "restart", workload])
            .map(drop)
    }

    /// Waits until a workload's pods are as it describes them.
    ///
    /// # Errors
    /// If that takes longer than two minutes.
    pub fn rolled_out(&self, workload: &str) -> Result<()> {
        self.kubectl(&["-n", "drydock", "rollout", "status", workload, "--timeout=120s"])
            .map(drop)
    }

    /// Drydock's own pods that are not on their way out.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn own_pods(&self) -> Result<Vec<Pod>> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "drydock");
        let mut all = pods.list(&ListParams::default()).await?.items;
        all.retain(|pod| pod.metadata.deletion_timestamp.is_none() && !pod_has_ended(pod));
        Ok(all)
    }

    /// Waits until all parts of Drydock are there, and all nodes.
    ///
    /// # Errors
    /// If it takes too long.
    pub async fn until_whole(&self) -> Result<()> {
        until_some("all of Drydock to be ready", || async {
            let pods = self.own_pods().await?;
            let mut whole = pods.len() == self.nodes.len() + REPLICAS && pods.iter().all(agent::is_ready);
            for node in &self.nodes {
                whole &= agent::condition(&self.hypervisor(node).await?, "Ready").0 == "True";
            }
            Ok(whole.then_some(()))
        })
        .await?;
        self.until_admitting().await
    }

    /// Puts new pods in place of those in which something was started anew more than `often` times, before it is
    /// killed again: the kubelet waits longer from one time to the next until it starts a process.
    ///
    /// # Errors
    /// If they do not come.
    pub async fn renew_killed(&self, often: i32) -> Result<()> {
        let mut killed = self.own_pods().await?;
        killed.retain(|pod| agent::restarts(pod) > often);
        for pod in &killed {
            self.delete(&["pod", &pod.name_any(), "--namespace=drydock", "--timeout=90s"])?;
        }
        if killed.is_empty() {
            Ok(())
        } else {
            self.until_whole().await
        }
    }
}
