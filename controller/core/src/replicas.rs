//! Which replica of the controller moves to a node of its own.
//!
//! ```text
//!  replicas, nodes ─▶ spread() ─▶ Stay     one on each node, not all ready, a rollout, no free node
//!                              ─▶ Wait     all have been ready for too short a time
//!                              ─▶ Move     the pod of a standby is deleted, and the scheduler places the next one
//! ```
//!
//! The scheduler keeps the replicas apart only when it places them: once a node was drained, both replicas are on the
//! other node, and the next drain of that node stops the leader in the middle of its own work. The leader decides, and
//! never moves itself.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::placement::{NodeView, could_take};

/// Time for which all replicas have been ready before one moves, so that a rollout or a drain has ended: several times
/// the time that a new replica takes to become ready.
pub const SETTLED: Duration = Duration::from_secs(30);
/// Maximum wait after moves that did not separate the replicas, for example because a scheduler does not keep pods
/// apart.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Label by which a Deployment distinguishes the pods of its revisions.
const REVISION: &str = "pod-template-hash";

/// The steps for the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaSpread {
    /// No step, until something changes.
    Stay {
        /// Whether there are several replicas, each on a node of its own.
        apart: bool,
    },
    /// No step before this time.
    Wait(Timestamp),
    /// Delete this standby's pod.
    Move {
        /// Name of the pod.
        pod: String,
        /// Node that could take the next pod.
        to: String,
    },
}

/// Decides for the replicas of which the pod `leader` leads. `settled` is the time for which all replicas must have
/// been ready.
pub fn spread(
    leader: &str,
    replicas: &[&Pod],
    nodes: &[NodeView<'_>],
    settled: Duration,
    now: Timestamp,
) -> ReplicaSpread {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in replicas {
        if let Some(node) = node_of(pod) {
            by_node.entry(node).or_default().push(pod);
        }
    }
    let mut standbys = by_node.values().filter(|pods| pods.len() > 1).flatten();
    let Some(standby) = standbys.find(|pod| name(pod) != leader) else {
        let apart = by_node.len() > 1 && by_node.len() == replicas.len();
        return ReplicaSpread::Stay { apart };
    };
    let mut ready_since = Timestamp::MIN;
    for pod in replicas {
        match ready_for_good(pod).filter(|_| revision(pod) == revision(standby)) {
            Some(since) => ready_since = ready_since.max(since),
            None => return ReplicaSpread::Stay { apart: false },
        }
    }
    let mut free = nodes.iter().filter(|node| !by_node.contains_key(node.name));
    let Some(free) = free.find(|node| could_take(standby, node)) else {
        return ReplicaSpread::Stay { apart: false };
    };
    match ready_since.checked_add(settled) {
        Ok(due) if due > now => ReplicaSpread::Wait(due),
        Ok(_) => ReplicaSpread::Move {
            pod: name(standby).into(),
            to: free.name.into(),
        },
        Err(_) => ReplicaSpread::Stay { apart: false },
    }
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

fn revision(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(REVISION)
}

/// Returns since when a pod has been ready; `None` if the pod is not ready, or is being deleted.
fn ready_for_good(pod: &Pod) -> Option<Timestamp> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

#[cfg(test)]
mod tests;
