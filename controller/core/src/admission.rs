//! Admission of virtual machines: what may be created and changed, and what is filled in.
//!
//! ```text
//!  manifest ─▶ defaults ─▶ schema and CEL (API server) ─▶ review() ─▶ nothing, or every Refusal at once
//!                                                          ├ fields: carried out, a hint, or refused by name
//!                                                          └ rules: values that could never work
//! ```
//!
//! - [`fields`]: which fields may be there at all.
//! - [`annotations`]: which annotations ask for what is not done.
//! - [`rules`]: what their values have to be.
//! - [`defaults`]: what an instance has that its manifest does not say.
//! - [`migration`]: what a migration may ask for.
//! - [`change`]: what may change afterwards.

pub mod annotations;
pub mod change;
pub mod defaults;
pub mod fields;
pub mod hints;
pub mod migration;
pub(crate) mod nearest;
mod overlay;
mod refusal;
mod rules;
mod shape;

use serde_json::Value;

use refusal::{At, Refusals};
pub use refusal::{MAX_REFUSALS, Reason, Refusal, sentence};

/// Version of Drydock, as refusals name it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The kinds of KubeVirt's group that are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// VirtualMachine.
    Machine,
    /// VirtualMachineInstance.
    Instance,
    /// VirtualMachineInstanceReplicaSet.
    ReplicaSet,
    /// VirtualMachineInstanceMigration.
    Migration,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Machine, Self::Instance, Self::ReplicaSet, Self::Migration];

    /// Name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "VirtualMachine",
            Self::Instance => "VirtualMachineInstance",
            Self::ReplicaSet => "VirtualMachineInstanceReplicaSet",
            Self::Migration => "VirtualMachineInstanceMigration",
        }
    }

    /// Its name in paths of the API.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachines",
            Self::Instance => "virtualmachineinstances",
            Self::ReplicaSet => "virtualmachineinstancereplicasets",
            Self::Migration => "virtualmachineinstancemigrations",
        }
    }
}

/// Everything that is wrong with an object, as it would be created; empty if it may be.
///
/// `raw` is the whole object. The order is that of the rules, fields first.
pub fn review(raw: &Value, kind: Kind) -> Vec<Refusal> {
    let mut refusals = Refusals::default();
    fields::check(raw, kind, &mut refusals);
    rules::check(raw, kind, &mut refusals);
    refusals.into_vec()
}

#[cfg(test)]
mod tests;
