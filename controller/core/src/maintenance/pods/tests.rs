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
        (json!({}), "Running", false, PodVerdict::Leaves),
        (owned("ReplicaSet", true), "Running", false, PodVerdict::Leaves),
        (owned("DaemonSet", true), "Running", false, PodVerdict::DaemonSet),
        (owned("DaemonSet", false), "Running", false, PodVerdict::Leaves),
        (owned("DaemonSet", true), "Running", true, PodVerdict::Leaves),
        (owned("DaemonSet", true), "Succeeded", false, PodVerdict::Leaves),
        (owned("DaemonSet", true), "Failed", false, PodVerdict::Leaves),
        (mirror.clone(), "Running", false, PodVerdict::Mirror),
        (mirror, "Succeeded", false, PodVerdict::Mirror),
        (daemon_mirror.clone(), "Running", false, PodVerdict::DaemonSet),
        (daemon_mirror, "Running", true, PodVerdict::Mirror),
        (json!({}), "Succeeded", false, PodVerdict::Leaves),
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

fn judged(pod: &Arc<Pod>, attempt: Option<&Attempt>, unreachable: bool, pdbs: &[Arc<PodDisruptionBudget>]) -> PodDrain {
    let known = PodContext {
        daemon_set_is_gone: &|_, _| false,
        pdbs,
    };
    let pods = [Arc::clone(pod)];
    drain(&pods, &known, &|_| attempt.cloned(), unreachable, Some(7), now())
}

/// A pod, the last attempt to evict it, whether its node is unreachable; the expected reason, whether the pod is
/// evicted, and the expected wake-up time.
type Case = (Arc<Pod>, Option<Attempt>, bool, StayReason, bool, Option<Timestamp>);

fn running() -> Arc<Pod> {
    pod("p", &json!({}), "Running")
}

fn at(text: &str) -> Option<Timestamp> {
    Some(text.parse().unwrap())
}

/// Pods that are evicted, or were.
fn eviction_cases() -> Vec<Case> {
    let tried = |result, seconds_ago| Some(attempt(Some(result), seconds_ago));
    let pdb = || EvictionResult::BlockedByPdb("no".into());
    let in_flight = Attempt {
        in_flight: true,
        ..attempt(Some(pdb()), 60)
    };
    let free = Attempt {
        unblocked: true,
        ..attempt(Some(pdb()), 1)
    };
    let accepted = EvictionResult::Accepted;
    vec![
        (running(), None, false, StayReason::Evicting, true, None),
        (running(), None, true, StayReason::Evicting, true, None),
        (running(), Some(in_flight), false, StayReason::BlockedByPdb, false, None),
        (running(), Some(free), false, StayReason::BlockedByPdb, true, None),
        (running(), tried(pdb(), 5), false, StayReason::BlockedByPdb, true, None),
        (
            running(),
            tried(accepted.clone(), 29),
            false,
            StayReason::Evicting,
            false,
            at("2026-01-01T12:00:01Z"),
        ),
        (running(), tried(accepted, 30), false, StayReason::Evicting, true, None),
    ]
}

/// Pods whose eviction was refused two seconds ago.
fn refusal_cases() -> Vec<Case> {
    let refused = |result: fn(String) -> EvictionResult, reason| {
        let attempt = attempt(Some(result("no".into())), 2);
        let wake = at("2026-01-01T12:00:03Z");
        (running(), Some(attempt), false, reason, false, wake)
    };
    vec![
        refused(EvictionResult::BlockedByPdb, StayReason::BlockedByPdb),
        refused(EvictionResult::Deferred, StayReason::EvictionDeferred),
        refused(EvictionResult::Failed, StayReason::EvictionFailed),
        refused(EvictionResult::SeveralPdbs, StayReason::SeveralPdbs),
        refused(EvictionResult::NamespaceTerminating, StayReason::NamespaceTerminating),
    ]
}

/// Pods that are being deleted.
fn termination_cases() -> Vec<Case> {
    let deleted = |metadata: Value, unreachable, reason, wake| {
        let pod = pod("p", &metadata, "Running");
        (pod, None, unreachable, reason, false, wake)
    };
    let ends = |at: &str| json!({"deletionTimestamp": at});
    let held = json!({"deletionTimestamp": "2026-01-01T11:59:00Z", "finalizers": ["f"]});
    let let_go = json!({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0, "finalizers": ["f"]});
    vec![
        deleted(
            ends("2026-01-01T12:00:10Z"),
            false,
            StayReason::Terminating,
            at("2026-01-01T12:00:40Z"),
        ),
        deleted(
            ends("2026-01-01T11:59:30Z"),
            false,
            StayReason::TerminationOverdue,
            None,
        ),
        deleted(ends("2026-01-01T12:00:10Z"), true, StayReason::NodeUnreachable, None),
        deleted(held, false, StayReason::HeldByFinalizers, None),
        deleted(let_go, true, StayReason::HeldByFinalizers, None),
    ]
}

#[test]
fn each_pod_reports_the_eviction_progress() {
    let groups = [eviction_cases(), refusal_cases(), termination_cases()];
    for (pod, attempt, unreachable, reason, evicts, wake) in groups.into_iter().flatten() {
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
fn blocked_pod_reports_the_pdb_with_pod_counts() {
    let pdb: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "blk", "namespace": "default"}, "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }))
    .unwrap();
    let result =
        EvictionResult::BlockedByPdb("The disruption budget blk needs 1 healthy pods and has 1 currently".into());
    let pod = pod("p", &json!({}), "Running");
    let drain = judged(&pod, Some(&attempt(Some(result), 0)), false, &[Arc::new(pdb)]);
    let pending = &drain.pending[0];
    assert_eq!(pending.blocker.as_ref().unwrap().name, "blk");
    assert_eq!(
        pending.error().unwrap(),
        "error when evicting pods/\"p\" -n \"default\": The disruption budget blk needs 1 healthy pods and has 1 currently"
    );
}

#[test]
fn stay_reasons_are_distinct_and_ordered() {
    let names: std::collections::BTreeSet<_> = StayReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(names.len(), StayReason::ALL.len());
    assert!(StayReason::ALL.is_sorted());
}
