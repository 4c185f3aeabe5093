//! The tests that need a cluster, in one program, so that they are linked only once.
//!
//! `hack/test cluster` runs each file in its own process, on one of three clusters.

mod admission;
mod certificates;
mod cli;
mod cli_check;
mod cli_live;
mod configuration;
mod consoles;
mod devices;
mod drain;
mod drain_control_plane;
mod faults;
mod guest_agent;
mod guest_devices;
mod guest_faults;
mod guest_storage;
mod instances;
mod kubelet_restart;
mod labels;
mod machines;
mod maintenance;
mod migration;
mod migration_abuse;
mod migration_convergence;
mod migration_disks;
mod migration_faults;
mod migration_policies;
mod migration_post_copy;
mod migration_rollout;
mod placement;
mod policies;
mod rollout;
mod subresources;
mod verbs_used;
