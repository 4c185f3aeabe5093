//! The Node labels by which a kubelet that restarts admits the node's launcher pods again.
//!
//! ```text
//!  pod bound to this node, not final ──▶ guest.node.drydock.dev/<launcher>=true   1 s later, together with others
//!  pod final or gone ──────────────────▶ label removed                            60 s later, or with the next change
//!  watch of pods not synced ───────────▶ labels stay
//! ```
//!
//! Why pods need them is explained at [`launcher_pod`](crate::launcher_pod): any label of this kind is harmless to every
//! other pod, so a late removal costs nothing, while each write of a Node reaches everything that watches nodes. CPU
//! labels that are frozen or withheld make no difference here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::{
    kubevirt::names::LAUNCHER,
    labels::{GUEST, TRUE},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::{label_keys, labels, launcher_pod::guest_label};

/// Pods that are bound within this time share one write. A kubelet admits a pod that has just been bound by the ordinary
/// terms of its affinity, so the label is not needed at once.
const ADD_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// A label without its pod is removed after this time. Drains and restarts of machines end many pods within a minute.
const REMOVE_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// The launcher pods of a node.
#[derive(Clone, Copy, Debug)]
pub struct Guests<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Launcher pods; `None` until the API server has listed them.
    pub pods: Option<&'a [Arc<Pod>]>,
    /// Which changes wait, as the last plan returned it.
    pub waiting: Waiting,
}

/// Since when changes of these labels wait for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// A pod's label is missing since then.
    pub missing: Option<Timestamp>,
    /// A label without a pod is there since then.
    pub left: Option<Timestamp>,
}

/// What is to be done about these labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changes that are due: key to new value, or to `None` where the key has to go.
    pub changes: BTreeMap<String, Option<String>>,
    /// Which changes wait. It stays as it is until the labels are right, so that a write that failed is due at once.
    pub waiting: Waiting,
    /// When the next change is due, if one waits.
    pub wake: Option<Timestamp>,
}

/// What is to be done about the labels in `current`. With `write_now` the Node is written anyway, or cannot be written
/// later: all changes are due.
pub fn plan(guests: &Guests<'_>, current: &BTreeMap<String, String>, write_now: bool, now: Timestamp) -> Plan {
    // A pod that an unsynced cache does not show may be there all the same.
    let Some(pods) = guests.pods else {
        return Plan::default();
    };
    let wanted: BTreeMap<_, _> = keys(guests.node, pods).map(|key| (key, TRUE.to_owned())).collect();
    let changes = labels::changes(current, &wanted, |key| key.starts_with(GUEST));
    let since = |of: fn(&Option<String>) -> bool, before: Option<Timestamp>| {
        changes.values().any(of).then(|| before.unwrap_or(now))
    };
    let waiting = Waiting {
        missing: since(Option::is_some, guests.waiting.missing),
        left: since(Option::is_none, guests.waiting.left),
    };
    let due = |since: Option<Timestamp>, after| since.map(|since| since.checked_add(after).unwrap_or(now));
    let due = [due(waiting.missing, ADD_AFTER), due(waiting.left, REMOVE_AFTER)];
    match due.into_iter().flatten().min() {
        Some(first) if first > now && !write_now => Plan {
            changes: BTreeMap::new(),
            waiting,
            wake: Some(first),
        },
        _ => Plan {
            changes,
            waiting,
            wake: None,
        },
    }
}

/// Keys for the pods that are bound to `node` and not final. A pod that is being deleted counts until it is final: its
/// guest still runs.
fn keys<'a>(node: &'a str, pods: &'a [Arc<Pod>]) -> impl Iterator<Item = String> + 'a {
    let here = |pod: &&Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let keys = pods.iter().filter(here).filter(|pod| !is_final(pod)).filter_map(|pod| {
        let launcher = pod.metadata.labels.as_ref()?.get(LAUNCHER)?;
        let key = guest_label(launcher);
        label_keys::is_valid(&key).then_some(key)
    });
    keys.collect::<BTreeSet<_>>().into_iter()
}

/// Whether no container of a pod runs or will run. A kubelet does not admit such a pod again.
pub fn is_final(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests;
