//! What is known of a migration: its instance, pods and nodes, how long it has been in its phase, and what can be
//! said of that.

use std::sync::Arc;

use drydock_api::kubevirt::{
    VirtualMachineInstance, VirtualMachineInstanceMigration,
    migration::{MigrationPhase, TargetState},
};
use drydock_core::{
    instance::NodeState,
    migration::{
        cluster::Failure,
        deadlines::{Consequence, Deadline, Part, TargetPod as PodOnItsWay},
        observed::{Facts, pod_of, source, target},
        record::Record,
        status::{Change, Sides, Waiting, configuration, guest},
    },
};
use drydock_runtime::Key;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use super::{
    BRIEF, MigrationTask,
    turns::{Turns, is_unschedulable},
};
use crate::migrations::instance_of;

/// What is gathered of one migration.
pub(super) struct Gathered {
    pub(super) instance: Option<Arc<VirtualMachineInstance>>,
    pub(super) instance_confirmed: bool,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) pods_confirmed: bool,
    pub(super) source_node: NodeState,
    pub(super) target_node: NodeState,
    pub(super) another: bool,
    pub(super) deadline: Option<Deadline>,
}

impl MigrationTask {
    pub(super) async fn gather(
        &self,
        key: &Key,
        migration: &VirtualMachineInstanceMigration,
    ) -> kube::Result<Gathered> {
        let instance_key = instance_of(key, migration);
        let mut instance = self.instances.get(&instance_key);
        let mut instance_confirmed = false;
        if instance.is_none() {
            let api = Api::<VirtualMachineInstance>::namespaced(
                self.client.clone(),
                key.namespace.as_deref().unwrap_or_default(),
            );
            instance = api.get_opt(&instance_key.name).await?.map(Arc::new);
            instance_confirmed = instance.is_none();
        }
        let pods = instance
            .as_ref()
            .map(|instance| self.launchers.of(instance))
            .unwrap_or_default();
        let node_state = |name: Option<String>| async move {
            match name {
                Some(name) if !Record::of(migration).is_over() => self.launchers.nodes.state(&name).await,
                _ => Ok(NodeState::Unknown),
            }
        };
        let source_node = node_state(source(migration).and_then(|side| side.node.clone())).await?;
        let target_node = node_state(target(migration).and_then(|side| side.node.clone())).await?;
        let age = |migration: &VirtualMachineInstanceMigration| {
            (migration.metadata.creation_timestamp.clone(), migration.uid())
        };
        let another =
            self.migrations.of_instance(&instance_key).iter().any(|other| {
                !Record::of(other).is_over() && other.uid() != migration.uid() && age(other) < age(migration)
            });
        let deadline = self.deadline(migration, &pods);
        Ok(Gathered {
            instance,
            instance_confirmed,
            pods,
            pods_confirmed: false,
            source_node,
            target_node,
            another,
            deadline,
        })
    }

    /// When the phase that a migration is in has taken too long.
    fn deadline(&self, migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> Option<Deadline> {
        let status = migration.status.as_ref()?;
        let phase = status.phase?;
        let since = since(migration, phase)?;
        let annotations = migration.metadata.annotations.clone().unwrap_or_default();
        let (part, since) = match phase {
            MigrationPhase::Scheduling => {
                let pod = pod_of(migration, pods)?;
                let made = pod.metadata.creation_timestamp.as_ref().map_or(since, |made| made.0);
                let unschedulable = is_unschedulable(pod);
                (
                    Part::TargetPod(PodOnItsWay {
                        unschedulable,
                        ready: false,
                    }),
                    made,
                )
            }
            // It moves, which may not have been written.
            _ if Record::of(migration).source.is_some() => return None,
            MigrationPhase::PreparingTarget => (Part::Preparing, since),
            MigrationPhase::TargetReady => (Part::Starting, since),
            _ => return None,
        };
        let deadline = self.deadlines.deadline(part, since, &annotations)?;
        (deadline.then == Consequence::Abort).then_some(deadline)
    }

    /// Both sides as they are named once; `None` if something of them is not known.
    pub(super) fn sides(&self, migration: &VirtualMachineInstanceMigration, gathered: &Gathered) -> Option<Sides> {
        let instance = gathered.instance.as_ref()?;
        let status = instance.status.as_ref()?;
        let here = status.node_name.as_deref()?;
        let pod = |pod: &Pod| {
            Some([
                pod.spec.as_ref()?.node_name.clone()?,
                pod.metadata.name.clone()?,
                pod.metadata.uid.clone()?,
            ])
        };
        let arrives = pod_of(migration, &gathered.pods)?;
        let leaves = gathered.pods.iter().find(|candidate| {
            candidate.metadata.uid != arrives.metadata.uid
                && candidate
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.as_deref() == Some(here))
                && drydock_core::instance::ending::ended(candidate).is_none()
        })?;
        Some(Sides {
            source: pod(leaves)?,
            target: pod(arrives)?,
            guest: guest(instance, arrives),
            configuration: configuration(&self.launchers.configuration.get().migrations),
        })
    }

    /// What a migration waits for, in words that change only when the reason does.
    pub(super) fn waiting(
        &self,
        uid: &str,
        record: &Record,
        refused: Option<&str>,
        gathered: &Gathered,
    ) -> Option<Waiting> {
        if let Some(refused) = refused {
            let quota = refused.contains("exceeded quota");
            return Some(Waiting {
                reason: if quota {
                    "RejectedByResourceQuota"
                } else {
                    "FailedCreate"
                }
                .into(),
                message: refused.into(),
            });
        }
        if record.phase == Some(MigrationPhase::Scheduling)
            && let Some(message) = gathered.unschedulable()
        {
            return Some(Waiting {
                reason: "TargetPodUnschedulable".into(),
                message,
            });
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

impl Gathered {
    pub(super) fn facts<'a>(
        &'a self,
        migration: &'a VirtualMachineInstanceMigration,
        turns: &Turns,
        uid: &str,
        now: Timestamp,
    ) -> Facts<'a> {
        Facts {
            migration,
            instance: self.instance.as_deref(),
            instance_confirmed: self.instance_confirmed,
            pods: &self.pods,
            pods_confirmed: self.pods_confirmed,
            source_node: self.source_node,
            target_node: self.target_node,
            another: self.another,
            may_place: turns.may_place(uid),
            has_slot: turns.has_slot(uid),
            overdue: self.deadline.as_ref().is_some_and(|deadline| deadline.has_passed(now)),
        }
    }

    /// What the scheduler says of a target pod that no node takes.
    fn unschedulable(&self) -> Option<String> {
        self.pods.iter().find_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
            (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
        })
    }
}

/// When a migration first reached a phase, in whole seconds.
fn since(migration: &VirtualMachineInstanceMigration, phase: MigrationPhase) -> Option<Timestamp> {
    let mut transitions = migration.status.as_ref()?.phase_transition_timestamps.iter();
    let reached = transitions.find(|transition| transition.phase == phase)?;
    Some(reached.phase_transition_timestamp)
}

/// When at the latest a phase has to be written that may be over within the next moment: the guest moves,
/// or its target's pod starts. Nobody can do anything about it until then; what there is to say beside
/// the phase is said at once.
pub(super) fn may_be_over_by(
    migration: &VirtualMachineInstanceMigration,
    change: &Change,
    made: Option<Timestamp>,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Timestamp> {
    if change.abort.is_some() || change.source_gone || change.fail.is_some() || change.waiting.is_some() {
        return None;
    }
    let began = match change.enter.as_slice() {
        [MigrationPhase::TargetReady] => since(migration, MigrationPhase::PreparingTarget)?,
        [.., MigrationPhase::Running] => source(migration)?.start_timestamp?,
        // Its first word: one that waited for its turn has been told of already.
        [MigrationPhase::Pending, MigrationPhase::Scheduling] => match made {
            Some(made) => made,
            None => pod_of(migration, pods)?.metadata.creation_timestamp.as_ref()?.0,
        },
        _ => return None,
    };
    began.checked_add(BRIEF).ok().filter(|at| *at > now)
}

/// What is known beyond the failure itself: what a side has said, or which deadline has passed.
pub(super) fn detail(failure: Failure, migration: &VirtualMachineInstanceMigration, gathered: &Gathered) -> String {
    let status = migration.status.clone().unwrap_or_default();
    let source = status.source.unwrap_or_default();
    let target = status.target.unwrap_or_default();
    let said = match failure {
        Failure::Overdue => gathered.deadline.as_ref().map(|deadline| deadline.sentence.clone()),
        Failure::GuestStayed | Failure::GuestEnded => {
            let refused = target.message.filter(|_| target.state == Some(TargetState::Refused));
            refused.or(source.message)
        }
        // A target that was lost without a word: what the source's libvirt says of that.
        Failure::TargetLost => target.message.or(source.message),
        Failure::TargetRefused | Failure::LostOnTarget => target.message,
        _ => None,
    };
    said.unwrap_or_default()
}
