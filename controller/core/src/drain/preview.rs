//! Previews the effect of draining a node, without any change.

use drydock_api::{
    annotations::DRAIN_PREVIEW,
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::{VirtualMachineInstance, names::conditions as types, status::DrainRequest},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::{
    DrainInput, DrainedGuest, DrainingNode, estimate,
    guest_steps::{Situation, state, stays},
    state::EvacuationState,
};
use crate::{
    conditions::ConditionStatus,
    eviction::{evacuation_request, is_finished, wants_mark},
    vm_conditions::find,
};

/// Maximum number of guests that are listed by name: an API server passes on 4096 characters of warnings in total.
const MAX_LINES: usize = 15;

/// Returns whether a Node requests a preview.
pub fn is_requested(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(DRAIN_PREVIEW))
        .is_some_and(|value| value == "true")
}

/// Returns the preview's note about the drain taint with this key: the taint's effect decides whether guests move.
pub fn taint_note(key: &str) -> String {
    format!(
        "the taint {key} moves guests only with the effect NoSchedule: with NoExecute, Kubernetes deletes the pods of \
         the guests, which shuts the guests down"
    )
}

/// The expected effects on the guests of a node if it were drained now.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast<'a> {
    /// The guests that have not ended, each with its expected state.
    pub guests: Vec<(&'a VirtualMachineInstance, RemainingGuest)>,
    /// When the last of the moving guests would have moved; `None` if no guest moves, or the time cannot be estimated.
    pub end: Option<Timestamp>,
}

/// Returns the expected effects on the guests of a node if it were drained now.
pub fn forecast<'a>(node: &DrainingNode<'a>, cluster: &DrainInput<'_>) -> Forecast<'a> {
    let left: Vec<(&DrainedGuest<'a>, RemainingGuest)> = node
        .guests
        .iter()
        .filter(|guest| !is_finished(guest.instance))
        .filter_map(|guest| Some((guest, would_be(guest, cluster).remaining(guest)?)))
        .collect();
    let moving = left
        .iter()
        .filter(|(_, guest)| guest.state != RemainingState::ShuttingDown);
    let moving: Vec<_> = moving.cloned().collect();
    let end = (!moving.is_empty()).then(|| estimate::end(&moving, cluster)).flatten();
    Forecast {
        guests: left
            .into_iter()
            .map(|(guest, report)| (guest.instance, report))
            .collect(),
        end: end.map(|end| end.0),
    }
}

/// Returns the forecast as human-readable lines: one about all guests, one about the end, and one for each guest.
pub fn preview(node: &DrainingNode<'_>, cluster: &DrainInput<'_>) -> Vec<String> {
    let Forecast { guests: left, end } = forecast(node, cluster);
    if left.is_empty() {
        return vec![format!("no virtual machine is on {}", node.name)];
    }
    let count = |state: RemainingState| left.iter().filter(|(_, guest)| guest.state == state).count();
    let blocked = count(RemainingState::Blocked);
    let mut lines = vec![format!(
        "{} virtual machines are on {}: {} would move, {} would be shut down, {blocked} would block",
        left.len(),
        node.name,
        count(RemainingState::Moving) + count(RemainingState::Waiting),
        count(RemainingState::ShuttingDown),
    )];
    if let Some(end) = end {
        let seconds = end.duration_since(cluster.now).as_secs();
        lines.push(format!(
            "the last virtual machine would have moved after about {seconds} s"
        ));
    }
    let mut sorted: Vec<_> = left.iter().map(|(instance, report)| (*instance, report)).collect();
    sorted.sort_by(|(_, one), (_, other)| {
        (one.state, &one.namespace, &one.name).cmp(&(other.state, &other.namespace, &other.name))
    });
    for (instance, guest) in sorted.iter().take(MAX_LINES) {
        let does = match guest.state {
            RemainingState::Moving | RemainingState::Waiting | RemainingState::Unknown => "would move",
            RemainingState::ShuttingDown => "would be shut down",
            RemainingState::Blocked => "would block",
        };
        let why = if guest.state == RemainingState::Waiting && guest.reason == "Migration" {
            targets(instance).map_or_else(String::new, |targets| format!(" ({targets})"))
        } else {
            format!(" ({}: {})", guest.reason, guest.message)
        };
        lines.push(format!("{}/{} {does}{why}", guest.namespace, guest.name));
    }
    if sorted.len() > MAX_LINES {
        lines.push(format!("and {} more", sorted.len() - MAX_LINES));
    }
    lines
}

/// Returns the message about the other nodes that could take a guest; `None` if there is no such node.
fn targets(instance: &VirtualMachineInstance) -> Option<&str> {
    let conditions = &instance.status.as_ref()?.conditions;
    find(conditions, types::MIGRATION_TARGET_AVAILABLE)
        .filter(|condition| condition.status == ConditionStatus::True.as_str())?
        .message
        .as_deref()
}

/// Returns the situation of a guest right after its node's drain was requested.
fn would_be(guest: &DrainedGuest<'_>, cluster: &DrainInput<'_>) -> Situation {
    let state: EvacuationState = if wants_mark(guest.instance, guest.strategy, guest.made, cluster.now) {
        let new = evacuation_request::new(DrainRequest::Maintenance, cluster.now);
        state(guest, &new, cluster.attempts, cluster.now).0
    } else {
        stays(guest)
    };
    Situation {
        state: Some(state),
        ..Situation::default()
    }
}
