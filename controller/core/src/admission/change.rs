//! What may change after an object has been created.
//!
//! ```text
//!  old, new, who ─▶ being deleted, or the same spec? ── yes ─▶ allowed
//!                    └ no ─▶ VirtualMachineInstance: only the controller, which fills in defaults
//!                            VirtualMachine, ReplicaSet: reviewed as if it were created
//!  Migration: nothing, and while it is in flight not its label either
//! ```

use drydock_api::kubevirt::names::{CREATED_BY, NODE_NAME};
use serde_json::Value;

use super::{At, Kind, Refusal, Refusals, migration, review};

/// User name of the controller.
pub const CONTROLLER: &str = "system:serviceaccount:drydock:drydock-controller";

/// Labels of instances and their pods by which parts of the system find each other. Only the system
/// sets them; a policy keeps everybody else from changing them (`deploy/policies/instance-labels.yaml`).
pub const RESERVED_LABELS: [&str; 5] = [
    CREATED_BY,
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/migrationTargetNodeName",
    NODE_NAME,
    "kubevirt.io/outdatedLauncherImage",
];

/// KubeVirt's words, which clients know.
const RESTRICTED: &str = "update of VMI object is restricted";
const MIGRATION_SPEC: &str = "update of Migration object's spec is restricted";

/// Everything that is wrong with a change; empty if it may be made.
///
/// `old` and `new` are whole objects, `user` the name of who changes. An object that was created
/// before a rule was made can still be deleted: nothing is asked of it then.
pub fn review_change(old: &Value, new: &Value, kind: Kind, user: &str) -> Vec<Refusal> {
    let is_being_deleted = new
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null());
    let mut refusals = Refusals::default();
    if kind == Kind::Migration {
        // One that is being deleted is in flight until it has been given up.
        migration::check_change(old, new, &mut refusals);
    }
    if is_being_deleted || old.get("spec") == new.get("spec") {
        return refusals.into_vec();
    }
    match kind {
        // Nothing that an instance is can change while it runs.
        Kind::Instance if user != CONTROLLER => refusals.immutable(&At::root("spec"), RESTRICTED),
        Kind::Migration => refusals.immutable(&At::root("spec"), MIGRATION_SPEC),
        Kind::Instance | Kind::Machine | Kind::ReplicaSet => return review(new, kind),
    }
    refusals.into_vec()
}
