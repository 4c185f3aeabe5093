//! The steps of the uninstallation that change objects.

use std::fmt::Debug;

use drydock_api::{
    Hypervisor,
    kubevirt::{VirtualMachineInstanceMigration, names::MIGRATION_FINALIZER},
    removal::{DRYDOCK, FOLDERS, FOLDERS_APP, PART_OF, UNINSTALL},
};
use drydock_core::removal::{
    node_removal::{without_labels, without_status},
    progress::{folders_left, is_linux, still_there},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Node, Pod},
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{Uninstall, UninstallError};
use crate::{
    certificates::{API_SERVICES, is_served_by},
    requests::{unless_missing, without_finalizer},
};

/// Name of the DaemonSet of the agents.
const AGENTS: &str = "drydock-agent";
/// Name of the Deployment of the controllers.
const CONTROLLERS: &str = "drydock-controller";
/// Maximum number of nodes that are changed concurrently.
const MAX_CONCURRENT_NODES: usize = 8;

impl Uninstall {
    /// Deletes the workloads that run Drydock's pods, and waits until the pods have ended.
    pub(super) async fn delete_workloads(&self) -> Result<(), UninstallError> {
        let agents = Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace);
        let controllers = Api::<Deployment>::namespaced(self.client.clone(), &self.namespace);
        // The controllers may not know yet that the last virtual machine was deleted, and refuse the deletion for a
        // moment.
        self.persist("delete the agents' DaemonSet", async || delete(&agents, AGENTS).await)
            .await?;
        self.persist("delete the controllers' Deployment", async || {
            delete(&controllers, CONTROLLERS).await
        })
        .await?;
        self.delete_api_services().await?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let own = ListParams::default().labels(&format!("{PART_OF}={DRYDOCK}"));
        let nodes = self.nodes();
        self.await_none("Drydock's pods have not ended", "list Drydock's pods", async || {
            let (pods, nodes) = (pods.list(&own).await?, nodes.list(&ListParams::default()).await?);
            Ok(still_there(&pods.items, &nodes.items))
        })
        .await?;
        info!("agents and controllers have ended");
        Ok(())
    }

    /// Deletes the APIServices that the controllers served. The API server deletes no namespace while an API is
    /// registered but not served.
    pub(super) async fn delete_api_services(&self) -> Result<(), UninstallError> {
        let api = Api::<APIService>::all(self.client.clone());
        for name in API_SERVICES {
            self.persist("delete the APIServices", async || match api.get_opt(name).await? {
                Some(found) if is_served_by(&found, &self.namespace) => delete(&api, name).await,
                _ => Ok(()),
            })
            .await?;
        }
        Ok(())
    }

    /// Removes the finalizers of migrations. Otherwise their CustomResourceDefinition could not be deleted.
    pub(super) async fn release_migrations(&self) -> Result<(), UninstallError> {
        self.persist("remove the finalizers of migrations", async || {
            let all = Api::<VirtualMachineInstanceMigration>::all(self.client.clone());
            let Some(list) = unless_missing(all.list_metadata(&ListParams::default()).await)? else {
                return Ok(());
            };
            for migration in list.items {
                if !migration.finalizers().iter().any(|name| name == MIGRATION_FINALIZER) {
                    continue;
                }
                let finalizers = without_finalizer(&migration, MIGRATION_FINALIZER);
                let patch = json!({"metadata": {
                    "resourceVersion": migration.resource_version(), "finalizers": finalizers,
                }});
                let namespace = migration.namespace().unwrap_or_default();
                let api = Api::<VirtualMachineInstanceMigration>::namespaced(self.client.clone(), &namespace);
                let name = migration.name_any();
                unless_missing(
                    api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch))
                        .await,
                )?;
                info!(migration = %format!("{namespace}/{name}"), "finalizer removed");
            }
            Ok(())
        })
        .await
    }

    /// Removes the folders on the nodes with the pods of the DaemonSet for this purpose, if it exists.
    pub(super) async fn remove_folders(&self) -> Result<(), UninstallError> {
        let sets = Api::<DaemonSet>::namespaced(self.client.clone(), &self.folders_namespace);
        let set = self
            .persist("get the DaemonSet that removes folders", async || {
                sets.get_opt(FOLDERS_APP).await
            })
            .await?;
        if set.is_none() {
            warn!(
                namespace = self.folders_namespace,
                daemon_set = FOLDERS_APP,
                "the DaemonSet does not exist, so the folders on the nodes are not removed"
            );
            return Ok(());
        }
        let nodes = self.nodes();
        self.persist("label the nodes", async || {
            for node in nodes.list(&ListParams::default()).await?.items {
                if is_linux(&node) && node.labels().get(UNINSTALL).map(String::as_str) != Some(FOLDERS) {
                    merge(&nodes, &node, json!({"metadata": {"labels": {UNINSTALL: FOLDERS}}})).await?;
                }
            }
            Ok(())
        })
        .await?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.folders_namespace);
        let own = ListParams::default().labels(&format!("app.kubernetes.io/name={FOLDERS_APP}"));
        let left = async || -> kube::Result<_> {
            let (nodes, pods) = (nodes.list(&ListParams::default()).await?, pods.list(&own).await?);
            Ok(folders_left(&nodes.items, &pods.items))
        };
        self.await_none(
            "folders on nodes were not removed",
            "list the pods that remove folders",
            async || Ok(left().await?.awaited),
        )
        .await?;
        for node in self
            .persist("list the pods that remove folders", &left)
            .await?
            .unreachable
        {
            warn!(
                node,
                "folders not removed, the node is not ready: repeat this when the node is ready, or delete the folders"
            );
        }
        info!("folders are removed from all ready nodes");
        Ok(())
    }

    /// Removes labels, conditions and resources from all nodes.
    pub(super) async fn clean_nodes(&self) -> Result<(), UninstallError> {
        let nodes = self.nodes();
        let all = self
            .persist("list nodes", async || nodes.list(&ListParams::default()).await)
            .await?;
        stream::iter(all.items.iter().map(|node| self.clean(&nodes, node)))
            .buffer_unordered(MAX_CONCURRENT_NODES)
            .try_collect::<()>()
            .await?;
        info!(
            nodes = all.items.len(),
            "labels, conditions and resources are removed from all nodes"
        );
        Ok(())
    }

    async fn clean(&self, nodes: &Api<Node>, node: &Node) -> Result<(), UninstallError> {
        if let Some(patch) = without_labels(node) {
            self.persist("remove the labels of a node", async || {
                merge(nodes, node, patch.clone()).await
            })
            .await?;
        }
        if let Some(patch) = without_status(node) {
            let patch = Patch::Strategic(patch);
            self.persist("remove the conditions of a node", async || {
                unless_missing(
                    nodes
                        .patch_status(&node.name_any(), &PatchParams::default(), &patch)
                        .await,
                )
                .map(drop)
            })
            .await?;
        }
        Ok(())
    }

    /// Deletes the Hypervisors, which contain the reports of the agents.
    pub(super) async fn delete_hypervisors(&self) -> Result<(), UninstallError> {
        let all = Api::<Hypervisor>::all(self.client.clone());
        self.persist("delete the Hypervisors", async || {
            let (how, which) = (DeleteParams::default(), ListParams::default());
            unless_missing(all.delete_collection(&how, &which).await).map(drop)
        })
        .await
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }
}

async fn merge(nodes: &Api<Node>, node: &Node, patch: Value) -> kube::Result<()> {
    let patch = Patch::Merge(patch);
    unless_missing(
        nodes
            .patch_metadata(&node.name_any(), &PatchParams::default(), &patch)
            .await,
    )
    .map(drop)
}

async fn delete<K>(api: &Api<K>, name: &str) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    unless_missing(api.delete(name, &DeleteParams::default()).await).map(drop)
}
