//! Decides about a guest that may go, depending on whether another node can take it.

use drydock_api::{hyperconverged::EvictionStrategy, kubevirt::names::conditions as types};
use jiff::Timestamp;

use super::{
    DrainedGuest,
    state::{EvacuationCause, EvacuationState},
};
use crate::{
    conditions::ConditionStatus,
    eviction::{Migratable, evacuation_request, is_finished, may_restart, no_target::shut_down_from},
    migration::record::MigrationRecord,
    placement::DepartureOutlook,
    vm_conditions::{find, is_pod_terminating},
};

/// The standing of a guest that competes for room with other guests that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Competing {
    /// Whether the guest already has a migration.
    pub has_migration: bool,
    /// Number of the guest's migrations that have failed since the guest was marked.
    pub failures: u32,
}

/// Returns how a guest that is to leave competes for room. `None` if it does not compete: it is not to be migrated, a
/// step for it is refused, or it has a migration whose target already counts as taken (`has_place`).
pub fn competing(guest: &DrainedGuest<'_>, has_place: bool) -> Option<Competing> {
    let migrates = matches!(
        guest.strategy,
        EvictionStrategy::LiveMigrate | EvictionStrategy::LiveMigrateIfPossible
    );
    if !migrates
        || is_finished(guest.instance)
        || is_pod_terminating(guest.instance)
        || Migratable::of(guest.instance) != Migratable::Yes
        || guest.refused.is_some()
    {
        return None;
    }
    let has_migration = guest
        .migrations
        .iter()
        .any(|migration| !MigrationRecord::of(migration).is_over());
    (!(has_migration && has_place)).then(|| Competing {
        has_migration,
        failures: evacuation_request::evacuation(guest.instance).map_or(0, |mark| mark.failures),
    })
}

/// Returns the state of a guest that nothing else holds back, and when to evaluate it again.
pub(super) fn state(guest: &DrainedGuest<'_>, now: Timestamp) -> (EvacuationState, Option<Timestamp>) {
    let lack = match &guest.outlook {
        DepartureOutlook::Fits(_) => None,
        // The other guests that leave are placed first. This guest is evaluated again once they have moved.
        DepartureOutlook::Crowded(message) => {
            return (
                EvacuationState::Blocked(EvacuationCause::NoTarget, message.clone()),
                None,
            );
        }
        DepartureOutlook::Nowhere(message) => Some(message.clone()),
        DepartureOutlook::Unknown => lack_by_condition(guest),
    };
    let Some(lack) = lack else {
        return (EvacuationState::MayGo, None);
    };
    if !may_restart(guest.instance, guest.strategy) {
        return (EvacuationState::Blocked(EvacuationCause::NoTarget, lack), None);
    }
    let from = shut_down_from(guest.instance, guest.strategy).filter(|from| now < *from);
    let message = format!(
        "{lack}; the guest is shut down when its pod is evicted, and started elsewhere if its \
         VirtualMachine requires it"
    );
    (EvacuationState::ShuttingDown(EvacuationCause::NoTarget, message), from)
}

/// Returns why no other node can take a guest, from its condition.
fn lack_by_condition(guest: &DrainedGuest<'_>) -> Option<String> {
    let status = guest.instance.status.as_ref()?;
    let condition = find(&status.conditions, types::MIGRATION_TARGET_AVAILABLE)
        .filter(|condition| condition.status == ConditionStatus::False.as_str())?;
    Some(condition.message.clone().unwrap_or_default())
}
