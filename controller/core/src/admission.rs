//! Admission of virtual machines: validates creations and changes, and fills in defaults.
//!
//! ```text
//!  manifest ─▶ defaults ─▶ schema and CEL (API server) ─▶ review() ─▶ nothing, or every AdmissionRefusal at once
//!                                                          ├ fields: implemented, a hint, or refused by name
//!                                                          └ rules: values that could never work
//! ```
//!
//! - [`fields`]: which fields are allowed.
//! - [`annotations`]: which annotations are refused because they request unsupported behaviour.
//! - [`rules`]: which values the fields may have.
//! - [`defaults`]: the values of unset fields.
//! - [`migration_requests`]: the rules for migrations.
//! - [`change`]: the allowed changes after creation.
//! - [`judgement`]: all of these checks for manifests, without a cluster.

pub mod annotations;
pub mod change;
pub mod defaults;
pub mod fields;
pub mod hints;
pub mod judgement;
pub mod migration_requests;
pub(crate) mod nearest;
mod overlay;
mod refusal;
pub mod reserved;
mod rules;
mod shape;

use serde_json::Value;

pub use refusal::{AdmissionReason, AdmissionRefusal, MAX_REFUSALS, sentence};
use refusal::{At, RefusalList};

/// Drydock's version, named in refusals.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The admitted kinds of KubeVirt's API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdmittedKind {
    /// VirtualMachine.
    Machine,
    /// VirtualMachineInstance.
    Instance,
    /// VirtualMachineInstanceReplicaSet.
    ReplicaSet,
    /// VirtualMachineInstanceMigration.
    Migration,
}

impl AdmittedKind {
    /// All admitted kinds.
    pub const ALL: [Self; 4] = [Self::Machine, Self::Instance, Self::ReplicaSet, Self::Migration];

    /// Returns the name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "VirtualMachine",
            Self::Instance => "VirtualMachineInstance",
            Self::ReplicaSet => "VirtualMachineInstanceReplicaSet",
            Self::Migration => "VirtualMachineInstanceMigration",
        }
    }

    /// Returns the resource's plural name, as used in API paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachines",
            Self::Instance => "virtualmachineinstances",
            Self::ReplicaSet => "virtualmachineinstancereplicasets",
            Self::Migration => "virtualmachineinstancemigrations",
        }
    }
}

/// Returns every reason to refuse the creation of an object; empty if it is admitted.
///
/// `raw` is the whole object. Refusals are in the order of the checks: fields first, then rules.
pub fn review(raw: &Value, kind: AdmittedKind) -> Vec<AdmissionRefusal> {
    let mut refusals = RefusalList::default();
    fields::check(raw, kind, &mut refusals);
    rules::check(raw, kind, &mut refusals);
    refusals.into_vec()
}

#[cfg(test)]
mod tests;
