//! Writes the reports on nodes that are being drained, if the reports have changed.

use drydock_api::{
    Hypervisor,
    hypervisor::DrainPreview,
    node_reference,
    reasons::node::{DRAIN_IN_PROGRESS, DRAINED},
};
use drydock_core::{
    conditions::{ConditionStatus, whole_seconds},
    drain::{DrainReport, node_conditions::Drained},
};
use drydock_runtime::{Event, Events, Severity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tracing::info;

use super::metrics::DrainMetrics;

/// Field manager of drain reports.
const FIELD_MANAGER: &str = "drydock-drain";
/// Field manager of previews. Server-side apply removes fields that their manager no longer applies.
const PREVIEW_MANAGER: &str = "drydock-drain-preview";

/// Writes reports.
#[derive(Debug)]
pub(super) struct Reports {
    nodes: Api<Node>,
    hypervisors: Api<Hypervisor>,
    events: Events,
    metrics: DrainMetrics,
}

impl Reports {
    pub(super) fn new(client: &Client, events: Events, metrics: DrainMetrics) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            hypervisors: Api::all(client.clone()),
            events,
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
        let name = hypervisor.name_any();
        let apply = json!({
            "apiVersion": "drydock.dev/v1alpha1",
            "kind": "Hypervisor",
            "metadata": {"name": name, "uid": hypervisor.uid()},
            "status": status,
        });
        let (parameters, patch) = (PatchParams::apply(manager).force(), Patch::Apply(apply));
        unless_replaced(self.hypervisors.patch_status(&name, &parameters, &patch).await)
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
        let apply = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": report.node, "uid": node.uid()},
            "status": {"conditions": wanted},
        });
        let (parameters, patch) = (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(apply));
        let stored = self.nodes.patch_status(&report.node, &parameters, &patch).await;
        let stored = unless_replaced(stored)?;
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
        let (name, note) = (
            node.name_any(),
            "nothing is left on the node that a drain would move: the node is safe to power off",
        );
        info!(node = name, "{note}");
        self.events.publish(Event::new(
            node_reference(&name, node.uid()),
            "Drain",
            Severity::Normal,
            "NodeDrained",
            note,
        ));
    }
}

/// Returns the response to a write; `None` if the object was deleted or recreated.
fn unless_replaced<K>(stored: kube::Result<K>) -> kube::Result<Option<K>> {
    match stored {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(None),
        result => result.map(Some),
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
