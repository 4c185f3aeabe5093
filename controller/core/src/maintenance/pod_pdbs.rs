//! Which PodDisruptionBudgets protect a pod, with their numbers.

use std::sync::Arc;

use drydock_api::maintenance::Blocker;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};

use crate::eviction::own_pdb::selects;

/// Returns the PDB that blocks a pod's eviction: the PDB that the API server names, else the PDB with the fewest
/// allowed disruptions.
pub fn blocker(pdbs: &[Arc<PodDisruptionBudget>], pod: &Pod, message: &str) -> Option<Blocker> {
    let guarding = pdbs.iter().filter(|pdb| selects(pdb, pod));
    let rank = |pdb: &&Arc<PodDisruptionBudget>| {
        let name = pdb.metadata.name.as_deref().unwrap_or_default();
        let named = message.split_whitespace().any(|part| part == name);
        let allowed = pdb.status.as_ref().map_or(0, |status| status.disruptions_allowed);
        (!named, allowed, name.to_owned())
    };
    let pdb = guarding.min_by_key(rank)?;
    let status = pdb.status.clone().unwrap_or_default();
    Some(Blocker {
        kind: "PodDisruptionBudget".into(),
        name: pdb.metadata.name.clone().unwrap_or_default(),
        disruptions_allowed: status.disruptions_allowed,
        current_healthy: status.current_healthy,
        desired_healthy: status.desired_healthy,
        expected_pods: status.expected_pods,
    })
}

/// Returns whether a change of a PDB may allow the eviction of a pod that it blocked.
pub fn may_unblock(old: Option<&PodDisruptionBudget>, new: Option<&PodDisruptionBudget>) -> bool {
    let allowed = |pdb: &PodDisruptionBudget| pdb.status.as_ref().map_or(0, |status| status.disruptions_allowed);
    match (old, new) {
        (Some(old), Some(new)) => allowed(new) > allowed(old) || old.spec != new.spec,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pdb(name: &str, selector: &Value, allowed: i32) -> Arc<PodDisruptionBudget> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "n"},
                "spec": {"selector": selector},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 2, "expectedPods": 3},
            }))
            .unwrap(),
        )
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "labels": {"app": "web"}}})).unwrap()
    }

    #[test]
    fn selectors_are_those_of_policy_v1() {
        for (selector, counted) in [
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({}), true),
            (Value::Null, false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Odd"}]}), false),
        ] {
            assert_eq!(selects(&pdb("b", &selector, 0), &pod()), counted, "{selector}");
        }
        let mut elsewhere = pod();
        elsewhere.metadata.namespace = Some("other".into());
        assert!(!selects(&pdb("b", &json!({}), 0), &elsewhere));
    }

    #[test]
    fn named_pdb_blocks_the_pod() {
        let pdbs = [pdb("a", &json!({}), 0), pdb("b", &json!({}), 1)];
        let message = "The disruption budget b needs 1 healthy pods and has 1 currently";
        let named = blocker(&pdbs, &pod(), message).unwrap();
        assert_eq!(
            (
                named.name.as_str(),
                named.current_healthy,
                named.desired_healthy,
                named.expected_pods
            ),
            ("b", 1, 2, 3)
        );
        assert_eq!(blocker(&pdbs, &pod(), "no").unwrap().name, "a");
        assert_eq!(blocker(&[], &pod(), "no"), None);
    }

    #[test]
    fn only_pdb_changes_that_may_unblock_count() {
        let pdb = |allowed| pdb("b", &json!({}), allowed);
        assert!(may_unblock(Some(&pdb(0)), Some(&pdb(1))));
        assert!(!may_unblock(Some(&pdb(1)), Some(&pdb(0))));
        assert!(!may_unblock(Some(&pdb(1)), Some(&pdb(1))));
        assert!(may_unblock(Some(&pdb(0)), None));
        assert!(!may_unblock(None, Some(&pdb(1))));
    }
}
