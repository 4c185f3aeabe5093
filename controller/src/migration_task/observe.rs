//! Observes a migration: its instance, pods and nodes, its slot, and its obstacles.

use std::sync::Arc;

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use drydock_core::{
    instance::NodeState,
    launcher_pod::pending::StartingPod,
    migration::{
        awaited_agent::AwaitedAgent,
        deadlines::PhaseDeadline,
        observed::{MigrationFacts, is_preceded},
        record::MigrationRecord,
        rejected::{Rejected, may_create, rejected},
        sides::{source, target},
        target_pods::pod_of,
        waiting::Obstacles,
    },
};
use drydock_runtime::Key;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{MigrationTask, slot_scheduler::SlotState};
use crate::migrations::instance_of;

/// The observed state of one migration.
pub(super) struct ObservedMigration {
    pub(super) now: Timestamp,
    pub(super) migration: VirtualMachineInstanceMigration,
    pub(super) instance: Option<Arc<VirtualMachineInstance>>,
    pub(super) instance_confirmed: bool,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) pods_confirmed: bool,
    pub(super) source_node: NodeState,
    pub(super) target_node: NodeState,
    pub(super) another: bool,
    pub(super) slot: SlotState,
    pub(super) deadline: Option<PhaseDeadline>,
    /// The agent that has to act next.
    pub(super) awaited: Option<AwaitedAgent>,
    /// The state of the target pod while it starts.
    pub(super) pending: StartingPod,
    /// Rejection of the target pod by the kubelet of its node, if another target pod may be created.
    pub(super) rejected: Option<Rejected>,
}

impl MigrationTask {
    /// Reads the inputs of a migration's plan.
    ///
    /// # Errors
    /// If a request to the API server fails.
    pub(super) async fn gather(
        &self,
        key: &Key,
        migration: VirtualMachineInstanceMigration,
        now: Timestamp,
    ) -> kube::Result<ObservedMigration> {
        let instance_key = instance_of(key, &migration);
        let mut instance = self.context.instances.get(&instance_key);
        let mut instance_confirmed = false;
        if instance.is_none() {
            let api = self.context.api::<VirtualMachineInstance>(key);
            instance = api.get_opt(&instance_key.name).await?.map(Arc::new);
            instance_confirmed = instance.is_none();
        }
        let pods = instance
            .as_ref()
            .map(|instance| self.context.launchers.of(instance))
            .unwrap_or_default();
        let record = MigrationRecord::of(&migration);
        let node_state = |name: Option<String>, matters: bool| async move {
            match name {
                Some(name) if matters => self.context.launchers.nodes.state(&name).await,
                _ => Ok(NodeState::Unknown),
            }
        };
        let source_matters = !record.is_over() || record.is_kept_for_source();
        let source_node = node_state(source(&migration).and_then(|side| side.node.clone()), source_matters).await?;
        let target_node = node_state(target(&migration).and_then(|side| side.node.clone()), !record.is_over()).await?;
        let pod = pod_of(&migration, &pods);
        let pending = match pod {
            Some(pod) if !record.has_sides() => self.context.launchers.pending(pod, now).await,
            _ => StartingPod::default(),
        };
        let unschedulable = pending.hindrance.as_ref().is_some_and(|found| found.unscheduled);
        Ok(ObservedMigration {
            now,
            instance,
            instance_confirmed,
            pods_confirmed: false,
            source_node,
            target_node,
            another: is_preceded(&migration, &self.context.migrations.newest_of_instance(&instance_key)),
            slot: self
                .turns
                .state_of(migration.metadata.uid.as_deref().unwrap_or_default()),
            deadline: self
                .deadlines
                .of_migration(&migration, pod.map(Arc::as_ref), unschedulable),
            awaited: AwaitedAgent::of_migration(&migration),
            rejected: rejected(&migration, &pods),
            pending,
            migration,
            pods,
        })
    }
}

impl ObservedMigration {
    pub(super) fn facts(&self) -> MigrationFacts<'_> {
        MigrationFacts {
            migration: &self.migration,
            instance: self.instance.as_deref(),
            instance_confirmed: self.instance_confirmed,
            pods: &self.pods,
            pods_confirmed: self.pods_confirmed,
            source_node: self.source_node,
            target_node: self.target_node,
            another: self.another,
            may_place: may_create(self.slot.may_place, self.rejected.as_ref(), self.now),
            has_slot: self.slot.has_slot,
            overdue: self
                .deadline
                .as_ref()
                .is_some_and(|deadline| deadline.has_passed(self.now)),
        }
    }

    /// Returns the obstacles of the migration. `refused` is the last refusal of its target pod.
    pub(super) fn obstacles<'a>(&'a self, refused: Option<(&'a str, Timestamp)>) -> Obstacles<'a> {
        Obstacles {
            refused,
            rejected: self.rejected.as_ref(),
            starting: Some(&self.pending),
            queued: self.slot.wait,
            deadline: self.deadline.as_ref(),
            awaited: self.awaited.as_ref(),
        }
    }
}
