//! The changes to a node in maintenance, and how they are undone.
//!
//! Label, taints and cordon are one merge patch, which requires the node's resourceVersion: taints are a list that
//! other clients write too.

use drydock_api::maintenance::{
    EXCLUDE_FROM_REMEDIATION, Group, IN_PROGRESS, NodeMaintenanceStatus, PLANNED, UNSCHEDULABLE_TAINT,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Map, Value, json};

use crate::conditions::whole_seconds;

const NO_SCHEDULE: &str = "NoSchedule";
/// Taint of a node: its kubelet does not respond.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Returns whether a node is unschedulable.
pub fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Returns whether the state of a node is unknown because its kubelet is unresponsive.
pub fn is_unreachable(node: &Node) -> bool {
    taints(node).iter().any(|taint| taint.key == UNREACHABLE) || status_of(node, "Ready") == Some("Unknown")
}

/// Returns the value of the node's condition that it is in maintenance; `None` without that condition.
pub fn in_progress(node: &Node) -> Option<bool> {
    status_of(node, IN_PROGRESS).map(|status| status == "True")
}

/// Returns whether the node's conditions report that it will be in maintenance.
pub fn is_planned(node: &Node) -> bool {
    status_of(node, PLANNED) == Some("True")
}

/// Returns whether the node's conditions report a maintenance that is planned or in progress. All conditions of a
/// maintenance are applied together: if a maintenance has ended, `MaintenancePlanned` is of another component.
pub fn is_announced(node: &Node) -> bool {
    match in_progress(node) {
        Some(holds) => holds,
        None => is_planned(node),
    }
}

fn status_of<'a>(node: &'a Node, type_: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some(&condition.status)
}

fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

fn is(taint: &Taint, key: &str) -> bool {
    taint.key == key && taint.effect == NO_SCHEDULE
}

/// Returns the value of the label that keeps remediators off a node.
pub(super) fn label(node: &Node) -> Option<&str> {
    node.metadata
        .labels
        .as_ref()?
        .get(EXCLUDE_FROM_REMEDIATION)
        .map(String::as_str)
}

/// A node's state before its maintenance began, limited to the properties that a maintenance changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before<'a> {
    /// Whether the node was unschedulable.
    pub cordoned: bool,
    /// Value of the node's label that keeps remediators off it.
    pub label: Option<&'a str>,
    /// Keys of the node's taints of a maintenance.
    pub taints: &'a [String],
}

impl<'a> Before<'a> {
    /// Returns the state recorded by the maintenance.
    pub fn of(status: &'a NodeMaintenanceStatus) -> Self {
        Self {
            cordoned: status.node_was_unschedulable == Some(true),
            label: status.label_before.as_deref(),
            taints: &status.taints_before,
        }
    }
}

/// Returns the keys of those taints of a maintenance that a node has.
pub(super) fn own_taints(node: &Node, group: Group) -> Vec<String> {
    let keys = [UNSCHEDULABLE_TAINT, group.drain_taint()].into_iter();
    let present = keys.filter(|key| taints(node).iter().any(|taint| is(taint, key)));
    present.map(str::to_owned).collect()
}

/// Returns the merge patch that closes a node for maintenance; `None` if it is closed.
pub fn closed(node: &Node, group: Group) -> Option<Value> {
    let mut patch = Patch::default();
    if label(node) != Some("true") {
        patch.metadata = Some(json!({"labels": {EXCLUDE_FROM_REMEDIATION: "true"}}));
    }
    let wanted = [UNSCHEDULABLE_TAINT, group.drain_taint()];
    let missing = wanted
        .into_iter()
        .filter(|key| !taints(node).iter().any(|taint| is(taint, key)));
    // The taints have neither value nor time, since other clients compare taints as a whole.
    let missing: Vec<Taint> = missing
        .map(|key| Taint {
            key: key.into(),
            effect: NO_SCHEDULE.into(),
            ..Taint::default()
        })
        .collect();
    if !missing.is_empty() {
        let all: Vec<&Taint> = missing.iter().chain(taints(node)).collect();
        patch.spec.insert("taints".into(), json!(all));
    }
    if !is_unschedulable(node) {
        patch.spec.insert("unschedulable".into(), true.into());
    }
    patch.into_value()
}

/// Returns the merge patch that restores a node; `None` if that is done. The patch restores the state `before` and
/// keeps the changes of other clients: a taint with a value or a time was not set by a maintenance, nor was a label
/// that is not `true`. The taint of a cordon is removed with the cordon, as in Kubernetes.
pub fn opened(node: &Node, group: Group, before: &Before<'_>) -> Option<Value> {
    let mut patch = Patch::default();
    if label(node) == Some("true") && before.label != Some("true") {
        patch.metadata = Some(json!({"labels": {EXCLUDE_FROM_REMEDIATION: before.label}}));
    }
    let had = |key: &str| before.taints.iter().any(|had| had == key);
    let is_bare = |taint: &Taint| taint.value.as_deref().unwrap_or_default().is_empty() && taint.time_added.is_none();
    let is_drain = |taint: &Taint| is(taint, group.drain_taint()) && is_bare(taint) && !had(&taint.key);
    let is_cordon = |taint: &Taint| !before.cordoned && is(taint, UNSCHEDULABLE_TAINT) && !had(&taint.key);
    let ours = |taint: &Taint| is_drain(taint) || is_cordon(taint);
    if taints(node).iter().any(ours) {
        let rest: Vec<&Taint> = taints(node).iter().filter(|taint| !ours(taint)).collect();
        patch.spec.insert("taints".into(), json!(rest));
    }
    if !before.cordoned && is_unschedulable(node) {
        patch.spec.insert("unschedulable".into(), Value::Null);
    }
    patch.into_value()
}

#[derive(Default)]
struct Patch {
    metadata: Option<Value>,
    spec: Map<String, Value>,
}

impl Patch {
    fn into_value(self) -> Option<Value> {
        let mut patch = Map::new();
        patch.extend(self.metadata.map(|metadata| ("metadata".to_owned(), metadata)));
        if !self.spec.is_empty() {
            patch.insert("spec".into(), self.spec.into());
        }
        (!patch.is_empty()).then_some(patch.into())
    }
}

/// The stage of the maintenance of a node, as the node's conditions report it (KEP-5683).
///
/// | stage | condition |
/// |---|---|
/// | `Planned`: it waits for a Lease that another component holds | `MaintenancePlanned=True` |
/// | `InProgress`: the node is closed, and is emptied or empty | `MaintenanceInProgress=True` |
/// | `Ended`: the node was given back | `MaintenanceInProgress=False` |
///
/// In the KEP, a drain precedes the maintenance. A NodeMaintenance requests both at once, and the readers of this
/// condition (dashboards, remediators) must also recognise a node that is still being drained. So the condition holds
/// from the start; `Drained` distinguishes the two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaintenanceStage {
    /// The maintenance has not begun.
    Planned,
    /// The maintenance has begun.
    InProgress,
    /// The maintenance is over.
    Ended,
}

/// Returns the node's condition for a stage of its maintenance. The condition is applied alone, which removes the
/// condition of the stage before. `maintenance` is the object's name.
pub fn condition(stage: MaintenanceStage, maintenance: &str, now: Timestamp) -> Value {
    let (type_, status, reason, message) = match stage {
        MaintenanceStage::Planned => (
            PLANNED,
            "True",
            "AdminRequested",
            format!(
                "NodeMaintenance {maintenance} waits for the node's Lease, which another client holds or which cannot \
                 be written"
            ),
        ),
        MaintenanceStage::InProgress => (
            IN_PROGRESS,
            "True",
            "AdminRequested",
            format!("NodeMaintenance {maintenance} requests the maintenance"),
        ),
        MaintenanceStage::Ended => (
            IN_PROGRESS,
            "False",
            "MaintenanceEnded",
            format!("NodeMaintenance {maintenance} has ended"),
        ),
    };
    json!({
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": whole_seconds(now),
        "lastHeartbeatTime": whole_seconds(now),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(label: Option<&str>, taints: &[&str], unschedulable: bool) -> Node {
        let taints: Vec<_> = taints
            .iter()
            .map(|taint| {
                let (key, effect) = taint.split_once(':').unwrap_or((taint, NO_SCHEDULE));
                json!({"key": key, "effect": effect})
            })
            .collect();
        let labels: Map<String, Value> = label
            .map(|value| (EXCLUDE_FROM_REMEDIATION.to_owned(), value.into()))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": labels},
            "spec": {"taints": taints, "unschedulable": unschedulable},
        }))
        .unwrap()
    }

    /// Applies a merge patch to a node.
    fn patched(node: &Node, patch: &Value) -> Node {
        fn merge(target: &mut Value, patch: &Value) {
            let Value::Object(patch) = patch else {
                *target = patch.clone();
                return;
            };
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in patch {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(key);
                } else {
                    merge(&mut target[key], value);
                }
            }
        }
        let mut value = serde_json::to_value(node).unwrap();
        merge(&mut value, patch);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn new_taints_come_first_and_have_neither_value_nor_time() {
        let patch = closed(&node(None, &["other:NoExecute"], false), Group::Medik8s).unwrap();
        let expected = json!({
            "metadata": {"labels": {"remediation.medik8s.io/exclude-from-remediation": "true"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                {"key": "medik8s.io/drain", "effect": "NoSchedule"},
                {"key": "other", "effect": "NoExecute"},
            ]},
        });
        assert_eq!(patch, expected);
    }

    #[test]
    fn a_foreign_cordon_stays() {
        let held = node(Some("true"), &[UNSCHEDULABLE_TAINT, "kubevirt.io/drain"], true);
        let cordoned = Before {
            cordoned: true,
            ..Before::default()
        };
        let kept = opened(&held, Group::KubeVirt, &cordoned).unwrap();
        assert_eq!(
            kept["spec"],
            json!({"taints": [{"key": UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}]})
        );
        let open = Before::default();
        let freed = opened(&held, Group::KubeVirt, &open).unwrap();
        assert_eq!(freed["spec"], json!({"taints": [], "unschedulable": null}));
        assert_eq!(opened(&node(None, &["a"], false), Group::KubeVirt, &open), None);
        assert_eq!(
            opened(&node(None, &[UNSCHEDULABLE_TAINT], true), Group::KubeVirt, &cordoned),
            None
        );
    }

    #[test]
    fn foreign_labels_and_taints_survive_a_maintenance() {
        const DRAIN: &str = "kubevirt.io/drain";
        let taint = |extra: Value| {
            let mut taint = json!({"key": DRAIN, "effect": NO_SCHEDULE});
            taint
                .as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            taint
        };
        let with = |label: Option<&str>, all: &[Value], cordoned: bool| -> Node {
            let mut node = serde_json::to_value(node(label, &[], cordoned)).unwrap();
            node["spec"]["taints"] = json!(all);
            serde_json::from_value(node).unwrap()
        };
        let (bare, valued) = (taint(json!({})), taint(json!({"value": "draining"})));
        let timed = taint(json!({"timeAdded": "2026-01-01T00:00:00Z"}));
        let maintained = |node: &Node, others: &dyn Fn(Node) -> Node| {
            let status = NodeMaintenanceStatus {
                node_was_unschedulable: Some(is_unschedulable(node)),
                label_before: label(node).map(str::to_owned),
                taints_before: own_taints(node, Group::KubeVirt),
                ..NodeMaintenanceStatus::default()
            };
            let closed = closed(node, Group::KubeVirt).map_or_else(|| node.clone(), |patch| patched(node, &patch));
            let during = others(closed);
            let before = Before::of(&status);
            let opened_by = opened(&during, Group::KubeVirt, &before);
            let after = opened_by.map_or_else(|| during.clone(), |patch| patched(&during, &patch));
            assert_eq!(opened(&after, Group::KubeVirt, &before), None);
            after
        };
        let nothing = |node: Node| node;
        for (name, before) in [
            ("nothing", with(None, &[], false)),
            ("label", with(Some("true"), &[], false)),
            ("another value of the label", with(Some("manual"), &[], false)),
            ("drain taint", with(None, std::slice::from_ref(&bare), false)),
            (
                "drain taint with a value",
                with(None, std::slice::from_ref(&valued), false),
            ),
            (
                "drain taint with a time",
                with(None, std::slice::from_ref(&timed), false),
            ),
            (
                "cordon",
                with(
                    None,
                    &[json!({"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE})],
                    true,
                ),
            ),
        ] {
            let after = maintained(&before, &nothing);
            assert_eq!(
                (label(&after), taints(&after)),
                (label(&before), taints(&before)),
                "{name}"
            );
            assert_eq!(is_unschedulable(&after), is_unschedulable(&before), "{name}");
        }
        let open = with(None, &[], false);
        for (name, theirs) in [("a value", &valued), ("a time", &timed)] {
            let others = |node: Node| with(label(&node), std::slice::from_ref(theirs), true);
            let after = maintained(&open, &others);
            assert_eq!(json!(taints(&after)), json!([theirs]), "{name}");
            assert_eq!((label(&after), is_unschedulable(&after)), (None, false), "{name}");
        }
        let relabelled = |node: Node| {
            let all: Vec<Value> = taints(&node).iter().map(|taint| json!(taint)).collect();
            with(Some("manual"), &all, true)
        };
        let after = maintained(&open, &relabelled);
        assert_eq!((label(&after), taints(&after)), (Some("manual"), &[][..]));
    }

    #[test]
    fn maintenance_is_announced_by_either_condition() {
        for (conditions, expected) in [
            (json!([]), false),
            (json!([{"type": PLANNED, "status": "True"}]), true),
            (json!([{"type": PLANNED, "status": "False"}]), false),
            (json!([{"type": IN_PROGRESS, "status": "True"}]), true),
            (json!([{"type": IN_PROGRESS, "status": "False"}]), false),
            // Another component plans the next maintenance.
            (
                json!([{"type": IN_PROGRESS, "status": "False"}, {"type": PLANNED, "status": "True"}]),
                false,
            ),
        ] {
            let node: Node =
                serde_json::from_value(json!({"metadata": {}, "status": {"conditions": conditions}})).unwrap();
            assert_eq!(is_announced(&node), expected, "{conditions}");
        }
    }

    #[test]
    fn unresponsive_kubelet_differs_from_not_ready() {
        for (ready, unreachable) in [("True", false), ("False", false), ("Unknown", true)] {
            let node: Node = serde_json::from_value(json!({
                "metadata": {}, "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap();
            assert_eq!(is_unreachable(&node), unreachable, "{ready}");
        }
        assert!(is_unreachable(&node(
            None,
            &["node.kubernetes.io/unreachable:NoExecute"],
            false
        )));
    }

    proptest! {
        #[test]
        fn cordon_is_one_patch_and_uncordon_restores_everything(
            label in prop::option::of(Just("false")),
            foreign in prop::collection::vec("[a-c]", 0..3),
            cordoned: bool,
            medik8s: bool,
        ) {
            let group = if medik8s { Group::Medik8s } else { Group::KubeVirt };
            let mut all: Vec<&str> = foreign.iter().map(String::as_str).collect();
            if cordoned {
                all.push(UNSCHEDULABLE_TAINT);
            }
            let before = node(label, &all, cordoned);
            let during = patched(&before, &closed(&before, group).unwrap());
            prop_assert_eq!(closed(&during, group), None);
            let had = own_taints(&before, group);
            let was = Before { cordoned, label, taints: &had };
            let after = patched(&during, &opened(&during, group, &was).unwrap());
            prop_assert_eq!(opened(&after, group, &was), None);
            prop_assert_eq!(super::label(&after), label);
            prop_assert_eq!(taints(&after), taints(&before));
            prop_assert_eq!(is_unschedulable(&after), cordoned);
        }
    }
}
