//! The Node labels that let a restarting kubelet admit the node's launcher pods again.
//!
//! ```text
//!  pod bound to this node, not final ──▶ guest.node.drydock.dev/<launcher>=true   1 s later, together with others
//!  pod final or gone ──────────────────▶ label removed                            60 s later, or with the next change
//!  watch of pods not synced ───────────▶ labels stay
//! ```
//!
//! [`launcher_pod`](crate::launcher_pod) explains why pods need these labels. They are harmless to all other pods, so
//! a late removal costs nothing, while each write of a Node reaches all watchers of nodes. Frozen or withheld CPU
//! labels do not affect these labels.

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

use crate::{label_keys, labels, launcher_pod::guest_label, pod_state::is_final};

/// Delay of additions, so that pods bound within this time share one write. A kubelet admits a newly bound pod by the
/// ordinary terms of its affinity, so the label is not needed immediately.
const ADD_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// Delay of removals. Drains and reboots end many pods within a minute.
const REMOVE_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// The launcher pods of a node.
#[derive(Clone, Copy, Debug)]
pub struct LabelledPods<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Launcher pods; `None` until the cache has synced.
    pub pods: Option<&'a [Arc<Pod>]>,
    /// Pending changes, as returned by the last plan.
    pub waiting: PendingLabels,
}

/// Since when changes of these labels have been pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingLabels {
    /// Since when a pod's label has been missing.
    pub missing: Option<Timestamp>,
    /// Since when a label has had no pod.
    pub left: Option<Timestamp>,
}

/// The changes to make now and later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelPlan {
    /// Changes that are due: key to new value, or to `None` where the key must be removed.
    pub changes: BTreeMap<String, Option<String>>,
    /// Pending changes. Unchanged until the labels are right, so that a failed write is due immediately.
    pub waiting: PendingLabels,
    /// When the next pending change is due.
    pub wake: Option<Timestamp>,
}

/// Plans the changes of the labels in `current`. With `write_now`, the Node is written anyway or cannot be written
/// later: all changes are due.
pub fn plan(
    guests: &LabelledPods<'_>,
    current: &BTreeMap<String, String>,
    write_now: bool,
    now: Timestamp,
) -> LabelPlan {
    // An unsynced cache may lack pods that exist.
    let Some(pods) = guests.pods else {
        return LabelPlan::default();
    };
    let wanted: BTreeMap<_, _> = keys(guests.node, pods).map(|key| (key, TRUE.to_owned())).collect();
    let changes = labels::changes(current, &wanted, |key| key.starts_with(GUEST));
    let since = |of: fn(&Option<String>) -> bool, before: Option<Timestamp>| {
        // A time in the future was recorded before the clock was set back.
        changes
            .values()
            .any(of)
            .then(|| before.map_or(now, |before| before.min(now)))
    };
    let waiting = PendingLabels {
        missing: since(Option::is_some, guests.waiting.missing),
        left: since(Option::is_none, guests.waiting.left),
    };
    let due = |since: Option<Timestamp>, after| since.map(|since| since.checked_add(after).unwrap_or(now));
    let due = [due(waiting.missing, ADD_AFTER), due(waiting.left, REMOVE_AFTER)];
    match due.into_iter().flatten().min() {
        Some(first) if first > now && !write_now => LabelPlan {
            changes: BTreeMap::new(),
            waiting,
            wake: Some(first),
        },
        _ => LabelPlan {
            changes,
            waiting,
            wake: None,
        },
    }
}

/// Yields the keys for the pods that are bound to `node` and not final. A pod that is being deleted counts until it
/// is final: its guest still runs.
fn keys<'a>(node: &'a str, pods: &'a [Arc<Pod>]) -> impl Iterator<Item = String> + 'a {
    let here = |pod: &&Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let keys = pods.iter().filter(here).filter(|pod| !is_final(pod)).filter_map(|pod| {
        let launcher = pod.metadata.labels.as_ref()?.get(LAUNCHER)?;
        let key = guest_label(launcher);
        label_keys::is_valid(&key).then_some(key)
    });
    keys.collect::<BTreeSet<_>>().into_iter()
}

#[cfg(test)]
mod tests;
