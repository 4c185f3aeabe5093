//! Builds the input of the controller's step function from the objects.

use std::sync::Arc;

use drydock_api::kubevirt::{
    Phase, VirtualMachineInstance, VirtualMachineInstanceMigration,
    names::{MIGRATION_FINALIZER, conditions::LIVE_MIGRATABLE},
};
use drydock_api::launcher::{CONTAINER, GuestOutcome};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};

use super::{
    cluster::{ClusterView, GuestLocation, Instance, SourcePod, TargetPodState, guest_location},
    record::MigrationRecord,
    rejected::rejected,
    sides::{source, target},
    target_pods::pod_of,
};
use crate::instance::{
    Moving, NodeState,
    ending::{ended, rejection},
};

/// The controller's knowledge of one migration.
#[derive(Clone, Copy, Debug)]
pub struct MigrationFacts<'a> {
    /// The migration.
    pub migration: &'a VirtualMachineInstanceMigration,
    /// The VMI with the name in the migration's spec.
    pub instance: Option<&'a VirtualMachineInstance>,
    /// If `instance` is `None`: the API server confirmed that the VMI does not exist.
    pub instance_confirmed: bool,
    /// The VMI's pods.
    pub pods: &'a [Arc<Pod>],
    /// `pods` comes from a list by the API server, made after the migration was read.
    pub pods_confirmed: bool,
    /// The source node.
    pub source_node: NodeState,
    /// The target node.
    pub target_node: NodeState,
    /// Another migration of the same VMI precedes this one ([`is_preceded`]).
    pub another: bool,
    /// The queue has granted the creation of a target pod.
    pub may_place: bool,
    /// The queue has granted a slot.
    pub has_slot: bool,
    /// The deadline of the current phase has passed.
    pub overdue: bool,
}

/// Returns the input of the controller's step function.
pub fn view(facts: &MigrationFacts<'_>) -> ClusterView {
    let migration = facts.migration;
    let finalizers = migration.metadata.finalizers.as_deref().unwrap_or_default();
    ClusterView {
        record: MigrationRecord::of(migration),
        another: facts.another,
        instance: instance(facts),
        target_pod: target_pod(facts),
        source_pod: source_pod(facts),
        source_node_gone: source(migration).is_some() && facts.source_node.is_gone_for_good(),
        target_node_gone: target(migration).is_some() && facts.target_node.is_gone_for_good(),
        may_place: facts.may_place,
        has_slot: facts.has_slot,
        overdue: facts.overdue,
        has_finalizer: finalizers.iter().any(|name| name == MIGRATION_FINALIZER),
    }
}

/// Returns whether a migration is to be deleted: it has ended and was not deleted yet, and its VMI no longer exists.
pub fn is_orphaned(facts: &MigrationFacts<'_>) -> bool {
    let record = MigrationRecord::of(facts.migration);
    record.is_over() && !record.deleted && facts.instance.is_none() && facts.instance_confirmed
}

/// Returns whether another unfinished migration of the same VMI precedes this one, which then must not begin. `all` are
/// the VMI's migrations.
///
/// A migration whose target is named comes first, then the older one. Times are in whole seconds and the watch shows
/// migrations of one second in any order, so the UID decides between them: of two that wait, one precedes the other.
pub fn is_preceded(migration: &VirtualMachineInstanceMigration, all: &[Arc<VirtualMachineInstanceMigration>]) -> bool {
    fn rank(migration: &VirtualMachineInstanceMigration) -> (bool, Option<&Time>, Option<&str>) {
        let metadata = &migration.metadata;
        let waits = target(migration).is_none();
        (waits, metadata.creation_timestamp.as_ref(), metadata.uid.as_deref())
    }
    let mut unfinished = all.iter().filter(|other| !MigrationRecord::of(other).is_over());
    unfinished.any(|other| other.metadata.uid != migration.metadata.uid && rank(other) < rank(migration))
}

/// Returns the node to which a VMI has moved by a migration, even if other components have not noticed yet.
pub fn moved_to<'a>(facts: &MigrationFacts<'a>) -> Option<&'a str> {
    let to = target(facts.migration)?.node.as_deref();
    to.filter(|_| guest_location(&view(facts)) == GuestLocation::Target)
}

/// Returns the state of a VMI according to its migrations. `facts` supplies the other facts for each migration.
pub fn moving<'a>(
    migrations: &'a [Arc<VirtualMachineInstanceMigration>],
    facts: impl Fn(&'a VirtualMachineInstanceMigration) -> MigrationFacts<'a>,
) -> Moving<'a> {
    let named = || migrations.iter().filter(|migration| target(migration).is_some());
    let unfinished = || named().filter(|migration| !MigrationRecord::of(migration).is_over());
    // The guest moves by one migration, even if several have named their sides.
    let moved = unfinished().find_map(|migration| Some((migration, moved_to(&facts(migration))?)));
    let under_way = moved.map(|(migration, _)| migration).or_else(|| unfinished().next());
    let newest = under_way.or_else(|| named().max_by_key(|migration| migration.metadata.creation_timestamp.clone()));
    let begun = newest.and_then(|migration| migration.status.as_ref()?.migration_state.as_ref());
    Moving {
        under_way: under_way.is_some(),
        moved_to: moved.map(|(_, node)| node),
        state: begun,
        mode: newest.and_then(|migration| source(migration)?.mode),
        migrations,
    }
}

fn instance(facts: &MigrationFacts<'_>) -> Instance {
    let Some(instance) = facts.instance else {
        return if facts.instance_confirmed {
            Instance::Missing
        } else {
            Instance::Unknown
        };
    };
    let recorded = facts.migration.guest().and_then(|guest| guest.instance_uid.as_deref());
    if recorded.is_some_and(|uid| instance.metadata.uid.as_deref() != Some(uid)) {
        // Another VMI has the same name.
        return Instance::Missing;
    }
    let status = instance.status.clone().unwrap_or_default();
    let named = target(facts.migration).and_then(|target| target.node.as_deref());
    let moved = named.is_some() && status.node_name.as_deref() == named;
    let refused = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == LIVE_MIGRATABLE && condition.status == "False");
    match status.phase.unwrap_or_default() {
        _ if moved => Instance::Moved,
        phase if phase.is_final() => Instance::Ended,
        _ if instance.metadata.deletion_timestamp.is_some() => Instance::Ended,
        Phase::Running if refused => Instance::NotMigratable,
        Phase::Running => Instance::Running,
        _ => Instance::NotRunning,
    }
}

fn target_pod(facts: &MigrationFacts<'_>) -> TargetPodState {
    // A rejected pod may have a successor that the caches do not show yet. While the migration is not over, that does
    // not matter, because the successor is then created again.
    let is_known = |pod: &&Arc<Pod>| {
        facts.pods_confirmed || !MigrationRecord::of(facts.migration).is_over() || rejection(pod).is_none()
    };
    let Some(pod) = pod_of(facts.migration, facts.pods).filter(is_known) else {
        return if facts.pods_confirmed {
            TargetPodState::Missing
        } else {
            TargetPodState::Unknown
        };
    };
    if rejected(facts.migration, facts.pods).is_some() {
        TargetPodState::Rejected
    } else if ended(pod).is_some() {
        TargetPodState::Over
    } else if pod.metadata.deletion_timestamp.is_some() {
        TargetPodState::Leaving
    } else if is_ready(pod) {
        TargetPodState::Ready
    } else {
        TargetPodState::Coming
    }
}

/// Returns whether a target pod is on a node and its compute container runs, regardless of injected containers. (The
/// pod is not `Ready` for Kubernetes before the guest runs in it.)
pub fn is_ready(pod: &Pod) -> bool {
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let containers = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    bound
        && containers.is_some_and(|containers| {
            containers.iter().any(|container| {
                container.name == CONTAINER && container.state.as_ref().is_some_and(|state| state.running.is_some())
            })
        })
}

fn source_pod(facts: &MigrationFacts<'_>) -> SourcePod {
    let Some(uid) = source(facts.migration).and_then(|source| source.pod_uid.as_deref()) else {
        return SourcePod::Alive;
    };
    let pod = facts.pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid));
    if let Some(pod) = pod {
        return match ended(pod) {
            None => SourcePod::Alive,
            Some(ended) if ended.outcome == Some(GuestOutcome::Migrated) => SourcePod::Left,
            // The guest may have migrated away.
            Some(ended) if ended.outcome == Some(GuestOutcome::Unknown) => SourcePod::Alive,
            Some(_) => SourcePod::Over,
        };
    }
    // The pod was deleted by force. Its node's agent reports when nothing runs in it any more.
    let is_reported = facts
        .instance
        .and_then(|instance| instance.status.as_ref()?.drydock.as_ref())
        .is_some_and(|drydock| drydock.ended_pods.iter().any(|ended| ended == uid));
    if is_reported { SourcePod::Over } else { SourcePod::Alive }
}

#[cfg(test)]
mod tests;
