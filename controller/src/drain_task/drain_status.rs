//! Writes the reports on nodes that are being drained, if the reports have changed.

use drydock_api::{
    Hypervisor,
    hypervisor::DrainPreview,
    reasons::node::{DRAIN_IN_PROGRESS, DRAINED},
};
use drydock_core::{
    conditions::{ConditionStatus, whole_seconds},
    drain::{DrainReport, node_conditions::Drained},
};
use drydock_runtime::{EventRecorder, Events, Severity, apply_status, identity_of};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tracing::info;

use super::metrics::DrainMetrics;
use crate::requests::unless_changed;

/// Field manager of drain reports.
const FIELD_MANAGER: &str = "drydock-drain";
/// Field manager of previews. Server-side apply removes fields that their manager no longer applies.
const PREVIEW_MANAGER: &str = "drydock-drain-preview";

/// Writes reports.
#[derive(Debug)]
pub(super) struct Reports {
    nodes: Api<Node>,
    hypervisors: Api<Hypervisor>,
    events: EventRecorder,
    metrics: DrainMetrics,
}

impl Reports {
    pub(super) fn new(client: &Client, events: &Events, metrics: DrainMetrics) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            hypervisors: Api::all(client.clone()),
            events: events.recorder("Drain"),
            metrics,
        }
    }

    /// Returns whether the conditions of a Node report that it is being drained, or is empty.
    pub(super) fn is_noteworthy(node: &Node) -> bool {
        own(node)
            .iter()
            .any(|condition| condition.status != ConditionStatus::False.as_str())
    }

    /// Writes the drain status of a node if it has changed. Returns the stored object.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn drain(
        &self,
        hypervisor: &Hypervisor,
        report: &DrainReport,
    ) -> kube::Result<Option<Hypervisor>> {
        let before = hypervisor.status.as_ref().and_then(|status| status.drain.as_ref());
        if before == report.drain.as_ref() {
            return Ok(None);
        }
        let status = match &report.drain {
            Some(drain) => json!({"drain": drain}),
            None => json!({}),
        };
        let stored = self.apply(hypervisor, FIELD_MANAGER, status).await?;
        if stored.is_some() {
            self.metrics.written(before, report.drain.as_ref());
        }
        Ok(stored)
    }

    /// Writes the drain preview of a node if it has changed; `None` removes it. Returns the stored object.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn preview(
        &self,
        hypervisor: &Hypervisor,
        lines: Option<Vec<String>>,
        now: Timestamp,
    ) -> kube::Result<Option<Hypervisor>> {
        let preview = hypervisor
            .status
            .as_ref()
            .and_then(|status| status.drain_preview.as_ref());
        if preview.map(|preview| &preview.lines) == lines.as_ref() {
            return Ok(None);
        }
        let preview = lines.map(|lines| DrainPreview {
            since: whole_seconds(now),
            lines,
        });
        let status = match preview {
            Some(preview) => json!({"drainPreview": preview}),
            None => json!({}),
        };
        self.apply(hypervisor, PREVIEW_MANAGER, status).await
    }

    /// Applies a part of the status. Returns the stored object; `None` if the object was deleted or recreated.
    async fn apply(
        &self,
        hypervisor: &Hypervisor,
        manager: &str,
        status: serde_json::Value,
    ) -> kube::Result<Option<Hypervisor>> {
        unless_changed(apply_status(&self.hypervisors, identity_of(hypervisor), manager, status).await)
    }

    /// Writes the conditions of a Node, if they have changed, and publishes an event when the node has become empty.
    /// Returns the stored object.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn conditions(
        &self,
        node: &Node,
        report: &DrainReport,
        now: Timestamp,
    ) -> kube::Result<Option<Node>> {
        let before = own(node);
        let has_nothing_to_report = !report.in_progress && report.drained == Drained::NotRequested && before.is_empty();
        let wanted = wanted(&before, report, now);
        if has_nothing_to_report || wanted == before || is_early(&before, report, now) {
            return Ok(None);
        }
        let status = json!({"conditions": wanted});
        let stored = unless_changed(apply_status(&self.nodes, identity_of(node), FIELD_MANAGER, status).await)?;
        if stored.is_some() {
            self.announce(node, &before, &wanted);
        }
        Ok(stored)
    }

    /// Publishes an event when a node has become empty. The start of a drain has no event, because the requester knows
    /// about it, and others see the condition and the events of each guest.
    fn announce(&self, node: &Node, before: &[NodeCondition], after: &[NodeCondition]) {
        let drained = |conditions: &[NodeCondition]| {
            let found = conditions.iter().find(|condition| condition.type_ == DRAINED);
            found.is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
        };
        if drained(before) || !drained(after) {
            return;
        }
        let note = "nothing is left on the node that a drain would move: the node is safe to power off";
        info!(node = node.name_any(), "{note}");
        self.events.record(node, Severity::Normal, "NodeDrained", note);
    }
}

/// Returns the conditions of a Node that this module writes.
fn own(node: &Node) -> Vec<NodeCondition> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut own: Vec<NodeCondition> = conditions
        .into_iter()
        .flatten()
        .filter(|condition| [DRAIN_IN_PROGRESS, DRAINED].contains(&condition.type_.as_str()))
        .cloned()
        .collect();
    own.sort_by(|one, other| one.type_.cmp(&other.type_));
    own
}

/// Returns whether a change only reports the start of a drain, which the Node does not report yet. A node that is no
/// longer safe to power off is reported at once.
fn is_early(before: &[NodeCondition], report: &DrainReport, now: Timestamp) -> bool {
    let was = |type_| {
        before
            .iter()
            .any(|condition| condition.type_ == type_ && condition.status == ConditionStatus::True.as_str())
    };
    let begins = !was(DRAIN_IN_PROGRESS) && report.node_reports_from().is_some_and(|from| now < from);
    begins && was(DRAINED) == (report.drained.status() == ConditionStatus::True)
}

/// Returns the desired conditions. The transition time of a condition changes only with its status.
fn wanted(before: &[NodeCondition], report: &DrainReport, now: Timestamp) -> Vec<NodeCondition> {
    let condition = |type_: &str, status: ConditionStatus, reason: &str, message: &str| {
        let since = before
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == status.as_str())
            .and_then(|condition| condition.last_transition_time.clone());
        NodeCondition {
            type_: type_.into(),
            status: status.as_str().into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(since.unwrap_or_else(|| whole_seconds(now))),
            last_heartbeat_time: None,
        }
    };
    let progress = if report.in_progress {
        condition(
            DRAIN_IN_PROGRESS,
            ConditionStatus::True,
            "VirtualMachinesLeft",
            "virtual machines are being moved off the node; the Hypervisor with the name of the node lists them",
        )
    } else {
        condition(
            DRAIN_IN_PROGRESS,
            ConditionStatus::False,
            "NothingToMove",
            "no virtual machine has to leave the node",
        )
    };
    let drained = report.drained;
    vec![
        progress,
        condition(DRAINED, drained.status(), drained.reason(), drained.message()),
    ]
}

#[cfg(test)]
mod tests;
