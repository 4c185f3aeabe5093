//! A node of the control plane goes into maintenance only if etcd keeps its quorum.
//!
//! The rule is that of the node maintenance operator, and like there it is for clusters whose etcd has
//! a disruption budget in `openshift-etcd`: those that serve `config.openshift.io/v1`.

use drydock_core::maintenance::budgets::guards;
use drydock_runtime::chain;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

/// Labels of nodes of the control plane.
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/control-plane",
];
const PLATFORM: &str = "config.openshift.io/v1";
const NAMESPACE: &str = "openshift-etcd";

/// Whether a node may go into maintenance, as far as etcd is concerned.
///
/// # Errors
/// The refusal, for people.
pub(super) async fn check(client: &Client, node: &Node) -> Result<(), String> {
    if !node
        .labels()
        .keys()
        .any(|label| CONTROL_PLANE.contains(&label.as_str()))
    {
        return Ok(());
    }
    let name = node.name_any();
    let unsure = |error: kube::Error| {
        format!(
            "could not get master quorum status for validating spec.NodeName {name}, please try again: {}",
            chain(&error)
        )
    };
    match client.list_api_group_resources(PLATFORM).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        Err(error) => return Err(unsure(error)),
    }
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    let budgets = budgets.list(&ListParams::default()).await.map_err(unsure)?.items;
    let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list(&on_node).await.map_err(unsure)?.items;
    if keeps_quorum(&budgets, &pods) {
        return Ok(());
    }
    Err(format!(
        "can not put master/control-plane node into maintenance at this moment, disrupting node {name} will violate \
         etcd quorum"
    ))
}

/// Whether etcd bears the loss of the node that these pods of its namespace are on.
fn keeps_quorum(budgets: &[PodDisruptionBudget], pods: &[Pod]) -> bool {
    let [budget] = budgets else {
        return false;
    };
    if budget
        .status
        .as_ref()
        .is_some_and(|status| status.disruptions_allowed >= 1)
    {
        return true;
    }
    // One that does not work already is no loss.
    pods.iter().find(|pod| guards(budget, pod)).is_none_or(is_not_ready)
}

fn is_not_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "Ready"));
    ready.is_some_and(|ready| ready.status == "False")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(allowed: i32) -> PodDisruptionBudget {
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
        for (budgets, pods, kept) in [
            (vec![], vec![], false),
            (vec![budget(1), budget(1)], vec![], false),
            (vec![budget(1)], vec![pod("guard", "True")], true),
            (vec![budget(0)], vec![pod("guard", "True")], false),
            (vec![budget(0)], vec![pod("guard", "Unknown")], false),
            (vec![budget(0)], vec![pod("guard", "False")], true),
            (vec![budget(0)], vec![pod("other", "True")], true),
        ] {
            assert_eq!(keeps_quorum(&budgets, &pods), kept, "{budgets:?} {pods:?}");
        }
    }
}
