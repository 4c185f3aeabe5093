//! Liveness of node agents: one Lease per node, with the node's name.

use std::time::Duration;

/// Namespace of the agents' Leases.
pub const NODE_LEASE_NAMESPACE: &str = "drydock-nodes";
/// Interval at which an agent renews its Lease.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);
/// A Lease that has not changed for this long is stale: its agent does not respond. Corresponds to four missed
/// renewals, like the kubelet's own node lease (`nodeLeaseDurationSeconds: 40`).
pub const STALE_AFTER: Duration = Duration::from_secs(40);
/// Name of the Lease for leader election among the controller's replicas.
pub const CONTROLLER_LEASE: &str = "drydock-controller";
