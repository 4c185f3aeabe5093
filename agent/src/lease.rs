//! The Lease by which this agent shows that it is alive, `drydock-nodes/<node>`.
//!
//! Its holder is the UID of the agent's pod. Only the agent that holds the host's lock takes it, so
//! it is taken whoever held it before.

use std::collections::BTreeMap;

use drydock_api::{
    AGENT_FIELD_MANAGER,
    leases::{NODE_LEASE_NAMESPACE, RENEW_EVERY, STALE_AFTER},
};
use drydock_runtime::{
    Process, Trigger,
    lease::{Held, Holding, LeaseHolder},
};
use kube::Client;
use tracing::warn;

/// Takes the Lease and keeps it.
pub(crate) struct NodeLease(LeaseHolder);

impl NodeLease {
    /// Gets ready to keep the Lease of `node` for the pod `holder`. Nothing is written before
    /// [`take`](Self::take).
    pub(crate) fn start(client: Client, node: &str, holder: &str, process: &Process) -> Self {
        let changed = Trigger::new();
        let holding = Holding {
            namespace: NODE_LEASE_NAMESPACE.into(),
            name: node.into(),
            identity: holder.into(),
            renew_every: RENEW_EVERY,
            duration: STALE_AFTER,
            labels: BTreeMap::new(),
            // Not of the Node: it has to outlive a deletion of that, as it shows whether guests may still run there.
            owners: Vec::new(),
            field_manager: AGENT_FIELD_MANAGER,
        };
        let lease = LeaseHolder::start(process, client, holding, &changed);
        let (stopping, kept) = (process.stopping(), lease.clone());
        process.spawn("lease taken back", async move {
            while stopping.run_until_cancelled(changed.notified()).await.is_some() {
                let Held::By(other) = kept.held() else { continue };
                // Who acts for a node is decided by the lock on its host. An agent that says it is
                // this node from elsewhere is a mistake to be seen, not a fight to be fought fast.
                warn!(
                    holder = other,
                    "somebody else holds this node's Lease; it will be taken back"
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

    /// Takes the Lease now, and keeps it until the process stops.
    pub(crate) fn take(&self) {
        self.0.take_over();
    }
}
