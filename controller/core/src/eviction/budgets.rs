//! Which budgets an instance's pods have, and which they should have.

use std::sync::Arc;

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{Condition, VirtualMachineInstance, names::conditions::EVICTION_BUDGET_CONFLICT},
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};

use super::{GRACE, budget::is_protected, grace_end, has_left, is_finished, made};
use crate::{
    conditions::Status,
    vm_conditions::{condition, find},
};

/// What is known of an instance's pods and budgets.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The time.
    pub now: Timestamp,
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// What an eviction of it does.
    pub strategy: EvictionStrategy,
    /// Its pods, each with the budget of somebody else that selects it.
    pub pods: &'a [(Arc<Pod>, Option<Arc<PodDisruptionBudget>>)],
    /// The budgets of ours that belong to it.
    pub budgets: &'a [Arc<PodDisruptionBudget>],
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Names of pods whose budget is missing.
    pub create: Vec<String>,
    /// Names of budgets that protect nothing any more.
    pub delete: Vec<String>,
    /// The condition that says that a budget of somebody else is in the way; `None` if none is.
    pub conflict: Option<Condition>,
    /// Whether the condition has changed.
    pub conflict_is_news: bool,
    /// When to look again though nothing has changed.
    pub wake: Option<Timestamp>,
}

/// What is to be done about the budgets of an instance.
pub fn plan(observed: &Observed<'_>) -> Plan {
    let Observed {
        now,
        instance,
        strategy,
        pods,
        budgets,
    } = *observed;
    let mut plan = Plan::default();
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    let mut conflicts = Vec::new();
    let mut wanted = Vec::new();
    for (pod, foreign) in pods {
        if has_left(instance, pod) || !is_protected(instance, strategy, pod, now) {
            continue;
        }
        match foreign {
            Some(foreign) => conflicts.push(foreign.metadata.name.clone().unwrap_or_default()),
            None => wanted.push(name(pod)),
        }
        // Whether it can be migrated may be known by then, or counts as if it could not be.
        let end = grace_end(made(pod)).filter(|end| now < *end);
        plan.wake = plan.wake.into_iter().chain(end).min();
    }
    for budget in budgets {
        let of = budget.metadata.name.clone().unwrap_or_default();
        if wanted.contains(&of) {
            continue;
        }
        // It is made before its pod, which may not be shown yet.
        let is_there = pods.iter().any(|(pod, _)| name(pod) == of);
        let awaited = made_at(budget)
            .and_then(|at| at.checked_add(GRACE).ok())
            .filter(|until| now < *until);
        match awaited {
            Some(until) if !is_there && !is_finished(instance) => {
                plan.wake = plan.wake.into_iter().chain([until]).min();
            }
            _ => plan.delete.push(of),
        }
    }
    let exists = |name: &String| budgets.iter().any(|budget| budget.metadata.name.as_ref() == Some(name));
    plan.create = wanted.into_iter().filter(|name| !exists(name)).collect();
    let before = instance
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    plan.conflict = conflicts.first().map(|budget| {
        condition(
            before,
            EVICTION_BUDGET_CONFLICT,
            Status::True,
            "AnotherBudgetSelectsThePod",
            format!(
                "PodDisruptionBudget {budget} selects its pod; two budgets for one pod make Kubernetes answer evictions with an \
                 error, so none is made for it, and only the webhook protects it"
            ),
            now,
        )
    });
    plan.conflict_is_news = find(before, EVICTION_BUDGET_CONFLICT) != plan.conflict.as_ref();
    plan
}

fn made_at(budget: &PodDisruptionBudget) -> Option<Timestamp> {
    budget.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;

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

    fn pod(name: &str, node: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "n", "labels": {"drydock.dev/launcher": name},
                "creationTimestamp": (now() - SignedDuration::from_mins(9)).to_string()},
            "spec": {"nodeName": node, "containers": []},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn budget(name: &str, age: i64) -> Arc<PodDisruptionBudget> {
        let budget = json!({"metadata": {"name": name, "namespace": "n",
            "creationTimestamp": (now() - SignedDuration::from_secs(age)).to_string()}});
        Arc::new(serde_json::from_value(budget).unwrap())
    }

    fn planned(
        instance: &VirtualMachineInstance,
        strategy: EvictionStrategy,
        pods: &[(Arc<Pod>, Option<Arc<PodDisruptionBudget>>)],
        budgets: &[Arc<PodDisruptionBudget>],
    ) -> Plan {
        plan(&Observed {
            now: now(),
            instance,
            strategy,
            pods,
            budgets,
        })
    }

    #[test]
    fn each_protected_pod_has_its_budget_and_no_other_has_one() {
        let here = || (pod("p", "a"), None);
        for (strategy, budgets, create, delete) in [
            (EvictionStrategy::LiveMigrate, vec![], vec!["p"], vec![]),
            (EvictionStrategy::LiveMigrate, vec![budget("p", 300)], vec![], vec![]),
            (
                EvictionStrategy::LiveMigrate,
                vec![budget("gone", 300)],
                vec!["p"],
                vec!["gone"],
            ),
            (
                EvictionStrategy::LiveMigrate,
                vec![budget("coming", 3)],
                vec!["p"],
                vec![],
            ),
            (EvictionStrategy::None, vec![budget("p", 300)], vec![], vec!["p"]),
            (EvictionStrategy::None, vec![], vec![], vec![]),
        ] {
            let plan = planned(&running(), strategy, &[here()], &budgets);
            assert_eq!(
                (plan.create, plan.delete),
                (
                    create.into_iter().map(str::to_owned).collect(),
                    delete.into_iter().map(str::to_owned).collect()
                ),
                "{strategy:?}"
            );
        }
        let over = instance(json!({"phase": "Succeeded", "nodeName": "a"}));
        let plan = planned(
            &over,
            EvictionStrategy::LiveMigrate,
            &[here()],
            &[budget("p", 300), budget("coming", 3)],
        );
        assert_eq!(plan.delete, ["p", "coming"]);
    }

    #[test]
    fn both_pods_of_a_migration_are_protected_until_the_guest_has_moved() {
        let pods = [(pod("source", "a"), None), (pod("target", "b"), None)];
        let budgets = [budget("source", 300), budget("target", 300)];
        let plan = planned(&running(), EvictionStrategy::LiveMigrate, &pods, &budgets);
        assert_eq!((plan.create.len(), plan.delete.len()), (0, 0));
        let moved = instance(json!({
            "phase": "Running", "nodeName": "b", "conditions": [{"type": "LiveMigratable", "status": "True"}],
            "migrationState": {"completed": true, "sourcePod": "source"},
        }));
        let plan = planned(&moved, EvictionStrategy::LiveMigrate, &pods, &budgets);
        assert_eq!(plan.delete, ["source"]);
    }

    #[test]
    fn somebody_elses_budget_is_said_and_ours_gives_way() {
        let pods = [(pod("p", "a"), Some(budget("theirs", 5)))];
        let plan = planned(&running(), EvictionStrategy::LiveMigrate, &pods, &[budget("p", 300)]);
        assert_eq!(plan.delete, ["p"]);
        assert!(plan.conflict_is_news);
        let said = plan.conflict.unwrap();
        assert!(said.message.as_ref().unwrap().contains("PodDisruptionBudget theirs"));
        let mut told = running();
        told.status.as_mut().unwrap().conditions.push(said);
        let again = planned(&told, EvictionStrategy::LiveMigrate, &pods, &[]);
        assert!(!again.conflict_is_news && again.create.is_empty());
        let over = planned(&told, EvictionStrategy::LiveMigrate, &[(pod("p", "a"), None)], &[]);
        assert!(over.conflict_is_news && over.conflict.is_none());
        assert_eq!(over.create, ["p"]);
    }
}
