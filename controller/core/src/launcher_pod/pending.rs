//! Why a launcher pod does not start, with Kubernetes' own reason and message.
//!
//! ```text
//!  created ─▶ scheduler ─▶ kubelet admits ─▶ volumes, network ─▶ init containers ─▶ images, containers ─▶ runs
//!              │ no node       └ stopped, or      │ FailedMount, ...      │ fails            │ ImagePullBackOff, ...
//!              └ no scheduler    waits for a      └ only in the kubelet's events
//!                                device plugin
//! ```

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodCondition};

use crate::{instance::ending::ended, pod_state::created_at};

/// A pod that has no node and no report of a scheduler for this long has no scheduler. kube-scheduler reports within
/// a second even if no node fits.
const UNSCHEDULED_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// A pod that the kubelet of its node has not admitted for this long waits for something else than its turn: kubelets
/// admit a pod within a second, unless they are stopped or a device plugin does not respond.
const UNADMITTED_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// A pod whose volumes and network the kubelet has not prepared for this long is stuck. kubelets retry a failed mount
/// after 0.5 s, 1 s, 2 s, ..., so there are several events about it by then.
const UNPREPARED_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// Interval between lists of a stuck pod's events: no watch covers them.
const EVENTS_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// Reason of a pending pod: no scheduler handles the pod. Kubernetes has no reason for that.
pub const NOT_SCHEDULED: &str = "NotScheduled";
/// Reason of a pending pod: the kubelet has not admitted the pod. Kubernetes has no reason for that.
const NOT_ADMITTED: &str = "PodNotAdmitted";
/// Reason of a pending pod: the kubelet has not prepared the volumes and the network of the pod, and no event has the
/// cause.
const NOT_READY_TO_START: &str = "PodNotReadyToStart";
/// Condition of a pod: the kubelet has prepared the pod's volumes and network.
const READY_TO_START: &str = "PodReadyToStartContainers";
/// Reasons of a waiting container that starts normally.
const USUAL: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The obstacle that prevents a pod from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// CamelCase reason; Kubernetes' reason if it has one.
    pub reason: String,
    /// Kubernetes' message, or our own if it has none.
    pub message: String,
    /// Whether no node has been found for the pod; otherwise, the obstacle is on its node.
    pub unscheduled: bool,
}

/// State of a pod that is starting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartingPod {
    /// The obstacle that prevents the pod from running, if there is one.
    pub hindrance: Option<Hindrance>,
    /// When the pod has to be checked again although it has not changed.
    pub wake: Option<Timestamp>,
    /// Whether only the pod's events contain the cause: the newest warning among them is to be passed to
    /// [`StartingPod::explained`].
    pub wants_events: bool,
}

impl StartingPod {
    /// Returns the state with the newest warning among the pod's events, if there is one.
    #[must_use]
    pub fn explained(mut self, warning: Option<Hindrance>) -> Self {
        if self.wants_events
            && let Some(warning) = warning
        {
            self.hindrance = Some(warning);
        }
        self
    }
}

impl Hindrance {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
            unscheduled: false,
        }
    }

    fn of_scheduling(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            unscheduled: true,
            ..Self::new(reason, message)
        }
    }
}

/// Returns the state of a pod that is starting. A pod that has ended, is being deleted, or starts normally has no
/// obstacle.
pub fn pending(pod: &Pod, now: Timestamp) -> StartingPod {
    if ended(pod).is_some() || pod.metadata.deletion_timestamp.is_some() {
        return StartingPod::default();
    }
    let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
        return unscheduled(pod, now);
    };
    if let Some(hindrance) = containers(pod).find_map(failing) {
        return StartingPod {
            hindrance: Some(hindrance),
            ..StartingPod::default()
        };
    }
    if is_admitted(pod) {
        unprepared(pod, now)
    } else {
        unadmitted(pod, node, now)
    }
}

/// Returns the newest warning among the events of a pod that is on a node; its scheduler's earlier reports are
/// outdated.
pub fn newest_warning(events: &[Event]) -> Option<Hindrance> {
    let at = |event: &Event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let series = event
            .series
            .as_ref()
            .and_then(|series| series.last_observed_time.as_ref());
        let series = series.map(|time| time.0);
        last.max(series).max(event.event_time.as_ref().map(|time| time.0))
    };
    let is_warning = |event: &&Event| event.type_.as_deref() == Some("Warning");
    let of_its_node = |event: &&Event| {
        event
            .reason
            .as_deref()
            .is_some_and(|reason| reason != "FailedScheduling")
    };
    let newest = events
        .iter()
        .filter(is_warning)
        .filter(of_its_node)
        .max_by_key(|event| at(event))?;
    Some(Hindrance::new(
        newest.reason.clone().unwrap_or_default(),
        newest.message.clone().unwrap_or_default(),
    ))
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the state of a pod without a node.
fn unscheduled(pod: &Pod, now: Timestamp) -> StartingPod {
    if let Some(condition) = condition(pod, "PodScheduled").filter(|condition| condition.status == "False") {
        let reason = condition.reason.clone().unwrap_or_else(|| "Unschedulable".into());
        let message = condition.message.clone().unwrap_or_default();
        return StartingPod {
            hindrance: Some(Hindrance::of_scheduling(reason, message)),
            ..StartingPod::default()
        };
    }
    once_overdue(created_at(pod), UNSCHEDULED_AFTER, now, || {
        let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
        let message = format!(
            "no scheduler has processed the pod within {} s; the pod's schedulerName is {}",
            UNSCHEDULED_AFTER.as_secs(),
            scheduler.unwrap_or("default-scheduler")
        );
        StartingPod {
            hindrance: Some(Hindrance::of_scheduling(NOT_SCHEDULED, message)),
            ..StartingPod::default()
        }
    })
}

/// Returns whether the kubelet of a pod's node has reported anything about the pod.
fn is_admitted(pod: &Pod) -> bool {
    // Kubernetes defines startTime as the time at which the kubelet has acknowledged the pod.
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    started.is_some() || condition(pod, READY_TO_START).is_some() || containers(pod).next().is_some()
}

/// Returns the state of a pod on a node whose kubelet has not admitted the pod yet.
fn unadmitted(pod: &Pod, node: &str, now: Timestamp) -> StartingPod {
    once_overdue(bound_at(pod), UNADMITTED_AFTER, now, || {
        let message = format!(
            "the kubelet of node {node} has not admitted the pod within {} s; it is stopped, or a device plugin does \
             not respond",
            UNADMITTED_AFTER.as_secs()
        );
        StartingPod {
            hindrance: Some(Hindrance::new(NOT_ADMITTED, message)),
            ..StartingPod::default()
        }
    })
}

/// Returns the state of a pod that its kubelet has admitted, and whose volumes and network it may not have prepared yet.
fn unprepared(pod: &Pod, now: Timestamp) -> StartingPod {
    if condition(pod, READY_TO_START).is_none_or(|condition| condition.status != "False") {
        return StartingPod::default();
    }
    once_overdue(bound_at(pod), UNPREPARED_AFTER, now, || {
        let message = format!(
            "the kubelet has not prepared the pod's volumes and network within {} s",
            UNPREPARED_AFTER.as_secs()
        );
        StartingPod {
            hindrance: Some(Hindrance::new(NOT_READY_TO_START, message)),
            wake: now.checked_add(EVENTS_EVERY).ok(),
            wants_events: true,
        }
    })
}

/// Returns the state `late` once a pod has waited for this long since `since`; before that, when to check again.
fn once_overdue(
    since: Option<Timestamp>,
    wait: SignedDuration,
    now: Timestamp,
    late: impl FnOnce() -> StartingPod,
) -> StartingPod {
    match since.and_then(|since| since.checked_add(wait).ok()) {
        None => StartingPod::default(),
        Some(due) if now < due => StartingPod {
            wake: Some(due),
            ..StartingPod::default()
        },
        Some(_) => late(),
    }
}

/// Returns when the scheduler bound a pod to its node.
fn bound_at(pod: &Pod) -> Option<Timestamp> {
    let bound = condition(pod, "PodScheduled").and_then(|condition| condition.last_transition_time.as_ref());
    bound.map(|time| time.0).or(created_at(pod))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_deref());
    let main = status.and_then(|status| status.container_statuses.as_deref());
    init.into_iter().chain(main).flatten()
}

/// Returns why a container does not start, unless its start just takes time.
fn failing(container: &ContainerStatus) -> Option<Hindrance> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting
            .reason
            .clone()
            .filter(|reason| !USUAL.contains(&reason.as_str()))?;
        return Some(Hindrance::new(reason, waiting.message.clone().unwrap_or_default()));
    }
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    let reason = ended.reason.clone().unwrap_or_else(|| "Error".into());
    let detail = ended.message.as_deref().map(|text| format!(": {}", text.trim()));
    let message = format!(
        "container {} ended with exit code {}{}",
        container.name,
        ended.exit_code,
        detail.unwrap_or_default()
    );
    Some(Hindrance::new(reason, message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MADE: &str = "2026-01-01T00:00:00Z";

    fn pod(node: Option<&str>, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "p", "creationTimestamp": MADE},
            "spec": {"nodeName": node, "schedulerName": "mine", "containers": []}, "status": status,
        }))
        .unwrap()
    }

    fn containers(field: &str, name: &str, state: &Value) -> Value {
        json!({"phase": "Pending", field: [
            {"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]})
    }

    fn waiting(reason: &str) -> Value {
        json!({"waiting": {"reason": reason, "message": "text"}})
    }

    fn conditions(all: &[(&str, &str, Option<&str>)]) -> Value {
        let all: Vec<Value> = all
            .iter()
            .map(|(type_, status, reason)| {
                json!({"type": type_, "status": status, "reason": reason, "message": "text", "lastTransitionTime": MADE})
            })
            .collect();
        json!({"phase": "Pending", "conditions": all})
    }

    /// Name, node and status of a pod, and reason and text of its hindrance before and after ten seconds.
    type Case = (
        &'static str,
        Option<&'static str>,
        Value,
        Option<(&'static str, &'static str)>,
        Option<(&'static str, &'static str)>,
    );

    const ON_NODE: Option<&str> = Some("a");

    /// Pods that have no node.
    fn unbound_cases() -> Vec<Case> {
        vec![
            (
                "new",
                None,
                json!({}),
                None,
                Some(("NotScheduled", "schedulerName is mine")),
            ),
            (
                "no node fits",
                None,
                conditions(&[("PodScheduled", "False", Some("Unschedulable"))]),
                Some(("Unschedulable", "text")),
                Some(("Unschedulable", "text")),
            ),
            (
                "gated",
                None,
                conditions(&[("PodScheduled", "False", Some("SchedulingGated"))]),
                Some(("SchedulingGated", "text")),
                Some(("SchedulingGated", "text")),
            ),
        ]
    }

    /// Pods with a waiting or failed container.
    fn container_cases() -> Vec<Case> {
        let exited = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no route\n"}});
        vec![
            (
                "starting",
                ON_NODE,
                containers("containerStatuses", "compute", &waiting("ContainerCreating")),
                None,
                None,
            ),
            (
                "image",
                ON_NODE,
                containers("containerStatuses", "compute", &waiting("ImagePullBackOff")),
                Some(("ImagePullBackOff", "text")),
                Some(("ImagePullBackOff", "text")),
            ),
            (
                "sidecar's image",
                ON_NODE,
                containers("containerStatuses", "istio-proxy", &waiting("ErrImagePull")),
                Some(("ErrImagePull", "text")),
                Some(("ErrImagePull", "text")),
            ),
            (
                "init in a loop",
                ON_NODE,
                containers("initContainerStatuses", "init", &waiting("CrashLoopBackOff")),
                Some(("CrashLoopBackOff", "text")),
                Some(("CrashLoopBackOff", "text")),
            ),
            (
                "init failed",
                ON_NODE,
                containers("initContainerStatuses", "init", &exited),
                Some(("Error", "container init ended with exit code 3: no route")),
                Some(("Error", "container init ended with exit code 3: no route")),
            ),
            (
                "init done",
                ON_NODE,
                containers("initContainerStatuses", "init", &json!({"terminated": {"exitCode": 0}})),
                None,
                None,
            ),
        ]
    }

    /// Pods that their kubelets prepare.
    fn preparation_cases() -> Vec<Case> {
        let prepared = |status| {
            conditions(&[
                ("PodScheduled", "True", None),
                ("PodReadyToStartContainers", status, None),
            ])
        };
        vec![
            (
                "bound",
                ON_NODE,
                json!({}),
                None,
                Some(("PodNotAdmitted", "node a has not")),
            ),
            (
                "bound, with a condition",
                ON_NODE,
                conditions(&[("PodScheduled", "True", None)]),
                None,
                Some(("PodNotAdmitted", "a device plugin")),
            ),
            ("admitted", ON_NODE, json!({"startTime": MADE}), None, None),
            (
                "volume",
                ON_NODE,
                prepared("False"),
                None,
                Some(("PodNotReadyToStart", "volumes and network")),
            ),
            ("slow image", ON_NODE, prepared("True"), None, None),
        ]
    }

    #[test]
    fn hindrance_has_kubernetes_reason_and_text() {
        let groups = [unbound_cases(), container_cases(), preparation_cases()];
        for (name, node, status, early, late) in groups.into_iter().flatten() {
            let made: Timestamp = MADE.parse().unwrap();
            for (seconds, expected) in [(9, early), (10, late)] {
                let now = made + SignedDuration::from_secs(seconds);
                let pending = pending(&pod(node, &status), now);
                let found = pending.hindrance.as_ref();
                assert_eq!(
                    found.map(|found| found.reason.as_str()),
                    expected.map(|(reason, _)| reason),
                    "{name}"
                );
                if let (Some(found), Some((_, text))) = (found, expected) {
                    assert!(found.message.contains(text), "{name}: {}", found.message);
                    assert_eq!(found.unscheduled, node.is_none(), "{name}");
                }
                // The wake-up time covers changes that are caused by time alone.
                let changes = early != late && seconds < 10;
                assert_eq!(
                    pending.wake,
                    (changes || pending.wants_events).then(|| {
                        if changes {
                            made + SignedDuration::from_secs(10)
                        } else {
                            now + EVENTS_EVERY
                        }
                    }),
                    "{name}"
                );
                assert_eq!(pending.wants_events, name == "volume" && seconds >= 10, "{name}");
            }
        }
    }

    #[test]
    fn newest_warning_of_the_node_explains_a_stuck_pod() {
        let event = |type_: &str, reason: &str, last: &str| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "involvedObject": {}, "type": type_, "reason": reason, "message": reason,
                "lastTimestamp": last,
            }))
            .unwrap()
        };
        let events = [
            event("Warning", "FailedMount", "2026-01-01T00:00:05Z"),
            event("Warning", "FailedAttachVolume", "2026-01-01T00:00:02Z"),
            event("Normal", "Pulling", "2026-01-01T00:00:08Z"),
            event("Warning", "FailedScheduling", "2026-01-01T00:00:09Z"),
        ];
        let warning = newest_warning(&events);
        assert_eq!(warning.as_ref().map(|found| found.reason.as_str()), Some("FailedMount"));
        assert_eq!(newest_warning(&events[2..]), None);
        let status = conditions(&[("PodReadyToStartContainers", "False", None)]);
        let stuck = pending(&pod(Some("a"), &status), Timestamp::MAX);
        assert_eq!(stuck.clone().explained(None), stuck);
        assert_eq!(stuck.explained(warning.clone()).hindrance, warning);
        let starts = pending(&pod(Some("a"), &json!({"startTime": MADE})), Timestamp::MAX);
        assert_eq!(starts.explained(warning.clone()).hindrance, None);
        let unadmitted = pending(&pod(Some("a"), &json!({})), Timestamp::MAX);
        assert_eq!(unadmitted.clone().explained(warning), unadmitted);
    }

    #[test]
    fn pod_that_ends_has_no_hindrance() {
        let mut leaving = pod(None, &conditions(&[("PodScheduled", "False", None)]));
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        let failed = pod(
            Some("a"),
            &json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"}),
        );
        for pod in [leaving, failed] {
            assert_eq!(pending(&pod, Timestamp::MAX), StartingPod::default());
        }
    }
}
