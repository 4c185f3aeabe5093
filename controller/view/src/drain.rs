//! The course of a drain as events, which are the differences of two reports.

use drydock_api::hypervisor::{DrainStatus, RemainingGuest, RemainingState};
use jiff::Timestamp;
use serde::Serialize;

use crate::nodes::counts;

/// A change in the course of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainEvent {
    /// Time at which the change was seen.
    pub at: Timestamp,
    /// Name of the node.
    pub node: String,
    /// Namespace and name of the virtual machine; `-` if the event is about the node.
    pub object: String,
    /// New state: `Emptying`, `Moving`, `Waiting`, `Blocked`, `ShuttingDown`, `Left`, `Empty`, `Open`.
    pub state: &'static str,
    /// Reason for the change, in one CamelCase word; `-` if there is no reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

impl DrainEvent {
    /// Returns an event about the node itself.
    pub fn of_node(at: Timestamp, node: &str, state: &'static str, reason: &str, message: String) -> Self {
        Self {
            at,
            node: node.to_owned(),
            object: "-".into(),
            state,
            reason: reason.to_owned(),
            message,
        }
    }

    /// Returns the event as one line: time, node, object, state, reason, message.
    pub fn line(&self) -> String {
        let at = self.at.strftime("%Y-%m-%dT%H:%M:%SZ");
        let line = format!(
            "{at} {} {} {} {} {}",
            self.node, self.object, self.state, self.reason, self.message
        );
        line.trim_end().to_owned()
    }
}

/// Returns the changes on a node between two reports of its drain. `None` means that the node is not being drained.
pub fn events(at: Timestamp, node: &str, before: Option<&DrainStatus>, after: Option<&DrainStatus>) -> Vec<DrainEvent> {
    let of_node = |state, reason: &str, message| DrainEvent::of_node(at, node, state, reason, message);
    let Some(after) = after else {
        let ended = before.map(|_| of_node("Open", "DrainEnded", "the node is no longer being drained".into()));
        return ended.into_iter().collect();
    };
    let mut events = Vec::new();
    // A different start time means a new drain of the same node.
    let before = before.filter(|before| before.started_at == after.started_at);
    if before.is_none() {
        let message = format!("{} virtual machines have to leave the node", after.total);
        events.push(of_node("Emptying", "DrainStarted", message));
    }
    let remaining = before.map(|before| before.remaining.as_slice()).unwrap_or_default();
    let of = |guests: &[RemainingGuest], guest: &RemainingGuest| -> Option<RemainingGuest> {
        let mut guests = guests.iter();
        let same = |other: &&RemainingGuest| other.namespace == guest.namespace && other.name == guest.name;
        guests.find(same).cloned()
    };
    // A report lists at most a hundred guests, so a guest that is missing from a truncated list may still be on the
    // node.
    if usize::try_from(after.left).is_ok_and(|left| left == after.remaining.len()) {
        let gone = remaining.iter().filter(|guest| of(&after.remaining, guest).is_none());
        events.extend(gone.map(|guest| of_guest(at, node, guest, "Left", "-", String::new())));
    }
    for guest in &after.remaining {
        let known = of(remaining, guest);
        if known.is_none_or(|known| (known.state, &known.reason) != (guest.state, &guest.reason)) {
            events.push(of_guest(
                at,
                node,
                guest,
                state_name(guest.state),
                &guest.reason,
                guest.message.clone(),
            ));
        }
    }
    if after.finished_at.is_some() && before.is_none_or(|before| before.finished_at.is_none()) {
        events.push(of_node("Empty", "DrainCompleted", "no virtual machine is left".into()));
    }
    events
}

/// Returns the number of guests in each state and the estimated end of a drain, as an event about its node.
pub fn summary(at: Timestamp, node: &str, drain: &DrainStatus) -> DrainEvent {
    let mut parts = vec![counts(drain)];
    if let Some(end) = &drain.estimated_end {
        parts.push(format!("ends at about {}", end.0.strftime("%H:%M:%SZ")));
    }
    DrainEvent::of_node(at, node, "Emptying", "-", parts.join(", "))
}

fn of_guest(
    at: Timestamp,
    node: &str,
    guest: &RemainingGuest,
    state: &'static str,
    reason: &str,
    message: String,
) -> DrainEvent {
    DrainEvent {
        object: format!("{}/{}", guest.namespace, guest.name),
        ..DrainEvent::of_node(at, node, state, reason, message)
    }
}

fn state_name(state: RemainingState) -> &'static str {
    match state {
        RemainingState::Blocked => "Blocked",
        RemainingState::Waiting => "Waiting",
        RemainingState::Moving => "Moving",
        RemainingState::ShuttingDown => "ShuttingDown",
        RemainingState::Unknown => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const AT: &str = "2026-11-27T14:02:11Z";

    fn drain(remaining: &Value, more: &Value) -> DrainStatus {
        let left = remaining.as_array().unwrap().len();
        let mut status = json!({"startedAt": AT, "total": 3, "left": left, "moving": 1, "waiting": 0, "blocked": 1,
            "shuttingDown": 0, "remaining": remaining});
        status
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    fn guest(name: &str, state: &str, reason: &str) -> Value {
        json!({"namespace": "shop", "name": name, "state": state, "reason": reason, "message": "as it is"})
    }

    fn lines(before: Option<&DrainStatus>, after: Option<&DrainStatus>) -> Vec<String> {
        let events = events(AT.parse().unwrap(), "worker-1", before, after);
        let prefix = format!("{AT} worker-1 ");
        events
            .iter()
            .map(|event| event.line().strip_prefix(&prefix).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn each_change_is_an_event() {
        let none = json!({});
        let first = drain(
            &json!([
                guest("web", "Moving", "Migration"),
                guest("db", "Blocked", "NotMigratable")
            ]),
            &none,
        );
        let second = drain(&json!([guest("db", "Blocked", "NotMigratable")]), &none);
        let third = drain(&json!([guest("db", "ShuttingDown", "RestartWhenEvicted")]), &none);
        let last = drain(&json!([]), &json!({"finishedAt": AT}));
        let again = drain(&json!([]), &json!({"startedAt": "2026-11-27T15:00:00Z", "total": 0}));
        for (before, after, expected) in [
            (
                None,
                Some(&first),
                &[
                    "- Emptying DrainStarted 3 virtual machines have to leave the node",
                    "shop/web Moving Migration as it is",
                    "shop/db Blocked NotMigratable as it is",
                ][..],
            ),
            (Some(&first), Some(&first), &[]),
            (Some(&first), Some(&second), &["shop/web Left -"]),
            (
                Some(&second),
                Some(&third),
                &["shop/db ShuttingDown RestartWhenEvicted as it is"],
            ),
            (
                Some(&third),
                Some(&last),
                &["shop/db Left -", "- Empty DrainCompleted no virtual machine is left"],
            ),
            (
                Some(&last),
                Some(&again),
                &["- Emptying DrainStarted 0 virtual machines have to leave the node"],
            ),
            (
                Some(&last),
                None,
                &["- Open DrainEnded the node is no longer being drained"],
            ),
            (None, None, &[]),
        ] {
            assert_eq!(lines(before, after), expected);
        }
    }

    #[test]
    fn guest_that_is_not_listed_any_more_may_still_be_there() {
        let before = drain(&json!([guest("web", "Waiting", "Migration")]), &json!({}));
        let mut after = before.clone();
        after.remaining.clear();
        assert_eq!(lines(Some(&before), Some(&after)), [""; 0]);
    }

    #[test]
    fn drain_summary_counts_remaining_guests() {
        let drain = drain(&json!([]), &json!({"estimatedEnd": "2026-11-27T14:09:00Z"}));
        let event = summary(AT.parse().unwrap(), "worker-1", &drain);
        assert_eq!(
            event.line(),
            format!("{AT} worker-1 - Emptying - 1 moving, 1 blocked, ends at about 14:09:00Z")
        );
    }
}
