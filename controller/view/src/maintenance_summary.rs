//! The summary of a NodeMaintenance, with its progress and the remaining pods.

use drydock_api::{
    hypervisor::DrainStatus,
    kubevirt::names::VIRT_LAUNCHER,
    maintenance::{Group, NodeMaintenance, NodeMaintenanceStatus, PLURAL, PendingPod},
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::{
    nodes::counts,
    plan::held_by_budget,
    text::{beside, seconds},
};

/// Column at which messages begin.
const MESSAGE: usize = 14;
/// Maximum number of pods that one sentence names.
const NAMED: usize = 3;

/// The summary of a maintenance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceReport {
    /// Node in maintenance.
    pub node: String,
    /// Reference to the object, in the format of kubectl.
    pub object: String,
    /// Phase of the maintenance: `Running`, `Succeeded` or `Failed`; `Pending` if none is reported yet, `Ending` if the
    /// object is being deleted.
    pub phase: String,
    /// Human-readable reason of the maintenance.
    pub reason: Option<String>,
    /// Start time of the maintenance, or its creation time.
    pub since: Option<Timestamp>,
    /// Time at which Drydock aborts the maintenance and gives the node back if it is not empty by then.
    pub gives_up_at: Option<Timestamp>,
    /// Percentage of the pods that have left.
    pub drained_percent: Option<i64>,
    /// Estimated time at which the last pod will have left.
    pub end: Option<Timestamp>,
    /// Number of virtual machines that are still on the node, and their states.
    pub guests: Option<String>,
    /// Other pods that are still on the node, with the reasons.
    pub pods: Vec<PodLeft>,
    /// Last error of the maintenance.
    pub error: Option<String>,
}

/// A pod that has not left its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLeft {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Human-readable reason why the pod has not left.
    pub message: String,
}

impl PodLeft {
    fn of(pod: &PendingPod) -> Self {
        let budget = pod.blocked_by.as_ref();
        let budget = budget.map(|budget| held_by_budget(&budget.name, budget.current_healthy, budget.desired_healthy));
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            message: budget.unwrap_or_else(|| pod.reason.clone()),
        }
    }
}

/// Returns the remaining pods without guests.
fn others(status: &NodeMaintenanceStatus) -> Vec<PodLeft> {
    let launcher = format!("{VIRT_LAUNCHER}-");
    let pods = status.pods.iter().filter(|pod| !pod.name.starts_with(&launcher));
    pods.map(PodLeft::of).collect()
}

/// Returns one sentence about the remaining pods without guests. Returns `None` if there are none.
pub fn pods_left(status: &NodeMaintenanceStatus) -> Option<String> {
    let pods = others(status);
    if pods.is_empty() {
        return None;
    }
    let named = pods.iter().take(NAMED);
    let mut parts: Vec<String> = named
        .map(|pod| format!("{}/{}: {}", pod.namespace, pod.name, pod.message))
        .collect();
    if let Some(more) = pods.len().checked_sub(NAMED).filter(|more| *more > 0) {
        parts.push(format!("and {more} more"));
    }
    Some(parts.join("; "))
}

/// Returns the summary of a maintenance. `timeout` is the time after which Drydock aborts it, `drain` is the report
/// about the virtual machines on its node.
pub fn report(
    group: Group,
    object: &NodeMaintenance,
    timeout: Option<SignedDuration>,
    drain: Option<&DrainStatus>,
) -> MaintenanceReport {
    let status = object.status.clone().unwrap_or_default();
    let created = object.metadata.creation_timestamp.as_ref();
    let since = status.start_time.as_ref().or(created).map(|time| time.0);
    let phase = match (&object.metadata.deletion_timestamp, status.phase.clone()) {
        (Some(_), _) => "Ending".into(),
        (None, phase) => phase.unwrap_or_else(|| "Pending".into()),
    };
    // A node that was empty once stays in maintenance without a deadline.
    let has_deadline = phase == "Running" && status.completion_time.is_none();
    let deadline = since
        .zip(timeout)
        .and_then(|(since, timeout)| since.checked_add(timeout).ok());
    MaintenanceReport {
        node: object.spec.node_name.clone(),
        object: format!(
            "{PLURAL}.{}/{}",
            group.as_str(),
            object.metadata.name.as_deref().unwrap_or_default()
        ),
        phase,
        reason: object.spec.reason.clone(),
        since,
        gives_up_at: deadline.filter(|_| has_deadline),
        drained_percent: status.drain_progress,
        end: status.estimated_end.as_ref().map(|end| end.0),
        guests: drain
            .filter(|drain| drain.left > 0)
            .map(|drain| format!("{} of {} are left: {}", drain.left, drain.total, counts(drain))),
        pods: others(&status),
        error: status.last_error.filter(|error| !error.is_empty()),
    }
}

impl MaintenanceReport {
    /// Returns the summary as text for a terminal with this width; `now` is the current time.
    pub fn text(&self, now: Timestamp, width: usize) -> String {
        let mut text = String::new();
        let mut line = |label: &str, message: &str| beside(&mut text, label, message, MESSAGE, width);
        let span =
            |from: Timestamp, to: Timestamp| seconds(u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0));
        let reason = self
            .reason
            .as_ref()
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        line(&self.node, &format!("{}{reason}", self.phase));
        line("object", &self.object);
        if let Some(since) = self.since {
            line("since", &span(since, now));
        }
        if let Some(at) = self.gives_up_at {
            line(
                "deadline",
                &format!(
                    "in {}; then the maintenance is aborted and the node is restored to its previous state",
                    span(now, at)
                ),
            );
        }
        if let Some(percent) = self.drained_percent {
            let end = self.end.filter(|end| *end > now && percent < 100);
            let end = end.map(|end| format!(", ends in {} at the latest", span(now, end)));
            line("drained", &format!("{percent} %{}", end.unwrap_or_default()));
        }
        if let Some(guests) = &self.guests {
            line("guests", guests);
        }
        for (index, pod) in self.pods.iter().enumerate() {
            let label = if index == 0 { "pods" } else { "" };
            line(label, &format!("{}/{}: {}", pod.namespace, pod.name, pod.message));
        }
        if let Some(error) = &self.error {
            line("error", error);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> NodeMaintenance {
        let pod = |name: &str, reason: &str| json!({"namespace": "shop", "name": name, "reason": reason});
        let mut waits = pod("pg-0", "DisruptionBudget");
        waits["blockedBy"] = json!({"kind": "PodDisruptionBudget", "name": "pg", "disruptionsAllowed": 0,
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1});
        let object = json!({"metadata": {"name": "m"}, "spec": {"nodeName": "worker-1", "reason": "new disk"},
            "status": {"phase": "Running", "startTime": "2026-11-27T14:00:00Z", "drainProgress": 40,
                "estimatedEnd": "2026-11-27T14:09:00Z", "lastError": "pods have not left",
                "pods": [waits, pod("virt-launcher-web-1", "Evicting"), pod("log", "Terminating"), pod("a", "Evicting"),
                    pod("b", "Evicting")]}});
        serde_json::from_value(object).unwrap()
    }

    fn drain() -> DrainStatus {
        serde_json::from_value(
            json!({"startedAt": "2026-11-27T14:00:00Z", "total": 6, "left": 4, "moving": 2, "waiting": 1,
            "blocked": 1, "shuttingDown": 0}),
        )
        .unwrap()
    }

    #[test]
    fn maintenance_is_shown_with_the_remaining_work() {
        let (object, now) = (object(), "2026-11-27T14:02:11Z".parse().unwrap());
        let found = report(
            Group::Medik8s,
            &object,
            Some(SignedDuration::from_mins(45)),
            Some(&drain()),
        );
        insta::assert_snapshot!(format!("{}\n{}", found.text(now, 80), found.text(now, 40)));
    }

    #[test]
    fn empty_node_has_no_deadline() {
        let mut object = object();
        let status = object.status.as_mut().unwrap();
        (status.phase, status.last_error) = (Some("Succeeded".into()), None);
        status.pods.clear();
        let found = report(Group::KubeVirt, &object, Some(SignedDuration::from_mins(45)), None);
        assert_eq!(
            (found.gives_up_at, found.guests.clone(), found.pods.len()),
            (None, None, 0)
        );
        object.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-11-27T14:00:00Z")).unwrap());
        assert_eq!(report(Group::KubeVirt, &object, None, None).phase, "Ending");
    }

    #[test]
    fn pods_are_named_up_to_a_number() {
        let status = object().status.unwrap();
        assert_eq!(
            pods_left(&status).as_deref(),
            Some(
                "shop/pg-0: budget pg allows no eviction (1 ready, 1 required); shop/log: Terminating; shop/a: \
                 Evicting; and 1 more"
            )
        );
        assert_eq!(pods_left(&NodeMaintenanceStatus::default()), None);
    }
}
