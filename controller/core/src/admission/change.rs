//! Review of changes to existing objects.
//!
//! ```text
//!  old, new, user ─▶ being deleted, or the same spec? ── yes ─▶ allowed
//!                     └ no ─▶ VirtualMachineInstance: only the controller, which fills in defaults;
//!                             other users: only a shorter grace period, which is how a guest that
//!                             ignores its power button is stopped
//!                             VirtualMachine, ReplicaSet: reviewed as if it were created
//!  Migration: the spec cannot change, nor, while in flight, the label with the instance's name
//! ```

use serde_json::Value;

use super::{AdmissionRefusal, AdmittedKind, At, RefusalList, migration_requests, reserved::CONTROLLER, review};
use crate::launcher_pod::GRACE_PERIOD;

/// KubeVirt's message, which clients know.
const RESTRICTED: &str = "update of VMI object is restricted";
const MIGRATION_SPEC: &str = "update of Migration object's spec is restricted";

/// Returns every reason to refuse a change; empty if the change is allowed.
///
/// `old` and `new` are whole objects, `user` is the name of the requesting user. An object that is being deleted is
/// not checked, so an object that was created before a rule existed can still be deleted.
pub fn review_change(old: &Value, new: &Value, kind: AdmittedKind, user: &str) -> Vec<AdmissionRefusal> {
    let is_being_deleted = new
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null());
    let mut refusals = RefusalList::default();
    if kind == AdmittedKind::Migration {
        // A migration that is being deleted stays in flight until it has been cancelled.
        migration_requests::check_change(old, new, &mut refusals);
    }
    if is_being_deleted || old.get("spec") == new.get("spec") {
        return refusals.into_vec();
    }
    match kind {
        AdmittedKind::Instance if shortens_shutdown(old, new) => {}
        // The spec of an instance cannot change while the instance runs.
        AdmittedKind::Instance if user != CONTROLLER => refusals.immutable(&At::root("spec"), RESTRICTED),
        AdmittedKind::Migration => refusals.immutable(&At::root("spec"), MIGRATION_SPEC),
        AdmittedKind::Instance | AdmittedKind::Machine | AdmittedKind::ReplicaSet => return review(new, kind),
    }
    refusals.into_vec()
}

/// Returns whether a change shortens the guest's shutdown grace period and changes nothing else of the spec.
fn shortens_shutdown(old: &Value, new: &Value) -> bool {
    const FIELD: &str = "terminationGracePeriodSeconds";
    let split = |object: &Value| {
        let mut spec = object
            .get("spec")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        (spec.remove(FIELD).as_ref().and_then(Value::as_i64), spec)
    };
    let ((before, rest), (after, same)) = (split(old), split(new));
    rest == same && after.is_some_and(|after| (0..before.unwrap_or(GRACE_PERIOD)).contains(&after))
}
