//! The agent's writes to the API server. Each is one request, sent only if something differs.

use std::collections::BTreeMap;

use drydock_api::{AGENT_FIELD_MANAGER, Hypervisor, HypervisorSpec, HypervisorStatus};
use drydock_runtime::apply_status;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, PartialObjectMeta, Patch},
};
use serde_json::json;

use crate::request_params::{creating, patching};

/// Writes of one agent to the objects of its own node.
#[derive(Clone)]
pub(crate) struct Writes {
    node: String,
    nodes: Api<Node>,
    hypervisors: Api<Hypervisor>,
}

impl Writes {
    /// Creates the writes to the objects of `node`.
    pub(crate) fn new(client: Client, node: String) -> Self {
        Self {
            node,
            nodes: Api::all(client.clone()),
            hypervisors: Api::all(client),
        }
    }

    /// Changes labels of the Node with a merge patch of only these keys: it cannot conflict with other writers, and
    /// removes keys of any field manager. Returns the patched Node.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn labels(
        &self,
        changes: &BTreeMap<String, Option<String>>,
    ) -> kube::Result<PartialObjectMeta<Node>> {
        let patch = json!({"metadata": {"labels": changes}});
        self.nodes
            .patch_metadata(&self.node, &patching(), &Patch::Merge(patch))
            .await
    }

    /// Creates the Hypervisor of this node, owned by `node`, and returns it; `None` if there is one already.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn create(&self, node: &PartialObjectMeta<Node>) -> kube::Result<Option<Hypervisor>> {
        let hypervisor = Hypervisor {
            metadata: ObjectMeta {
                name: Some(self.node.clone()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".into(),
                    kind: "Node".into(),
                    name: self.node.clone(),
                    uid: node.uid().unwrap_or_default(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: HypervisorSpec::default(),
            status: None,
        };
        match self.hypervisors.create(&creating(), &hypervisor).await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies the status of this node's Hypervisor. Returns the patched object.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn status(&self, status: &HypervisorStatus) -> kube::Result<Hypervisor> {
        let metadata = ObjectMeta {
            name: Some(self.node.clone()),
            ..ObjectMeta::default()
        };
        apply_status(&self.hypervisors, metadata, AGENT_FIELD_MANAGER, status).await
    }
}

impl Writes {
    /// Returns whether the Node of this agent exists, read from the API server past every cache.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn node_exists(&self) -> kube::Result<bool> {
        let parameters = ListParams::default().fields(&format!("metadata.name={}", self.node));
        Ok(!self.nodes.list_metadata(&parameters).await?.items.is_empty())
    }

    /// Returns the number of Hypervisors, which is the number of agents that follow the same configuration. Reads one
    /// object; the API server counts the rest.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn count_hypervisors(&self) -> kube::Result<u64> {
        let first = self.hypervisors.list_metadata(&ListParams::default().limit(1)).await?;
        let rest = first
            .metadata
            .remaining_item_count
            .and_then(|count| u64::try_from(count).ok());
        Ok(rest.unwrap_or(0) + u64::try_from(first.items.len()).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::{WriteFault, api_server};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_is_missing_only_if_the_api_server_lists_none() {
        let (client, mut server) = api_server();
        let writes = Writes::new(client, "n1".into());
        let node = json!({"metadata": {"name": "n1"}});
        for (items, exists) in [(json!([node]), true), (json!([]), false)] {
            let serve = async {
                let request = server.next_request().await;
                assert!(
                    request.line.contains("fieldSelector=metadata.name%3Dn1"),
                    "{}",
                    request.line
                );
                assert!(
                    !request.line.contains("resourceVersion"),
                    "a cache may be behind: {}",
                    request.line
                );
                request.with(&json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items,
                }));
            };
            let (found, ()) = tokio::join!(writes.node_exists(), serve);
            assert_eq!(found.unwrap(), exists);
        }
        let (found, ()) = tokio::join!(writes.node_exists(), async {
            server.next_request().await.refuse(401, "Unauthorized");
        });
        assert!(found.is_err(), "a token that is invalid proves nothing");
    }

    #[tokio::test]
    async fn each_failed_write_is_an_error_and_not_repeated_here() {
        let node: PartialObjectMeta<Node> = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u"},
        }))
        .unwrap();
        let labels = BTreeMap::from([("key".to_owned(), None)]);
        let status = HypervisorStatus::default();
        for fault in WriteFault::ALL {
            let (client, mut server) = api_server();
            let writes = Writes::new(client, "n1".into());
            for write in ["labels", "creation", "status"] {
                let result = async {
                    match write {
                        "labels" => writes.labels(&labels).await.err(),
                        "creation" => writes.create(&node).await.err(),
                        _ => writes.status(&status).await.err(),
                    }
                };
                let (error, ()) = tokio::join!(result, async { server.next_request().await.fail(fault) });
                assert!(error.is_some(), "{fault:?} of the write {write}");
                assert!(
                    server.is_left_alone_for(std::time::Duration::ZERO).await,
                    "{fault:?} of the write {write}"
                );
            }
        }
    }

    #[tokio::test]
    async fn hypervisor_that_exists_is_not_created() {
        let node: PartialObjectMeta<Node> =
            serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).unwrap();
        let (client, mut server) = api_server();
        let writes = Writes::new(client, "n1".into());
        let (created, ()) = tokio::join!(writes.create(&node), async {
            server.next_request().await.refuse(409, "AlreadyExists");
        });
        assert!(created.unwrap().is_none());
    }
}
