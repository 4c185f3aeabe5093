//! The end of a launcher pod, and its consequences.
//!
//! The kubelet reports that a container has terminated only once it has, so that is proof. A pod's phase alone is
//! not: other components write it for pods on unreachable nodes.
//!
//! An end that the cluster caused is not the guest's own, however clean it was. In all these cases the launcher was
//! requested to end, pressed the guest's power button or destroyed the guest, and reports that
//! ([`Ending::requested`]):
//!
//! | way | launcher | what the pod shows |
//! |---|---|---|
//! | eviction, preemption, NoExecute taint | requested | condition `DisruptionTarget`, deletion |
//! | deletion, `kubectl drain --disable-eviction` | requested | deletion |
//! | node shutdown, kubelet eviction, rejection after a restart of the kubelet | requested | `status.reason` |
//! | the guest's own shutdown, even if the pod is requested to end then | not requested | – |
//!
//! The pod's status decides only if the launcher does not or could not report whether its end was requested.
//!
//! A pod that is being deleted is gone a moment after its end, perhaps while no controller leads. Then the launcher's
//! report is in the instance's status: the agent of the node, which watches its pods all the time, has copied it.

use drydock_api::{
    kubevirt::Phase,
    launcher::{CONTAINER, Ending, GuestOutcome},
};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

/// Reasons for guests that the cluster has ended.
pub use drydock_api::kubevirt::names::reasons::{EVICTED, EVICTED_BY_KUBELET};

/// The kubelets' reason on pods that they evict because of resources.
const KUBELETS_REASON: &str = "Evicted";

/// Reason of the condition `DisruptionTarget` of a pod that kube-controller-manager's pod garbage collector has set
/// to failed and deleted because its Node object is gone (`PodReasonDeletionByPodGC` of Kubernetes' API).
const POD_GC: &str = "DeletionByPodGC";

/// The end of a guest in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedGuest {
    /// The launcher's report, if it could write one.
    pub outcome: Option<GuestOutcome>,
    /// Human-readable message.
    pub message: String,
    /// Whether the cluster has ended the guest: its pod was evicted, preempted or deleted, or its node was shut down.
    pub evicted: bool,
    /// Whether the kubelet evicted the pod, because of its resource usage or a shortage on its node.
    pub by_kubelet: bool,
}

impl EndedGuest {
    /// Returns the virtual machine's final phase; `None` if its guest continued on another node, or if a launcher of
    /// a later version has reported an outcome that only that version's controller understands.
    pub fn phase(&self) -> Option<Phase> {
        match self.outcome {
            Some(GuestOutcome::Migrated | GuestOutcome::Unknown) => None,
            Some(GuestOutcome::Shutdown) => Some(Phase::Succeeded),
            Some(GuestOutcome::Crashed | GuestOutcome::Destroyed | GuestOutcome::Failed | GuestOutcome::NotStarted)
            | None => Some(Phase::Failed),
        }
    }

    /// Returns the reason for the final phase.
    pub fn reason(&self) -> &'static str {
        match (self.evicted, self.outcome) {
            (true, _) if self.by_kubelet => EVICTED_BY_KUBELET,
            (true, _) => EVICTED,
            (false, Some(outcome)) => match outcome {
                GuestOutcome::Shutdown => "GuestShutdown",
                GuestOutcome::Crashed => "GuestCrashed",
                GuestOutcome::Destroyed => "GuestDestroyed",
                GuestOutcome::Migrated => "GuestMigrated",
                GuestOutcome::Failed => "LauncherFailed",
                GuestOutcome::NotStarted => "GuestNotStarted",
                GuestOutcome::Unknown => "Unknown",
            },
            (false, None) => "LauncherLost",
        }
    }
}

/// Returns how the guest of a pod ended; `None` while its container may still run.
pub fn ended(pod: &Pod) -> Option<EndedGuest> {
    let status = pod.status.as_ref();
    let container = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|containers| containers.iter().find(|container| container.name == CONTAINER));
    let terminated = container
        .and_then(|container| container.state.as_ref())
        .and_then(|state| state.terminated.as_ref());
    let disrupted = is_disrupted(pod);
    let kubelet = kubelets_message(pod);
    let by_kubelet = status.and_then(|status| status.reason.as_deref()) == Some(KUBELETS_REASON);
    if let Some(terminated) = terminated {
        let mut ended = reported(terminated, disrupted, had_to_go(pod));
        ended.by_kubelet = by_kubelet && ended.evicted;
        // The kubelet's message states why it evicted the pod, for example because memory or disk ran out.
        if ended.evicted && !kubelet.is_empty() {
            let parts = [kubelet.trim_end_matches('.'), &ended.message];
            ended.message = parts.join("; ").trim_end_matches("; ").into();
        }
        return Some(ended);
    }
    // A pod that its kubelet rejected, or that was never bound, has no container that could run.
    let never_ran = container.is_none_or(|container| {
        let waiting = container.state.as_ref().is_some_and(|state| state.waiting.is_some());
        waiting && container.container_id.is_none() && container.started != Some(true)
    });
    let phase = status.and_then(|status| status.phase.as_deref());
    // The pod garbage collector wrote this phase, not the kubelet: the container status may be outdated.
    let by_pod_gc = status
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.reason.as_deref() == Some(POD_GC))
        });
    let refused = matches!(phase, Some("Failed" | "Succeeded")) && never_ran && !by_pod_gc;
    refused.then(|| EndedGuest {
        outcome: Some(GuestOutcome::NotStarted),
        message: if kubelet.is_empty() {
            "the guest's pod ended before its container started".into()
        } else {
            kubelet
        },
        evicted: disrupted,
        by_kubelet: by_kubelet && disrupted,
    })
}

/// Returns the kubelet's message if it rejected a pod that was bound to its node, before any container existed;
/// `None` otherwise, or if the pod was evicted or deleted. Kubelets give a rejected pod the phase `Failed`, a reason
/// and no container (`rejectPod` in `pkg/kubelet/kubelet.go` of Kubernetes).
pub fn rejection(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let has_containers = status.container_statuses.as_ref().is_some_and(|all| !all.is_empty());
    let rejected = status.phase.as_deref() == Some("Failed")
        && status.reason.as_ref().is_some_and(|reason| !reason.is_empty())
        && !has_containers
        && !is_disrupted(pod)
        && pod.metadata.deletion_timestamp.is_none();
    rejected.then(|| kubelets_message(pod))
}

/// Returns the reason and the message in the status of a pod, empty if there are none.
fn kubelets_message(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref());
    let message = status.and_then(|status| status.message.as_deref());
    let parts: Vec<_> = [reason, message].into_iter().flatten().map(str::trim).collect();
    parts.join(": ")
}

/// Returns whether the pod has a condition that a disruption ends it.
fn is_disrupted(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
    })
}

/// Returns whether an external cause ended the pod: it was disrupted or deleted, or its kubelet ended it, which then
/// sets a reason (`Evicted`, `Preempting`, `Terminated` or `NodeShutdown`, `NodeAffinity` and other rejections).
fn had_to_go(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    is_disrupted(pod) || pod.metadata.deletion_timestamp.is_some() || reason.is_some_and(|reason| !reason.is_empty())
}

/// Returns the end that a terminated container reports. `disrupted` and `had_to_go` describe its pod.
fn reported(terminated: &ContainerStateTerminated, disrupted: bool, had_to_go: bool) -> EndedGuest {
    let text = terminated.message.as_deref().unwrap_or_default();
    if let Ok(Ending {
        outcome,
        message,
        requested,
    }) = serde_json::from_str(text.trim())
    {
        let evicted = match (requested, outcome) {
            (Some(requested), GuestOutcome::Shutdown) => requested,
            (Some(requested), _) => requested || disrupted,
            (None, _) => had_to_go,
        };
        return EndedGuest {
            outcome: Some(outcome),
            message,
            evicted,
            by_kubelet: false,
        };
    }
    let reason = terminated.reason.as_deref().unwrap_or("no reason");
    let code = terminated.exit_code;
    let detail: String = text.chars().take(200).collect();
    EndedGuest {
        outcome: None,
        message: format!("the launcher ended without a report on its guest ({reason}, exit code {code}) {detail}")
            .trim_end()
            .into(),
        evicted: had_to_go,
        by_kubelet: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
    }

    fn terminated(message: &str) -> Pod {
        pod(&json!({"phase": "Failed", "containerStatuses": [{
            "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": message}},
        }]}))
    }

    #[test]
    fn termination_message_of_launcher_decides() {
        for (outcome, phase, reason) in [
            ("Shutdown", Some(Phase::Succeeded), "GuestShutdown"),
            ("Crashed", Some(Phase::Failed), "GuestCrashed"),
            ("Destroyed", Some(Phase::Failed), "GuestDestroyed"),
            ("Migrated", None, "GuestMigrated"),
            ("Failed", Some(Phase::Failed), "LauncherFailed"),
            ("NotStarted", Some(Phase::Failed), "GuestNotStarted"),
            // From a later version, whose controller knows how to handle it.
            ("Hibernated", None, "Unknown"),
        ] {
            let message = json!({"outcome": outcome, "message": "m"}).to_string();
            let ended = ended(&terminated(&message)).unwrap();
            assert_eq!(
                (ended.phase(), ended.reason(), ended.message.as_str()),
                (phase, reason, "m")
            );
        }
    }

    #[test]
    fn launcher_without_valid_termination_message_is_lost() {
        for message in ["", "{}", "{\"outcome\":1,\"message\":\"\"}", "Segmentation fault"] {
            let ended = ended(&terminated(message)).unwrap();
            assert_eq!((ended.phase(), ended.reason()), (Some(Phase::Failed), "LauncherLost"));
            assert!(ended.message.contains("exit code 1"), "{}", ended.message);
        }
    }

    #[test]
    fn a_phase_alone_proves_nothing_about_a_container_that_ran() {
        let running = json!({"name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "c", "started": true, "state": {"running": {}}});
        for phase in ["Running", "Failed", "Succeeded", "Unknown"] {
            let pod = pod(&json!({"phase": phase, "containerStatuses": [running]}));
            assert_eq!(ended(&pod), None, "{phase}");
        }
        assert_eq!(ended(&pod(&json!({"phase": "Pending"}))), None);
    }

    #[test]
    fn pod_refused_by_the_kubelet_never_ran() {
        let refused = pod(&json!({"phase": "Failed", "reason": "OutOfmemory", "message": "Pod was rejected"}));
        let ended = ended(&refused).unwrap();
        assert_eq!(ended.outcome, Some(GuestOutcome::NotStarted));
        assert_eq!(ended.message, "OutOfmemory: Pod was rejected");
    }

    #[test]
    fn pod_that_pod_gc_marked_as_failed_has_not_ended() {
        let waiting = json!({"name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "started": false, "state": {"waiting": {"reason": "ContainerCreating"}}});
        for containers in [json!([]), json!([waiting])] {
            let mut status = json!({"phase": "Failed", "containerStatuses": containers});
            assert!(ended(&pod(&status)).is_some(), "its kubelet reports it");
            status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]);
            assert_eq!(ended(&pod(&status)), None, "{status}");
        }
    }

    #[test]
    fn end_of_each_way_is_the_clusters_or_the_guests() {
        let disruption =
            |reason: &str| json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]});
        let ways = [
            ("eviction", disruption("EvictionByEvictionAPI"), true),
            ("taint", disruption("DeletionByTaintManager"), true),
            ("preemption", disruption("PreemptionByScheduler"), true),
            ("deletion", json!({}), true),
            ("node shutdown", json!({"reason": "Terminated"}), false),
            ("kubelet eviction", json!({"reason": "Evicted"}), false),
            ("critical pod", json!({"reason": "Preempting"}), false),
            ("rejection", json!({"reason": "NodeAffinity"}), false),
        ];
        for (way, status, deleted) in &ways {
            // The launcher's `requested`, its outcome, and whether the cluster ended the guest.
            for (requested, outcome, evicted) in [
                (Some(true), Some("Shutdown"), true),
                (Some(false), Some("Shutdown"), false),
                (None, Some("Shutdown"), true),
                (Some(true), Some("Destroyed"), true),
                (None, Some("Destroyed"), true),
                (None, None, true),
            ] {
                let message = outcome.map_or_else(String::new, |outcome| {
                    let requested = requested
                        .map(|requested| json!({"requested": requested}))
                        .unwrap_or(json!({}));
                    let mut ending = json!({"outcome": outcome, "message": ""});
                    ending
                        .as_object_mut()
                        .unwrap()
                        .extend(requested.as_object().unwrap().clone());
                    ending.to_string()
                });
                let mut pod = serde_json::to_value(terminated(&message)).unwrap();
                let shown = pod["status"].as_object_mut().unwrap();
                shown.extend(status.as_object().unwrap().clone());
                if *deleted {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
                let ended = ended(&serde_json::from_value(pod).unwrap()).unwrap();
                assert_eq!(ended.evicted, evicted, "{way}, {requested:?}, {outcome:?}");
                assert_eq!([EVICTED, EVICTED_BY_KUBELET].contains(&ended.reason()), evicted);
            }
        }
        let own = json!({"outcome": "Shutdown", "message": ""}).to_string();
        assert!(
            !ended(&terminated(&own)).unwrap().evicted,
            "no reason points to the cluster"
        );
    }

    #[test]
    fn evicted_pod_has_the_reason_evicted() {
        let mut pod = terminated(&json!({"outcome": "Shutdown", "message": ""}).to_string());
        pod.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
            {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
        ]))
        .unwrap();
        let ended = ended(&pod).unwrap();
        assert_eq!((ended.phase(), ended.reason()), (Some(Phase::Succeeded), EVICTED));
    }

    #[test]
    fn the_kubelets_reason_for_an_eviction_is_reported() {
        let exceeded = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi";
        let why = format!("{exceeded}. ");
        for (given, expected) in [
            ("stopped", format!("Evicted: {exceeded}; stopped")),
            ("", format!("Evicted: {exceeded}")),
        ] {
            let mut pod = terminated(&json!({"outcome": "Shutdown", "message": given}).to_string());
            let status = pod.status.as_mut().unwrap();
            (status.reason, status.message) = (Some("Evicted".into()), Some(why.clone()));
            status.conditions = serde_json::from_value(json!([
                {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"},
            ]))
            .unwrap();
            let ended = ended(&pod).unwrap();
            assert_eq!((ended.reason(), ended.message), (EVICTED_BY_KUBELET, expected));
        }
    }
}
