//! Checks that etcd keeps its quorum when a node of the control plane goes into maintenance.
//!
//! The rules are those of the two node maintenance operators. They apply to clusters whose etcd has a
//! PodDisruptionBudget in `openshift-etcd`:
//!
//! | group | node | PDB | refused |
//! |---|---|---|---|
//! | `nodemaintenance.medik8s.io` | master or control-plane, where `config.openshift.io/v1` is served | the only one | it allows no disruption and guards a pod of the node that is not unready; or there is none, or several |
//! | `nodemaintenance.kubevirt.io` | master | `etcd-quorum-guard` | it exists and allows no disruption |

use drydock_api::maintenance::Group;
use drydock_core::eviction::own_pdb::selects;
use drydock_runtime::chain;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

/// Older label of nodes of the control plane.
const MASTER: &str = "node-role.kubernetes.io/master";
/// Labels of nodes of the control plane.
const CONTROL_PLANE: [&str; 2] = [MASTER, "node-role.kubernetes.io/control-plane"];
/// Name of the PDB that the older operator checks.
const QUORUM_GUARD: &str = "etcd-quorum-guard";
const PLATFORM: &str = "config.openshift.io/v1";
const NAMESPACE: &str = "openshift-etcd";

/// Checks whether etcd allows the maintenance of a node.
///
/// # Errors
/// Returns the human-readable message of the refusal.
pub(super) async fn check(client: &Client, group: Group, node: &Node) -> Result<(), String> {
    let has = |label: &str| node.labels().contains_key(label);
    let name = node.name_any();
    let unsure = |error: kube::Error| {
        format!(
            "could not get master quorum status for validating spec.NodeName {name}, please try again: {}",
            chain(&error)
        )
    };
    match group {
        Group::KubeVirt if has(MASTER) => check_guard(client).await.map_err(unsure)?,
        Group::Medik8s if CONTROL_PLANE.iter().any(|label| has(label)) => {
            return check_members(client, &name, unsure).await;
        }
        _ => Ok(()),
    }
}

/// Checks the rule of the older API group. The outer error is an error of the API server, the inner one is a refusal.
async fn check_guard(client: &Client) -> kube::Result<Result<(), String>> {
    let pdbs = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    // The PDB is listed, because the controller has the right to list PDBs, but not to get them.
    let named = ListParams::default().fields(&format!("metadata.name={QUORUM_GUARD}"));
    let guards = pdbs.list(&named).await?.items;
    Ok(if guards.iter().all(allows_disruption) {
        Ok(())
    } else {
        Err("can not put master node into maintenance at this moment, it would violate the master quorum".into())
    })
}

fn allows_disruption(pdb: &PodDisruptionBudget) -> bool {
    pdb.status
        .as_ref()
        .is_some_and(|status| status.disruptions_allowed >= 1)
}

/// Checks the rule of the newer API group.
async fn check_members(
    client: &Client,
    name: &str,
    unsure: impl Fn(kube::Error) -> String + Copy,
) -> Result<(), String> {
    match client.list_api_group_resources(PLATFORM).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        Err(error) => return Err(unsure(error)),
    }
    let pdbs = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    let pdbs = pdbs.list(&ListParams::default()).await.map_err(unsure)?.items;
    let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list(&on_node).await.map_err(unsure)?.items;
    if keeps_quorum(&pdbs, &pods) {
        return Ok(());
    }
    Err(format!(
        "can not put master/control-plane node into maintenance at this moment, disrupting node {name} will violate \
         etcd quorum"
    ))
}

/// Returns whether etcd tolerates the loss of the node that runs these pods of the etcd namespace.
fn keeps_quorum(pdbs: &[PodDisruptionBudget], pods: &[Pod]) -> bool {
    let [pdb] = pdbs else {
        return false;
    };
    if allows_disruption(pdb) {
        return true;
    }
    // Losing a member that is not ready does not change the quorum.
    pods.iter().find(|pod| selects(pdb, pod)).is_none_or(is_not_ready)
}

fn is_not_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "Ready"));
    ready.is_some_and(|ready| ready.status == "False")
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::api_server;
    use serde_json::json;

    use super::*;

    fn pdb(allowed: i32) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"name": "etcd", "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": {"app": "guard"}}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3},
        }))
        .unwrap()
    }

    fn pod(app: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": app, "namespace": NAMESPACE, "labels": {"app": app}},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_working_member_stays_unless_another_may_go() {
        for (pdbs, pods, kept) in [
            (vec![], vec![], false),
            (vec![pdb(1), pdb(1)], vec![], false),
            (vec![pdb(1)], vec![pod("guard", "True")], true),
            (vec![pdb(0)], vec![pod("guard", "True")], false),
            (vec![pdb(0)], vec![pod("guard", "Unknown")], false),
            (vec![pdb(0)], vec![pod("guard", "False")], true),
            (vec![pdb(0)], vec![pod("other", "True")], true),
        ] {
            assert_eq!(keeps_quorum(&pdbs, &pods), kept, "{pdbs:?} {pods:?}");
        }
    }

    #[tokio::test]
    async fn older_maintenance_group_respects_the_etcd_quorum_guard() {
        let node = |label: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": {label: ""}}})).unwrap()
        };
        let guard = |allowed: i32| {
            let mut guard = json!(pdb(allowed));
            guard["apiVersion"] = "policy/v1".into();
            guard["kind"] = "PodDisruptionBudget".into();
            guard
        };
        for (found, refused) in [(None, false), (Some(guard(1)), false), (Some(guard(0)), true)] {
            let (client, mut server) = api_server();
            let master = node(MASTER);
            let reply = async {
                let request = server.next_request().await;
                assert!(
                    request
                        .path()
                        .ends_with("/namespaces/openshift-etcd/poddisruptionbudgets")
                );
                assert!(request.query().contains("metadata.name%3Detcd-quorum-guard"));
                let items: Vec<_> = found.iter().collect();
                request.with(&json!({
                    "apiVersion": "policy/v1", "kind": "PodDisruptionBudgetList", "metadata": {}, "items": items,
                }));
            };
            let (result, ()) = tokio::join!(check(&client, Group::KubeVirt, &master), reply);
            let expected =
                "can not put master node into maintenance at this moment, it would violate the master quorum";
            assert_eq!(result.err().as_deref(), refused.then_some(expected));
        }
        let (client, _server) = api_server();
        let worker = node("node-role.kubernetes.io/control-plane");
        assert_eq!(
            check(&client, Group::KubeVirt, &worker).await,
            Ok(()),
            "it goes by the older label alone"
        );
    }
}
