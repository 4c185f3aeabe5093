//! Observes a migration: its instance, pods and nodes, the time in its current phase, and the messages that follow
//! from these.

use std::sync::Arc;

use drydock_api::kubevirt::{
    VirtualMachineInstance, VirtualMachineInstanceMigration,
    migration::{MigrationPhase, TargetState},
};
use drydock_core::{
    instance::{NodeState, ending::ended},
    launcher_pod::pending::StartingPod,
    migration::{
        cluster::MigrationFailure,
        deadlines::{DeadlinePhase, PhaseDeadline, TARGET_POD_NOT_READY, TargetPodProgress as PodOnItsWay},
        observed::{MigrationFacts, is_preceded, pod_of},
        queue::WaitReason,
        record::MigrationRecord,
        rejected::{Rejected, rejected},
        sides::{source, target},
        status::{Sides, StatusChange, WAITING, Waiting, configuration, guest},
    },
};
use drydock_runtime::Key;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{MigrationTask, STATUS_COALESCE, slot_scheduler::SlotScheduler};
use crate::{migrations::instance_of, nodes::NodePair, requests::api_of};

/// The observed state of one migration.
pub(super) struct ObservedMigration {
    pub(super) instance: Option<Arc<VirtualMachineInstance>>,
    pub(super) instance_confirmed: bool,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) pods_confirmed: bool,
    pub(super) source_node: NodeState,
    pub(super) target_node: NodeState,
    pub(super) another: bool,
    pub(super) deadline: Option<PhaseDeadline>,
    /// What keeps the target pod from running.
    pub(super) pending: StartingPod,
    /// Set if the kubelet of its node rejected the target pod and another one may be created.
    pub(super) rejected: Option<Rejected>,
}

impl MigrationTask {
    pub(super) async fn gather(
        &self,
        key: &Key,
        migration: &VirtualMachineInstanceMigration,
        now: Timestamp,
    ) -> kube::Result<ObservedMigration> {
        let instance_key = instance_of(key, migration);
        let mut instance = self.instances.get(&instance_key);
        let mut instance_confirmed = false;
        if instance.is_none() {
            let api = api_of::<VirtualMachineInstance>(&self.client, key);
            instance = api.get_opt(&instance_key.name).await?.map(Arc::new);
            instance_confirmed = instance.is_none();
        }
        let pods = instance
            .as_ref()
            .map(|instance| self.launchers.of(instance))
            .unwrap_or_default();
        let record = MigrationRecord::of(migration);
        let node_state = |name: Option<String>, matters: bool| async move {
            match name {
                Some(name) if matters => self.launchers.nodes.state(&name).await,
                _ => Ok(NodeState::Unknown),
            }
        };
        let source_matters = !record.is_over() || record.is_kept_for_source();
        let source_node = node_state(source(migration).and_then(|side| side.node.clone()), source_matters).await?;
        let target_node = node_state(target(migration).and_then(|side| side.node.clone()), !record.is_over()).await?;
        let another = is_preceded(migration, &self.migrations.newest_of_instance(&instance_key));
        let pending = match pod_of(migration, &pods) {
            Some(pod) if !MigrationRecord::of(migration).has_sides() => self.launchers.pending(pod, now).await,
            _ => StartingPod::default(),
        };
        let deadline = self.deadline(migration, &pods, &pending);
        let rejected = rejected(migration, &pods);
        Ok(ObservedMigration {
            instance,
            instance_confirmed,
            pods,
            pods_confirmed: false,
            source_node,
            target_node,
            another,
            deadline,
            pending,
            rejected,
        })
    }

    /// Returns the deadline of the phase that a migration is in.
    fn deadline(
        &self,
        migration: &VirtualMachineInstanceMigration,
        pods: &[Arc<Pod>],
        pending: &StartingPod,
    ) -> Option<PhaseDeadline> {
        let status = migration.status.as_ref()?;
        let phase = status.phase?;
        let since = since(migration, phase)?;
        let annotations = migration.metadata.annotations.clone().unwrap_or_default();
        let (part, since) = match phase {
            MigrationPhase::Scheduling => {
                let pod = pod_of(migration, pods)?;
                let made = pod.metadata.creation_timestamp.as_ref().map_or(since, |made| made.0);
                let hindrance = pending.hindrance.as_ref();
                let unschedulable = hindrance.is_some_and(|hindrance| hindrance.unscheduled);
                (
                    DeadlinePhase::TargetPod(PodOnItsWay {
                        unschedulable,
                        ready: false,
                    }),
                    made,
                )
            }
            // The guest moves, although the phase may not show it yet.
            _ if MigrationRecord::of(migration).source.is_some() => return None,
            MigrationPhase::PreparingTarget => (DeadlinePhase::Preparing, since),
            MigrationPhase::TargetReady => (DeadlinePhase::Starting, since),
            _ => return None,
        };
        self.deadlines.deadline(part, since, &annotations)
    }

    /// Returns both sides, which are recorded only once; `None` if a part of them is unknown.
    pub(super) fn sides(
        &self,
        migration: &VirtualMachineInstanceMigration,
        observed: &ObservedMigration,
    ) -> Option<Sides> {
        let instance = observed.instance.as_ref()?;
        let status = instance.status.as_ref()?;
        let here = status.node_name.as_deref()?;
        let pod = |pod: &Pod| {
            Some([
                pod.spec.as_ref()?.node_name.clone()?,
                pod.metadata.name.clone()?,
                pod.metadata.uid.clone()?,
            ])
        };
        let arrives = pod_of(migration, &observed.pods)?;
        let leaves = observed.pods.iter().find(|candidate| {
            candidate.metadata.uid != arrives.metadata.uid
                && candidate
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.as_deref() == Some(here))
                && ended(candidate).is_none()
        })?;
        let source = self.launchers.nodes.pair(here);
        Some(Sides {
            source: pod(leaves)?,
            target: pod(arrives)?,
            guest: guest(instance, arrives, source.as_ref().map(NodePair::view).as_ref()),
            configuration: configuration(&self.launchers.configuration.get().migrations),
        })
    }

    /// Returns what a migration waits for, with a message that changes only when the reason does.
    pub(super) fn waiting(
        &self,
        uid: &str,
        record: &MigrationRecord,
        refused: Option<&str>,
        observed: &ObservedMigration,
    ) -> Option<Waiting> {
        if let Some(refused) = refused {
            return Some(Waiting::of_refusal(refused));
        }
        if let Some(rejected) = observed.rejected.as_ref().filter(|_| !record.has_sides()) {
            return Some(Waiting::of_rejection(rejected));
        }
        if record.phase == Some(MigrationPhase::Scheduling)
            && let Some(hindrance) = &observed.pending.hindrance
        {
            return Some(Waiting::of_target_pod(hindrance));
        }
        if record.has_sides() {
            return None;
        }
        let wait = self.turns.wait(uid)?;
        Some(Waiting {
            reason: wait.reason.as_str().into(),
            message: wait.to_string(),
        })
    }
}

impl ObservedMigration {
    pub(super) fn facts<'a>(
        &'a self,
        migration: &'a VirtualMachineInstanceMigration,
        turns: &SlotScheduler,
        uid: &str,
        now: Timestamp,
    ) -> MigrationFacts<'a> {
        MigrationFacts {
            migration,
            instance: self.instance.as_deref(),
            instance_confirmed: self.instance_confirmed,
            pods: &self.pods,
            pods_confirmed: self.pods_confirmed,
            source_node: self.source_node,
            target_node: self.target_node,
            another: self.another,
            may_place: turns.may_place(uid) && self.rejected.as_ref().is_none_or(|rejected| rejected.again_at <= now),
            has_slot: turns.has_slot(uid),
            overdue: self.deadline.as_ref().is_some_and(|deadline| deadline.has_passed(now)),
        }
    }
}

/// Returns when a migration first reached a phase, in whole seconds.
fn since(migration: &VirtualMachineInstanceMigration, phase: MigrationPhase) -> Option<Timestamp> {
    let mut transitions = migration.status.as_ref()?.phase_transition_timestamps.iter();
    let reached = transitions.find(|transition| transition.phase == phase)?;
    Some(reached.phase_transition_timestamp)
}

/// Returns the time by which a phase has to be written that may be over within a moment: the guest moves, or its
/// target pod starts. Until then no one can act on the phase. Returns `None` if anything else has changed: that is
/// written at once.
pub(super) fn may_be_over_by(
    migration: &VirtualMachineInstanceMigration,
    change: &StatusChange,
    made: Option<Timestamp>,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Timestamp> {
    if change.abort.is_some() || change.source_gone || change.fail.is_some() {
        return None;
    }
    let reported = waits_for(migration);
    // While its pod starts, it does not matter which limit it waits for, or that it no longer waits: that may change
    // soon.
    let is_its_turn = reported
        .as_ref()
        .is_none_or(|reported| WaitReason::is_one(&reported.reason));
    let is_news = match change.enter.as_slice() {
        [.., MigrationPhase::Scheduling] if is_its_turn => {
            let waiting = change.waiting.as_ref();
            waiting.is_some_and(|waiting| !WaitReason::is_one(&waiting.reason))
        }
        _ => change.waiting != reported,
    };
    if is_news {
        return None;
    }
    let began = match change.enter.as_slice() {
        [MigrationPhase::TargetReady] => since(migration, MigrationPhase::PreparingTarget)?,
        [.., MigrationPhase::Running] => source(migration)?.start_timestamp?,
        [.., MigrationPhase::Scheduling] => match made {
            Some(made) => made,
            None => pod_of(migration, pods)?.metadata.creation_timestamp.as_ref()?.0,
        },
        _ => return None,
    };
    // A time in the future comes from a clock that is ahead, and would defer the write by as much.
    let until = began.checked_add(STATUS_COALESCE).ok()?;
    (began <= now && now < until).then_some(until)
}

/// Returns the wait that the condition of a migration reports.
fn waits_for(migration: &VirtualMachineInstanceMigration) -> Option<Waiting> {
    let mut conditions = migration.status.iter().flat_map(|status| &status.conditions);
    let reported = conditions.find(|condition| condition.type_ == WAITING)?;
    Some(Waiting {
        reason: reported.reason.clone().unwrap_or_default(),
        message: reported.message.clone().unwrap_or_default(),
    })
}

/// Returns details beyond the failure itself: the message of a side, or the deadline that has passed.
pub(super) fn detail(
    failure: MigrationFailure,
    migration: &VirtualMachineInstanceMigration,
    observed: &ObservedMigration,
) -> String {
    let status = migration.status.clone().unwrap_or_default();
    let source = status.source.unwrap_or_default();
    let target = status.target.unwrap_or_default();
    let side_message = match failure {
        MigrationFailure::Overdue => observed.deadline.as_ref().map(|deadline| deadline.sentence.clone()),
        MigrationFailure::GuestStayed | MigrationFailure::GuestEnded => {
            let refused = target.message.filter(|_| target.state == Some(TargetState::Refused));
            refused.or(source.message)
        }
        // If the target was lost without a message, the error of the source's libvirt explains it.
        MigrationFailure::TargetLost => target.message.or(source.message),
        MigrationFailure::TargetRefused | MigrationFailure::LostOnTarget => target.message,
        MigrationFailure::PodEnded => pod_of(migration, &observed.pods)
            .and_then(|pod| ended(pod))
            .map(|ended| ended.message),
        _ => None,
    };
    side_message.unwrap_or_default()
}

/// Returns the reason of a failure if it is not the failure's own: the next attempt depends on whether the target pod
/// got a node and did not run there.
pub(super) fn reason(failure: MigrationFailure, observed: &ObservedMigration) -> Option<&'static str> {
    let deadline = observed
        .deadline
        .as_ref()
        .filter(|_| failure == MigrationFailure::Overdue)?;
    (deadline.reason == TARGET_POD_NOT_READY).then_some(TARGET_POD_NOT_READY)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Name, reported wait, phases entered, actual wait, and whether the write is deferred.
    type Case<'a> = (&'a str, Option<&'a str>, &'a [MigrationPhase], Option<Waiting>, bool);

    fn waits(reason: &str) -> Waiting {
        Waiting {
            reason: reason.into(),
            message: "5".into(),
        }
    }

    fn migration(reported: Option<&str>) -> VirtualMachineInstanceMigration {
        let conditions: Vec<Value> = reported
            .map(|reason| json!({"type": WAITING, "status": "True", "reason": reason, "message": "5"}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "m"},
            "spec": {"vmiName": "vm"},
            "status": {
                "conditions": conditions,
                "phaseTransitionTimestamps":
                    [{"phase": "PreparingTarget", "phaseTransitionTimestamp": "1970-01-01T00:01:40Z"}],
                "source": {"node": "a", "startTimestamp": "1970-01-01T00:01:40Z"},
            },
        }))
        .unwrap()
    }

    #[test]
    fn passing_phase_is_written_only_beside_another_change() {
        use MigrationPhase::{Pending, PreparingTarget, Running, Scheduled, Scheduling, TargetReady};
        let limit = || Some(waits("SourceNodeLimit"));
        let cases: Vec<Case> = vec![
            ("its first word", None, &[Pending, Scheduling], None, true),
            ("and there is no slot yet", None, &[Pending, Scheduling], limit(), true),
            (
                "but no node either",
                None,
                &[Pending, Scheduling],
                Some(waits("TargetPodUnschedulable")),
                false,
            ),
            ("it waits before its pod is made", None, &[Pending], limit(), false),
            ("it waits on", Some("SourceNodeLimit"), &[Scheduling], limit(), true),
            (
                "it waits for another turn",
                Some("PlacementLimit"),
                &[Scheduling],
                limit(),
                true,
            ),
            ("it waits no more", Some("SourceNodeLimit"), &[Scheduling], None, true),
            (
                "it is refused no more",
                Some("RejectedByResourceQuota"),
                &[Scheduling],
                None,
                false,
            ),
            (
                "it has had its turn, and no node",
                Some("PlacementLimit"),
                &[Scheduling],
                Some(waits("TargetPodUnschedulable")),
                false,
            ),
            (
                "its pod is ready",
                Some("SourceNodeLimit"),
                &[Scheduling, Scheduled],
                limit(),
                false,
            ),
            ("its sides are named", None, &[PreparingTarget], None, false),
            ("its target is ready", None, &[TargetReady], None, true),
            ("it moves", None, &[TargetReady, Running], None, true),
            (
                "it moves, and was not known to",
                Some("ClusterLimit"),
                &[Running],
                None,
                false,
            ),
        ];
        let begun = Timestamp::from_second(100).unwrap();
        for (name, reported, enter, waiting, quiet) in cases {
            let change = StatusChange {
                enter: enter.to_vec(),
                waiting,
                ..StatusChange::default()
            };
            let migration = migration(reported);
            let by = |now| may_be_over_by(&migration, &change, Some(begun), &[], now);
            assert_eq!(by(begun), quiet.then(|| begun + STATUS_COALESCE), "{name}");
            assert_eq!(by(begun + STATUS_COALESCE), None, "{name}, for long");
            // The time comes from a clock that is ahead.
            assert_eq!(by(begun - STATUS_COALESCE), None, "{name}, in the future");
        }
        let aborted = StatusChange {
            enter: vec![TargetReady],
            source_gone: true,
            ..StatusChange::default()
        };
        assert_eq!(
            may_be_over_by(&migration(None), &aborted, Some(begun), &[], begun),
            None
        );
    }
}
