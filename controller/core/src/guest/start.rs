//! When an agent starts a guest, so that an instance's guest is started once and runs in one pod.
//!
//! An agent may see the instance and the pod late, and may be replaced between a start and its report. So neither the
//! status nor libvirt suffices alone. `tests/start_search` leaves out each condition and searches for a guest that
//! runs twice.

use drydock_api::kubevirt::{Phase, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;

/// The domain of a guest in its pod's libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FoundDomain {
    /// No domain.
    Absent,
    /// A domain that this libvirtd has never started. A domain that ran under an earlier libvirtd and has ended is
    /// shown like this, too; no agent encounters it, since a launcher starts no libvirtd after its guest has ended.
    Defined,
    /// A domain that runs or has run.
    HasRun,
}

/// The facts by which an agent decides whether to start a guest in a pod of its node that the controller has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObservedStart {
    /// The phase of the instance.
    pub phase: Phase,
    /// The agent has reported that nothing runs in the pod any more.
    pub end_reported: bool,
    /// The instance is being deleted.
    pub instance_deleted: bool,
    /// The pod is being deleted.
    pub pod_deleted: bool,
    /// The domain in the pod's libvirt.
    pub domain: FoundDomain,
}

impl ObservedStart {
    /// Returns the facts that the objects show.
    pub fn of(instance: &VirtualMachineInstance, pod: &Pod, domain: FoundDomain) -> Self {
        let status = instance.status.as_ref();
        let drydock = status.and_then(|status| status.drydock.as_ref());
        let pod_uid = pod.metadata.uid.as_ref();
        Self {
            phase: status.and_then(|status| status.phase).unwrap_or_default(),
            end_reported: drydock
                .is_some_and(|drydock| pod_uid.is_some_and(|pod_uid| drydock.ended_pods.contains(pod_uid))),
            instance_deleted: instance.metadata.deletion_timestamp.is_some(),
            pod_deleted: pod.metadata.deletion_timestamp.is_some(),
            domain,
        }
    }
}

/// Returns whether the agent may start the guest.
pub fn may_start(observed: &ObservedStart) -> bool {
    // From Running on, the guest has run: on this node, or on the node from which it is about to arrive.
    observed.phase < Phase::Running
        // The controller relies on the report, and may have started another instance.
        && !observed.end_reported
        // The guest has run, and its start may not be reported yet.
        && observed.domain != FoundDomain::HasRun
        // A guest that is to end at once would only boot and be destroyed, but would have run once nevertheless.
        && !observed.instance_deleted
        && !observed.pod_deleted
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const FREE: ObservedStart = ObservedStart {
        phase: Phase::Scheduled,
        end_reported: false,
        instance_deleted: false,
        pod_deleted: false,
        domain: FoundDomain::Absent,
    };

    #[test]
    fn guest_starts_only_if_never_started_before() {
        let phase = |phase| ObservedStart { phase, ..FREE };
        let domain = |domain| ObservedStart { domain, ..FREE };
        let end_reported = ObservedStart {
            end_reported: true,
            ..FREE
        };
        let instance_deleted = ObservedStart {
            instance_deleted: true,
            ..FREE
        };
        let pod_deleted = ObservedStart {
            pod_deleted: true,
            ..FREE
        };
        for (observed, expected) in [
            (FREE, true),
            (phase(Phase::Pending), true),
            (phase(Phase::Scheduling), true),
            (phase(Phase::Running), false),
            (phase(Phase::Succeeded), false),
            (phase(Phase::Failed), false),
            (phase(Phase::Unknown), false),
            (domain(FoundDomain::Defined), true),
            (domain(FoundDomain::HasRun), false),
            (end_reported, false),
            (instance_deleted, false),
            (pod_deleted, false),
        ] {
            assert_eq!(may_start(&observed), expected, "{observed:?}");
        }
    }

    #[test]
    fn facts_follow_the_objects() {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let status = |phase: Value, ended: Value| json!({"phase": phase, "drydock": {"endedPods": ended}});
        let pending = ObservedStart {
            phase: Phase::Pending,
            ..FREE
        };
        let end_reported = ObservedStart {
            end_reported: true,
            ..FREE
        };
        let both_deleted = ObservedStart {
            instance_deleted: true,
            pod_deleted: true,
            ..FREE
        };
        for (status, metadata, expected) in [
            (json!({}), json!({}), pending),
            (json!({"phase": "Scheduled"}), json!({}), FREE),
            (status(json!("Scheduled"), json!(["another"])), json!({}), FREE),
            (
                status(json!("Scheduled"), json!(["another", "p"])),
                json!({}),
                end_reported,
            ),
            (json!({"phase": "Scheduled"}), deleted, both_deleted),
        ] {
            let instance = json!({"metadata": metadata, "spec": {"domain": {"devices": {}}}, "status": status});
            let mut pod = json!({"metadata": metadata});
            pod["metadata"]["uid"] = json!("p");
            let found = ObservedStart::of(
                &serde_json::from_value(instance).unwrap(),
                &serde_json::from_value(pod).unwrap(),
                FoundDomain::Absent,
            );
            assert_eq!(found, expected, "{status} {metadata}");
        }
    }
}
