//! Compares the PDBs of a VMI's pods with the PDBs that the pods need.

use std::{sync::Arc, time::Duration};

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{Condition, VirtualMachineInstance, names::conditions::EVICTION_BUDGET_CONFLICT},
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};

use super::{
    grace_end, migrated_away,
    no_target::shut_down_from,
    own_pdb::{goes_with, is_protected},
};
use crate::{
    conditions::ConditionStatus,
    pod_state::created_at,
    vm_conditions::{condition, find},
};

/// A pod whose guest has migrated away is usually deleted within this time, and its PDB with it.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// A pod with its PDBs.
#[derive(Clone, Debug)]
pub struct PodPdbs {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Drydock's PDB that protects the pod.
    pub own: Option<Arc<PodDisruptionBudget>>,
    /// A foreign PDB that selects the pod.
    pub foreign: Option<Arc<PodDisruptionBudget>>,
}

/// The observed state of a VMI's pods and PDBs.
#[derive(Clone, Debug)]
pub struct ObservedPdbs {
    /// The current time.
    pub now: Timestamp,
    /// The VMI.
    pub instance: Arc<VirtualMachineInstance>,
    /// The eviction strategy in force.
    pub strategy: EvictionStrategy,
    /// Pods of the VMI, with their PDBs.
    pub pods: Vec<PodPdbs>,
}

/// The changes to the PDBs of a VMI.
#[derive(Clone, Debug, Default)]
pub struct PdbPlan {
    /// Pods whose PDB is missing.
    pub create: Vec<Arc<Pod>>,
    /// PDBs that protect nothing any more, and are not deleted with their pod.
    pub delete: Vec<Arc<PodDisruptionBudget>>,
    /// Name of a conflicting foreign PDB.
    pub foreign: Option<String>,
    /// When to requeue without a change.
    pub wake: Option<Timestamp>,
}

/// Returns the changes to the PDBs of a VMI.
pub fn plan(observed: &ObservedPdbs) -> PdbPlan {
    let ObservedPdbs { now, strategy, .. } = *observed;
    let instance = &observed.instance;
    let mut plan = PdbPlan::default();
    let mut wakes = Vec::new();
    for PodPdbs { pod, own, foreign } in &observed.pods {
        let migrated_away = migrated_away(instance, pod);
        if !migrated_away && is_protected(instance, strategy, pod, now) {
            match (foreign, own) {
                (Some(foreign), own) => {
                    plan.foreign = plan.foreign.or_else(|| foreign.metadata.name.clone());
                    plan.delete.extend(own.clone());
                }
                (None, None) => plan.create.push(Arc::clone(pod)),
                (None, Some(_)) => {}
            }
            // By then, the migratability is known, or the VMI counts as not migratable.
            wakes.extend(grace_end(created_at(pod)).filter(|end| now < *end));
            wakes.extend(shut_down_from(instance, strategy).filter(|from| now < *from));
            continue;
        }
        let Some(own) = own else { continue };
        let goes = goes_with(own, pod) && pod.metadata.deletion_timestamp.is_some();
        let until = moved_at(instance).filter(|_| migrated_away && goes_with(own, pod));
        let until = until.and_then(|at| at.checked_add(GOES_WITHIN).ok());
        match until.filter(|until| now < *until) {
            _ if goes => {}
            Some(until) => wakes.push(until),
            None => plan.delete.push(Arc::clone(own)),
        }
    }
    plan.wake = wakes.into_iter().min();
    plan
}

/// Returns when the newest migration of a VMI has ended.
fn moved_at(instance: &VirtualMachineInstance) -> Option<Timestamp> {
    instance.status.as_ref()?.migration_state.as_ref()?.end_timestamp
}

/// Returns the condition that explains why a pod has no PDB; `None` if there is no conflict. `refused` is the API
/// server's message when a creation was rejected.
pub fn conflict(
    instance: &VirtualMachineInstance,
    foreign: Option<&str>,
    refused: Option<&str>,
    now: Timestamp,
) -> Option<Condition> {
    let (reason, message) = match (foreign, refused) {
        (Some(pdb), _) => (
            "PodSelectedByAnotherPDB",
            format!(
                "PodDisruptionBudget {pdb} selects the virtual machine's pod; Kubernetes fails evictions of a pod with \
                 two PodDisruptionBudgets, so Drydock creates none for this pod, and only the webhook protects the pod"
            ),
        ),
        (None, Some(complaint)) => (
            "BudgetRefused",
            format!(
                "the API server rejects the PodDisruptionBudget for the virtual machine's pod ({complaint}), so only \
                 the webhook protects the pod"
            ),
        ),
        (None, None) => return None,
    };
    let before = conditions(instance);
    Some(condition(
        before,
        EVICTION_BUDGET_CONFLICT,
        ConditionStatus::True,
        reason,
        message,
        now,
    ))
}

/// Returns whether the VMI's current condition differs from `conflict`.
pub fn is_news(instance: &VirtualMachineInstance, conflict: Option<&Condition>) -> bool {
    find(conditions(instance), EVICTION_BUDGET_CONFLICT) != conflict
}

fn conditions(instance: &VirtualMachineInstance) -> &[Condition] {
    let status = instance.status.as_ref();
    status.map(|status| status.conditions.as_slice()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;
    use crate::eviction::own_pdb;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn instance(status: impl Into<Value>) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web", "namespace": "n", "uid": "u"},
            "spec": {"domain": {"devices": {}}}, "status": status.into(),
        }))
        .unwrap()
    }

    fn running() -> VirtualMachineInstance {
        instance(
            json!({"phase": "Running", "nodeName": "a", "conditions": [{"type": "LiveMigratable", "status": "True"}]}),
        )
    }

    fn pod(name: &str, node: &str, change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"drydock.dev/launcher": name},
                "creationTimestamp": (now() - SignedDuration::from_mins(9)).to_string()},
            "spec": {"nodeName": node, "containers": []},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn foreign() -> Option<Arc<PodDisruptionBudget>> {
        Some(Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "theirs", "namespace": "n"}})).unwrap(),
        ))
    }

    /// A pod, with its own PDB if `has`.
    fn guarded(pod: Pod, has: bool, foreign: Option<Arc<PodDisruptionBudget>>) -> PodPdbs {
        PodPdbs {
            own: own_pdb::of(&pod).filter(|_| has).map(Arc::new),
            pod: Arc::new(pod),
            foreign,
        }
    }

    /// Names of pods that get a PDB, names of those that lose theirs, and when to requeue.
    fn planned(
        instance: &VirtualMachineInstance,
        strategy: EvictionStrategy,
        pods: &[PodPdbs],
    ) -> (Vec<String>, Vec<String>, Option<Timestamp>) {
        let plan = plan(&ObservedPdbs {
            now: now(),
            instance: Arc::new(instance.clone()),
            strategy,
            pods: pods.to_vec(),
        });
        let create = plan.create.iter().filter_map(|pod| pod.metadata.name.clone());
        let delete = plan.delete.iter().filter_map(|pdb| pdb.metadata.name.clone());
        (create.collect(), delete.collect(), plan.wake)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Description, instance, strategy, change of its pod, whether the pod has a PDB, and whose PDBs are created
    /// and deleted.
    type Case = (
        &'static str,
        VirtualMachineInstance,
        EvictionStrategy,
        fn(&mut Value),
        bool,
        &'static [&'static str],
        &'static [&'static str],
    );

    fn alive(_: &mut Value) {}

    fn ended(pod: &mut Value) {
        pod["status"] = json!({"containerStatuses": [{
            "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0}},
        }]});
    }

    fn deleted(pod: &mut Value) {
        pod["metadata"]["deletionTimestamp"] = json!(now().to_string());
    }

    fn cases() -> Vec<Case> {
        let over = instance(json!({"phase": "Succeeded", "nodeName": "a"}));
        vec![
            (
                "it is missing",
                running(),
                EvictionStrategy::LiveMigrate,
                alive,
                false,
                &["p"],
                &[],
            ),
            (
                "it is there",
                running(),
                EvictionStrategy::LiveMigrate,
                alive,
                true,
                &[],
                &[],
            ),
            (
                "it may be shut down by now",
                running(),
                EvictionStrategy::None,
                alive,
                true,
                &[],
                &["p"],
            ),
            (
                "it may be shut down",
                running(),
                EvictionStrategy::None,
                alive,
                false,
                &[],
                &[],
            ),
            (
                "its guest has ended",
                running(),
                EvictionStrategy::LiveMigrate,
                ended,
                true,
                &[],
                &["p"],
            ),
            (
                "its instance has ended",
                over,
                EvictionStrategy::LiveMigrate,
                alive,
                true,
                &[],
                &["p"],
            ),
            (
                "it goes, and its budget with it",
                running(),
                EvictionStrategy::LiveMigrate,
                deleted,
                true,
                &[],
                &[],
            ),
            (
                "it goes without one",
                running(),
                EvictionStrategy::LiveMigrate,
                deleted,
                false,
                &[],
                &[],
            ),
        ]
    }

    #[test]
    fn each_protected_pod_has_a_separate_pdb() {
        for (what, instance, strategy, change, has, create, delete) in cases() {
            let pods = [guarded(pod("p", "a", change), has, None)];
            let (created, gone, _) = planned(&instance, strategy, &pods);
            assert_eq!((created, gone), (names(create), names(delete)), "{what}");
        }
    }

    #[test]
    fn pdb_owned_by_the_instance_is_deleted_with_the_pod() {
        // A PDB of an earlier version is not deleted with its pod.
        let mut old = guarded(pod("p", "a", deleted), true, None);
        let owned = old.own.as_mut().unwrap();
        Arc::make_mut(owned).metadata.owner_references = serde_json::from_value(json!([
            {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "u"},
        ]))
        .unwrap();
        assert_eq!(own_pdb::instance_of(owned), Some("web"));
        assert_eq!(planned(&running(), EvictionStrategy::LiveMigrate, &[old]).1, ["p"]);
    }

    #[test]
    fn pods_of_a_migration_are_protected_until_the_end() {
        let pods = [
            guarded(pod("source", "a", |_| {}), true, None),
            guarded(pod("target", "b", |_| {}), true, None),
        ];
        let (create, delete, _) = planned(&running(), EvictionStrategy::LiveMigrate, &pods);
        assert_eq!((create.len(), delete.len()), (0, 0));
        for (seconds, delete, wake) in [(4, vec![], Some(1)), (5, vec!["source"], None)] {
            let ended = now() - SignedDuration::from_secs(seconds);
            let moved = instance(json!({
                "phase": "Running", "nodeName": "b", "conditions": [{"type": "LiveMigratable", "status": "True"}],
                "migrationState": {"completed": true, "sourcePod": "source", "endTimestamp": ended.to_string()},
            }));
            let (_, gone, again) = planned(&moved, EvictionStrategy::LiveMigrate, &pods);
            let wake = wake.map(|seconds| now() + SignedDuration::from_secs(seconds));
            assert_eq!((gone, again), (names(&delete), wake), "{seconds} s after it has moved");
        }
    }

    #[test]
    fn foreign_pdb_is_reported_and_own_pdb_deleted() {
        let evaluate = |instance: &VirtualMachineInstance, foreign, refused| {
            let plan = plan(&ObservedPdbs {
                now: now(),
                instance: Arc::new(instance.clone()),
                strategy: EvictionStrategy::LiveMigrate,
                pods: vec![guarded(pod("p", "a", |_| {}), true, foreign)],
            });
            let conflict_shown = conflict(instance, plan.foreign.as_deref(), refused, now());
            (
                plan.delete.len(),
                is_news(instance, conflict_shown.as_ref()),
                conflict_shown,
            )
        };
        let (gone, news, conflict_shown) = evaluate(&running(), foreign(), None);
        assert!(gone == 1 && news);
        let conflict_shown = conflict_shown.unwrap();
        assert!(
            conflict_shown
                .message
                .as_ref()
                .unwrap()
                .contains("PodDisruptionBudget theirs")
        );
        let mut reported = running();
        reported.status.as_mut().unwrap().conditions.push(conflict_shown);
        assert!(!evaluate(&reported, foreign(), None).1);
        let (gone, news, conflict_shown) = evaluate(&reported, None, None);
        assert_eq!((gone, news, conflict_shown), (0, true, None));
        // Rejections by the API server are reported, too.
        let (_, news, conflict_shown) = evaluate(&running(), None, Some("exceeded quota"));
        assert!(news && conflict_shown.unwrap().message.unwrap().contains("(exceeded quota)"));
    }
}
