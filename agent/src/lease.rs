//! The Lease that shows that this agent is alive, `drydock-nodes/<node>`.
//!
//! Its holder is the UID of the agent's pod. Only the agent that holds the host's lock takes the Lease, so it takes
//! it from any previous holder.

use std::collections::BTreeMap;

use drydock_api::{
    AGENT_FIELD_MANAGER,
    leases::{NODE_LEASE_NAMESPACE, RENEW_EVERY, STALE_AFTER},
};
use drydock_runtime::{
    Process, Trigger,
    lease::{HolderState, Holding, LeaseHolder},
};
use kube::Client;
use tracing::warn;

/// Takes the Lease and renews it.
pub(crate) struct NodeLease(LeaseHolder);

impl NodeLease {
    /// Prepares to hold the Lease of `node` for the pod `holder`. Writes nothing before [`take`](Self::take).
    pub(crate) fn start(client: Client, node: &str, holder: &str, process: &Process) -> Self {
        let changed = Trigger::new();
        let holding = Holding {
            namespace: NODE_LEASE_NAMESPACE.into(),
            name: node.into(),
            identity: holder.into(),
            renew_every: RENEW_EVERY,
            duration: STALE_AFTER,
            labels: BTreeMap::new(),
            // The Node is not an owner: the Lease must outlive the Node, as it shows whether guests may still run
            // there.
            owners: Vec::new(),
            field_manager: AGENT_FIELD_MANAGER,
        };
        let lease = LeaseHolder::start(process, client, holding, &changed);
        let (stopping, kept) = (process.stopping(), lease.clone());
        process.spawn("lease taken back", async move {
            while stopping.run_until_cancelled(changed.notified()).await.is_some() {
                let HolderState::By(other) = kept.held() else { continue };
                // The lock on the host decides which agent acts for a node. Another holder that claims this node from
                // elsewhere is a misconfiguration: it is logged, and the Lease is taken back without haste.
                warn!(
                    holder = other,
                    "another process holds this node's Lease; it will be taken back"
                );
                if stopping
                    .run_until_cancelled(tokio::time::sleep(RENEW_EVERY))
                    .await
                    .is_some()
                {
                    kept.take_over();
                }
            }
        });
        Self(lease)
    }

    /// Takes the Lease now and renews it until the process stops.
    pub(crate) fn take(&self) {
        self.0.take_over();
    }
}
