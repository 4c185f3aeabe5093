//! Drydock's decisions, as pure functions: facts, configuration and the time go in, plans come out.
//!
//! No function here reads a clock, a file or the network, so everything can be tested by tables and properties. The
//! binaries gather facts, call these functions and carry out their decisions.
//!
//! - [`configuration`]: the cluster's configuration, from defaults, the legacy ConfigMap and HyperConverged.
//! - [`admission`]: which objects may be created and changed, and which fields are filled in.
//! - [`labels`]: which CPU labels a node gets, by [`obsolete`], [`minimum_cpu`], [`aliases`] and [`mask`].
//! - [`node`]: all actions of a node's agent for its own Node and Hypervisor.
//! - [`guest_network`], [`device_offer`]: the network and the virtualization that a node offers to guests.
//! - [`domain`]: the libvirt domain of a guest.
//! - [`instance`], [`machine`], [`replica_set`]: the controller's actions for these kinds.
//! - [`maintenance`]: how a node is emptied and kept empty.
//! - [`migration`]: how a guest moves to another node.
//! - [`inspection`]: when a host has to be inspected again.
//! - [`in_force`]: whether every node applies a configuration object.
//! - [`certificates`]: how webhook certificates are renewed without refusing requests in between.
//! - [`subresources`]: KubeVirt's API that `virtctl` calls.
//! - [`replicas`]: which replica of the controller moves to a node of its own.
//! - [`removal`]: which objects keep Drydock from being removed, and which parts a node loses.
//! - [`guest_agent`], [`access_credentials`]: the replies of guest agents, and the credentials that they set.
//! - [`explain`]: why guests can or cannot have a CPU model on a node.

#![forbid(unsafe_code)]

pub mod access_credentials;
pub mod admission;
pub mod aliases;
pub mod certificates;
pub mod conditions;
pub mod configuration;
pub mod default_cpu;
pub mod device_offer;
pub mod domain;
pub mod drain;
pub mod eviction;
pub mod explain;
mod go_duration;
pub mod guest;
pub mod guest_agent;
pub mod guest_command;
pub mod guest_labels;
pub mod guest_network;
pub mod in_force;
pub mod inspection;
pub mod instance;
pub mod label_keys;
pub mod label_selector;
pub mod labels;
pub mod launcher_pod;
pub mod machine;
pub mod maintenance;
pub mod mask;
pub mod migratable;
pub mod migration;
pub mod minimum_cpu;
pub mod node;
pub mod obsolete;
pub mod placement;
pub mod pod_state;
pub mod processor;
pub mod quantity;
pub mod readiness;
pub mod refusal_end;
pub mod removal;
pub mod replica_set;
pub mod replicas;
pub mod subresources;
pub mod vm_conditions;
