//! The agreement between Drydock's binaries and everyone who talks to them: kinds, label keys,
//! annotation keys, condition and event reasons, and the configuration objects.
//!
//! Names are KubeVirt's wherever KubeVirt has one, so that existing manifests, schedulers and
//! dashboards keep working; Drydock's own names are under `drydock.dev`.

pub mod annotations;
pub mod facts;
pub mod hyperconverged;
pub mod hypervisor;
pub mod labels;
pub mod leases;
pub mod legacy;
pub mod reasons;

pub use hyperconverged::{HyperConverged, HyperConvergedSpec, HyperConvergedStatus};
pub use hypervisor::{Hypervisor, HypervisorSpec, HypervisorStatus};

/// Field manager of everything the node agent applies.
pub const AGENT_FIELD_MANAGER: &str = "drydock-agent";

/// Field manager of everything the controller applies.
pub const CONTROLLER_FIELD_MANAGER: &str = "drydock-controller";

/// Namespace that Drydock is installed into by its own manifests.
pub const NAMESPACE: &str = "drydock";
