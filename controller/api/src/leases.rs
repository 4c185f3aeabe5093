//! Liveness of node agents: one Lease for each node, named after it.

use std::time::Duration;

/// Namespace of the agents' Leases.
pub const NODE_LEASE_NAMESPACE: &str = "drydock-nodes";
/// How often an agent renews its Lease.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);
/// A Lease that has not changed for this long is stale: its agent does not answer.
/// Four missed renewals, as the kubelet's own node lease (`nodeLeaseDurationSeconds: 40`).
pub const STALE_AFTER: Duration = Duration::from_secs(40);
/// Name of the Lease by which the controller's replicas elect their leader.
pub const CONTROLLER_LEASE: &str = "drydock-controller";
