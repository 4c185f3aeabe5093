//! Drydock's own workloads and pods on the cluster.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

use crate::{Cluster, agent, migrations::pod_has_ended, watching::until_some};

/// Workload of the agents, as a kubectl argument.
pub const AGENTS: &str = "daemonset/drydock-agent";
/// Workload of the controller, as a kubectl argument.
pub const CONTROLLERS: &str = "deployment/drydock-controller";
/// Number of controller replicas.
const REPLICAS: usize = 2;

impl Cluster {
    /// Starts a rollout restart of a workload.
    ///
    /// # Errors
    /// If kubectl fails.
    pub fn restart(&self, workload: &str) -> Result<()> {
        self.kubectl(&["-n", "drydock", "rollout", "restart", workload])
            .map(drop)
    }

    /// Waits until the rollout of a workload is complete.
    ///
    /// # Errors
    /// If it takes longer than two minutes.
    pub fn rolled_out(&self, workload: &str) -> Result<()> {
        self.kubectl(&["-n", "drydock", "rollout", "status", workload, "--timeout=120s"])
            .map(drop)
    }

    /// Returns Drydock's own pods, without those that have ended or are being deleted.
    ///
    /// # Errors
    /// If the API server does not respond.
    pub async fn own_pods(&self) -> Result<Vec<Pod>> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "drydock");
        let mut all = pods.list(&ListParams::default()).await?.items;
        all.retain(|pod| pod.metadata.deletion_timestamp.is_none() && !pod_has_ended(pod));
        Ok(all)
    }

    /// Returns the ready pods of the controller, by name, with their nodes.
    ///
    /// # Errors
    /// If the API server does not respond.
    pub async fn ready_controllers(&self) -> Result<BTreeMap<String, String>> {
        let mut pods = self.own_pods().await?;
        pods.retain(|pod| pod.name_any().starts_with("drydock-controller") && agent::is_ready(pod));
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Ok(pods
            .iter()
            .map(|pod| (pod.name_any(), node(pod).unwrap_or_default()))
            .collect())
    }

    /// Returns the metrics of all controllers, one after the other.
    ///
    /// # Errors
    /// If one of them does not respond.
    pub async fn controller_metrics(&self) -> Result<String> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "drydock");
        let controllers = ListParams::default().labels("app.kubernetes.io/name=drydock-controller");
        let mut metrics = String::new();
        for pod in pods.list_metadata(&controllers).await? {
            let path = format!("/api/v1/namespaces/drydock/pods/{}:8080/proxy/metrics", pod.name_any());
            metrics += &self.get(&path).await?;
        }
        Ok(metrics)
    }

    /// Deletes a replica of the controller if both are on one node, for example after a drain.
    ///
    /// The standby replica is deleted. Otherwise the leader would move a replica half a minute later, which would close
    /// the streams that this replica serves.
    ///
    /// # Errors
    /// If the replicas do not run on two nodes in time.
    pub async fn controllers_apart(&self) -> Result<()> {
        until_some("a controller on each of two nodes", || async {
            let controllers = self.ready_controllers().await?;
            if controllers.len() != REPLICAS {
                return Ok(None);
            }
            let nodes: BTreeSet<_> = controllers.values().collect();
            if nodes.len() == REPLICAS {
                return Ok(Some(()));
            }
            let leader = self.leading_controller().await?.name_any();
            if let Some(standby) = controllers.keys().find(|pod| **pod != leader) {
                self.delete(&["pod", standby, "--namespace=drydock", "--timeout=90s"])?;
            }
            Ok(None)
        })
        .await
    }

    /// Waits until all pods of Drydock and all nodes are ready.
    ///
    /// # Errors
    /// If it takes too long.
    pub async fn until_whole(&self) -> Result<()> {
        until_some("all pods of Drydock to be ready", || async {
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

    /// Replaces the pods with a container that was restarted more than `often` times.
    ///
    /// The kubelet increases the delay with each restart; a test that kills a container again needs a short delay.
    ///
    /// # Errors
    /// If the new pods do not become ready.
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
