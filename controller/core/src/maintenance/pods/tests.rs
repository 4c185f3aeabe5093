use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn pod(name: &str, metadata: &Value, phase: &str) -> Arc<Pod> {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": metadata, "spec": {"nodeName": "n", "containers": []}, "status": {"phase": phase},
    }))
    .unwrap();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(format!("uid-{name}"));
    Arc::new(pod)
}

fn owned(kind: &str, controller: bool) -> Value {
    json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": controller}]})
}

#[test]
fn the_pods_that_leave_are_those_of_kubectl_drain() {
    let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "x"}});
    let mut daemon_mirror = owned("DaemonSet", true);
    daemon_mirror["annotations"] = mirror["annotations"].clone();
    for (metadata, phase, gone, expected) in [
        (json!({}), "Running", false, Verdict::Leaves),
        (owned("ReplicaSet", true), "Running", false, Verdict::Leaves),
        (owned("DaemonSet", true), "Running", false, Verdict::DaemonSet),
        (owned("DaemonSet", false), "Running", false, Verdict::Leaves),
        (owned("DaemonSet", true), "Running", true, Verdict::Leaves),
        (owned("DaemonSet", true), "Succeeded", false, Verdict::Leaves),
        (owned("DaemonSet", true), "Failed", false, Verdict::Leaves),
        (mirror.clone(), "Running", false, Verdict::Mirror),
        (mirror, "Succeeded", false, Verdict::Mirror),
        (daemon_mirror.clone(), "Running", false, Verdict::DaemonSet),
        (daemon_mirror, "Running", true, Verdict::Mirror),
        (json!({}), "Succeeded", false, Verdict::Leaves),
    ] {
        let pod = pod("p", &metadata, phase);
        assert_eq!(
            verdict(&pod, &|namespace, name| {
                assert_eq!((namespace, name), ("default", "o"));
                gone
            }),
            expected,
            "{metadata} {phase} {gone}"
        );
    }
}

fn attempt(result: Option<EvictionResult>, seconds_ago: i64) -> Attempt {
    Attempt {
        at: now() - SignedDuration::from_secs(seconds_ago),
        result,
        in_flight: false,
        unblocked: false,
    }
}

fn judged(pod: &Arc<Pod>, attempt: Option<&Attempt>, unreachable: bool, budgets: &[Arc<PodDisruptionBudget>]) -> Drain {
    let known = Known {
        daemon_set_is_gone: &|_, _| false,
        budgets,
    };
    let pods = [Arc::clone(pod)];
    drain(&pods, &known, &|_| attempt.cloned(), unreachable, Some(7), now())
}

#[test]
fn each_pod_reports_its_progress() {
    let running = || pod("p", &json!({}), "Running");
    let ends = |at: &str| pod("p", &json!({"deletionTimestamp": at}), "Running");
    let held = pod(
        "p",
        &json!({"deletionTimestamp": "2026-01-01T11:59:00Z", "finalizers": ["f"]}),
        "Running",
    );
    let let_go = pod(
        "p",
        &json!({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0, "finalizers": ["f"]}),
        "Running",
    );
    let refused = |result: fn(String) -> EvictionResult| Some(attempt(Some(result("no".into())), 2));
    let mut in_flight = attempt(Some(EvictionResult::Budget("no".into())), 60);
    in_flight.in_flight = true;
    let mut free = attempt(Some(EvictionResult::Budget("no".into())), 1);
    free.unblocked = true;
    let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let in_three = at("2026-01-01T12:00:03Z");
    for (pod, attempt, unreachable, reason, evicts, wake) in [
        (running(), None, false, Reason::Evicting, true, None),
        (running(), None, true, Reason::Evicting, true, None),
        (
            running(),
            refused(EvictionResult::Budget),
            false,
            Reason::BlockedByBudget,
            false,
            in_three,
        ),
        (
            running(),
            refused(EvictionResult::Deferred),
            false,
            Reason::EvictionDeferred,
            false,
            in_three,
        ),
        (
            running(),
            refused(EvictionResult::Failed),
            false,
            Reason::EvictionFailed,
            false,
            in_three,
        ),
        (
            running(),
            refused(EvictionResult::SeveralBudgets),
            false,
            Reason::SeveralBudgets,
            false,
            in_three,
        ),
        (
            running(),
            refused(EvictionResult::NamespaceTerminating),
            false,
            Reason::NamespaceTerminating,
            false,
            in_three,
        ),
        (running(), Some(in_flight), false, Reason::BlockedByBudget, false, None),
        (running(), Some(free), false, Reason::BlockedByBudget, true, None),
        (
            running(),
            Some(attempt(Some(EvictionResult::Budget("no".into())), 5)),
            false,
            Reason::BlockedByBudget,
            true,
            None,
        ),
        (
            running(),
            Some(attempt(Some(EvictionResult::Accepted), 29)),
            false,
            Reason::Evicting,
            false,
            at("2026-01-01T12:00:01Z"),
        ),
        (
            running(),
            Some(attempt(Some(EvictionResult::Accepted), 30)),
            false,
            Reason::Evicting,
            true,
            None,
        ),
        (
            ends("2026-01-01T12:00:10Z"),
            None,
            false,
            Reason::Terminating,
            false,
            at("2026-01-01T12:00:40Z"),
        ),
        (
            ends("2026-01-01T11:59:30Z"),
            None,
            false,
            Reason::TerminationOverdue,
            false,
            None,
        ),
        (
            ends("2026-01-01T12:00:10Z"),
            None,
            true,
            Reason::NodeUnreachable,
            false,
            None,
        ),
        (held, None, false, Reason::HeldByFinalizers, false, None),
        (let_go, None, true, Reason::HeldByFinalizers, false, None),
    ] {
        let drain = judged(&pod, attempt.as_ref(), unreachable, &[]);
        assert_eq!(drain.pending[0].reason, reason);
        assert_eq!(drain.evict.len(), usize::from(evicts), "{reason:?}");
        assert_eq!(drain.wake, wake, "{reason:?}");
        for target in &drain.evict {
            assert_eq!((target.uid.as_str(), target.grace_period_seconds), ("uid-p", Some(7)));
        }
    }
}

#[test]
fn a_blocked_pod_names_its_budget_and_its_numbers() {
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "blk", "namespace": "default"}, "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }))
    .unwrap();
    let result = EvictionResult::Budget("The disruption budget blk needs 1 healthy pods and has 1 currently".into());
    let pod = pod("p", &json!({}), "Running");
    let drain = judged(&pod, Some(&attempt(Some(result), 0)), false, &[Arc::new(budget)]);
    let pending = &drain.pending[0];
    assert_eq!(pending.blocker.as_ref().unwrap().name, "blk");
    assert_eq!(
        pending.error().unwrap(),
        "error when evicting pods/\"p\" -n \"default\": The disruption budget blk needs 1 healthy pods and has 1 currently"
    );
}

#[test]
fn reasons_are_distinct_and_in_their_order() {
    let names: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
    assert!(Reason::ALL.is_sorted());
}
