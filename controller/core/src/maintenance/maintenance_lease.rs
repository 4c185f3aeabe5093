//! The node's Lease, which lets only one controller at a time work on a node: remediators of the same family respect
//! the Lease.
//!
//! ```text
//!  none, or not valid ─▶ taken         another's, valid ─▶ waited for, or lost if it was ours
//!  ours ─▶ held, renewed every 20 minutes while the maintenance lasts
//! ```
//!
//! The Lease is lost only if another holder has it, or if the API server has refused its renewal for [`LOST_AFTER`].
//!
//! The two operators use different names and release the Lease differently; remediators written for either depend on
//! that:
//!
//! | group | name | at the end |
//! |---|---|---|
//! | `nodemaintenance.medik8s.io` | `node-<node>`, lower case | deleted |
//! | `nodemaintenance.kubevirt.io` | `<node>` | kept with its holder, without times, duration and transitions |

use drydock_api::maintenance::{Group, LEASE_HOLDER};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};

/// Validity in seconds (the operators' value).
pub const DURATION_SECONDS: i32 = 3600;
/// Renewal interval: a third of the validity.
pub const RENEW_EVERY: SignedDuration = SignedDuration::from_secs(1200);
/// Interval of the attempts to write a Lease that could not be written.
pub const RETRY: SignedDuration = SignedDuration::from_secs(15);
/// A Lease whose renewal has been refused for this long counts as lost. An API server that is unreachable, overloaded
/// or failing does not count: other clients can hardly take the Lease then. A Lease that another client has taken is
/// lost at once.
pub const LOST_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// State of a node's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Drydock holds the Lease.
    Held {
        /// When to renew the Lease.
        renew: Timestamp,
    },
    /// The Lease has to be created, taken or renewed.
    ToWrite {
        /// Whether the Lease exists.
        exists: bool,
    },
    /// Another client holds the Lease.
    HeldByOther {
        /// The holder of the Lease.
        holder: String,
        /// End of the Lease's validity, unless it is renewed.
        until: Timestamp,
    },
}

/// Why the API server has not written a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseFailure {
    /// The API server's message.
    pub why: String,
    /// Whether the API server refused the write, for example by a policy. Otherwise, it was overloaded or failed
    /// itself.
    pub is_refused: bool,
}

/// A Lease to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseWrite {
    /// Whether the write replaces an existing Lease; the new Lease then has a resourceVersion.
    pub exists: bool,
    /// The Lease, without its namespace.
    pub lease: Lease,
}

/// The action that releases a Lease that Drydock holds.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseRelease {
    /// Delete the Lease.
    Delete,
    /// Replace the Lease with this one.
    Empty(Box<Lease>),
}

/// Returns the name of the Lease for a node in a maintenance of this group.
pub fn name(group: Group, node: &str) -> String {
    match group {
        Group::Medik8s => format!("node-{}", node.to_lowercase()),
        Group::KubeVirt => node.to_owned(),
    }
}

/// Returns the node name in the name of a Lease of group `nodemaintenance.medik8s.io`.
pub fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix("node-")
}

/// Returns whether Drydock is the holder of a Lease, valid or not.
pub fn is_ours(lease: Option<&Lease>) -> bool {
    lease
        .and_then(|lease| lease.spec.as_ref())
        .is_some_and(|spec| spec.holder_identity.as_deref() == Some(LEASE_HOLDER))
}

/// Returns how to release a Lease; `None` if Drydock does not hold it, or has released it.
pub fn release(group: Group, lease: Option<&Lease>) -> Option<LeaseRelease> {
    let lease = lease.filter(|lease| is_ours(Some(lease)))?;
    match group {
        Group::Medik8s => Some(LeaseRelease::Delete),
        Group::KubeVirt => {
            let empty = Lease {
                spec: Some(LeaseSpec {
                    holder_identity: Some(LEASE_HOLDER.into()),
                    ..LeaseSpec::default()
                }),
                ..lease.clone()
            };
            (empty != *lease).then(|| LeaseRelease::Empty(Box::new(empty)))
        }
    }
}

/// Returns the state of a node's Lease.
pub fn judge(lease: Option<&Lease>, now: Timestamp) -> LeaseState {
    let Some(lease) = lease else {
        return LeaseState::ToWrite { exists: false };
    };
    match (validity(lease, now), is_ours(Some(lease))) {
        (Some((renewed, _)), true) => match renewed.checked_add(RENEW_EVERY) {
            Ok(renew) if renew > now => LeaseState::Held { renew },
            _ => LeaseState::ToWrite { exists: true },
        },
        (Some((_, until)), false) => LeaseState::HeldByOther {
            holder: lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone())
                .unwrap_or_default(),
            until,
        },
        (None, _) => LeaseState::ToWrite { exists: true },
    }
}

/// Returns when the Lease was renewed and when it ends, if it is valid now. A Lease without holder, time or duration
/// is not valid, nor is one renewed in the future.
fn validity(lease: &Lease, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    let renewed = spec.renew_time.as_ref()?.0;
    let lasts = SignedDuration::from_secs(spec.lease_duration_seconds?.into());
    let until = renewed.checked_add(lasts).ok()?;
    (renewed <= now && until >= now).then_some((renewed, until))
}

/// Returns whether a Lease is lost whose last renewal failed; `refused_since` is when its first refusal was reported, if
/// every renewal since was refused.
pub fn is_lost(last: &LeaseFailure, refused_since: Option<Timestamp>, now: Timestamp) -> bool {
    last.is_refused && refused_since.is_some_and(|since| now.duration_since(since) >= LOST_AFTER)
}

/// Returns the Lease to create, take or renew.
pub fn write(group: Group, lease: Option<&Lease>, exists: bool, node: &Node, now: Timestamp) -> LeaseWrite {
    let node_name = node.metadata.name.clone().unwrap_or_default();
    let before = lease.and_then(|lease| lease.spec.clone());
    let renews = lease.is_some_and(|lease| validity(lease, now).is_some()) && is_ours(lease);
    let spec = match before {
        Some(before) if renews => LeaseSpec {
            renew_time: Some(MicroTime(now)),
            ..before
        },
        before => LeaseSpec {
            holder_identity: Some(LEASE_HOLDER.into()),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_duration_seconds: Some(DURATION_SECONDS),
            lease_transitions: Some(before.map_or(0, |before| {
                before.lease_transitions.unwrap_or_default().saturating_add(1)
            })),
            ..LeaseSpec::default()
        },
    };
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node_name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let metadata = lease.map_or_else(ObjectMeta::default, |lease| ObjectMeta {
        resource_version: lease.metadata.resource_version.clone(),
        labels: lease.metadata.labels.clone(),
        annotations: lease.metadata.annotations.clone(),
        ..ObjectMeta::default()
    });
    LeaseWrite {
        exists,
        lease: Lease {
            metadata: ObjectMeta {
                name: Some(name(group, &node_name)),
                owner_references: Some(vec![owner]),
                ..metadata
            },
            spec: Some(spec),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn lease(holder: Option<&str>, renewed: Option<&str>, seconds: Option<i32>) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some("7".into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: holder.map(Into::into),
                renew_time: renewed.map(|renewed| MicroTime(at(renewed))),
                acquire_time: renewed.map(|renewed| MicroTime(at(renewed))),
                lease_duration_seconds: seconds,
                lease_transitions: Some(4),
                ..LeaseSpec::default()
            }),
        }
    }

    const NOW: &str = "2026-01-01T12:00:00Z";

    #[test]
    fn lease_state_follows_the_holder_and_renew_time() {
        let held = |renew: &str| LeaseState::Held { renew: at(renew) };
        let to_write = LeaseState::ToWrite { exists: true };
        for (holder, renewed, seconds, state) in [
            (
                Some(LEASE_HOLDER),
                Some("2026-01-01T11:59:00Z"),
                Some(3600),
                held("2026-01-01T12:19:00Z"),
            ),
            (
                Some(LEASE_HOLDER),
                Some("2026-01-01T11:40:00Z"),
                Some(3600),
                to_write.clone(),
            ),
            (
                Some(LEASE_HOLDER),
                Some("2026-01-01T10:40:00Z"),
                Some(3600),
                to_write.clone(),
            ),
            (
                Some("else"),
                Some("2026-01-01T11:59:00Z"),
                Some(120),
                LeaseState::HeldByOther {
                    holder: "else".into(),
                    until: at("2026-01-01T12:01:00Z"),
                },
            ),
            (Some("else"), Some("2026-01-01T11:59:00Z"), Some(30), to_write.clone()),
            // A Lease that was renewed in the future, or lacks a field, is not valid.
            (Some("else"), Some("2026-01-01T12:00:01Z"), Some(3600), to_write.clone()),
            (Some("else"), None, Some(3600), to_write.clone()),
            (Some("else"), Some(NOW), None, to_write.clone()),
            (None, Some(NOW), Some(3600), to_write.clone()),
            (Some(""), Some(NOW), Some(3600), to_write),
        ] {
            let lease = lease(holder, renewed, seconds);
            assert_eq!(judge(Some(&lease), at(NOW)), state, "{lease:?}");
        }
        assert_eq!(judge(None, at(NOW)), LeaseState::ToWrite { exists: false });
    }

    #[test]
    fn lease_is_lost_by_refusals_and_not_by_transient_failures() {
        let since = |text: &str| Some(at(text));
        for (is_refused, refused_since, lost) in [
            (true, since("2026-01-01T11:50:00Z"), true),
            (true, since("2026-01-01T11:50:01Z"), false),
            (true, None, false),
            (false, since("2026-01-01T11:50:00Z"), false),
            (false, since("2026-01-01T01:00:00Z"), false),
            (false, None, false),
        ] {
            let last = LeaseFailure {
                why: "no".into(),
                is_refused,
            };
            assert_eq!(
                is_lost(&last, refused_since, at(NOW)),
                lost,
                "{last:?} {refused_since:?}"
            );
        }
    }

    #[test]
    fn acquisition_counts_as_transition_and_renewal_does_not() {
        let node: Node =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "Node1", "uid": "u"}})).unwrap();
        let group = Group::Medik8s;
        let spec = |lease: Option<&Lease>| write(group, lease, lease.is_some(), &node, at(NOW)).lease.spec.unwrap();
        let first = spec(None);
        assert_eq!(
            (first.lease_transitions, first.lease_duration_seconds),
            (Some(0), Some(3600))
        );
        assert_eq!(first.acquire_time, first.renew_time);
        let renewed = spec(Some(&lease(
            Some(LEASE_HOLDER),
            Some("2026-01-01T11:40:00Z"),
            Some(3600),
        )));
        assert_eq!(
            (renewed.lease_transitions, renewed.acquire_time, renewed.renew_time),
            (
                Some(4),
                Some(MicroTime(at("2026-01-01T11:40:00Z"))),
                Some(MicroTime(at(NOW)))
            )
        );
        let taken = spec(Some(&lease(Some("else"), Some("2026-01-01T10:00:00Z"), Some(60))));
        assert_eq!(
            (
                taken.lease_transitions,
                taken.acquire_time,
                taken.holder_identity.as_deref()
            ),
            (Some(5), Some(MicroTime(at(NOW))), Some(LEASE_HOLDER))
        );
        for (group, name) in [(Group::Medik8s, "node-node1"), (Group::KubeVirt, "Node1")] {
            let write = write(group, Some(&lease(None, None, None)), true, &node, at(NOW)).lease;
            assert_eq!(write.metadata.name.as_deref(), Some(name));
            assert_eq!(write.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(write.metadata.owner_references.unwrap()[0].uid, "u");
        }
    }

    #[test]
    fn own_lease_is_deleted_or_emptied_per_api_group() {
        let ours = lease(Some(LEASE_HOLDER), Some(NOW), Some(3600));
        let theirs = lease(Some("else"), Some(NOW), Some(3600));
        assert_eq!(release(Group::Medik8s, Some(&ours)), Some(LeaseRelease::Delete));
        let Some(LeaseRelease::Empty(empty)) = release(Group::KubeVirt, Some(&ours)) else {
            panic!("it is not emptied");
        };
        let spec = LeaseSpec {
            holder_identity: Some(LEASE_HOLDER.into()),
            ..LeaseSpec::default()
        };
        assert_eq!(empty.spec, Some(spec));
        assert_eq!(
            empty.metadata, ours.metadata,
            "a Lease that was changed since is not replaced"
        );
        assert_eq!(release(Group::KubeVirt, Some(&empty)), None, "it is emptied once");
        assert_eq!(judge(Some(&empty), at(NOW)), LeaseState::ToWrite { exists: true });
        for group in Group::ALL {
            assert_eq!(release(group, Some(&theirs)), None);
            assert_eq!(release(group, None), None);
        }
    }
}
