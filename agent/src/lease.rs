//! The Lease `drydock-nodes/<node>`, which shows that this agent is alive.
//!
//! The holder of the Lease is the UID of the agent's pod. Only the agent that holds the host's lock takes the Lease. It
//! therefore takes the Lease from any previous holder. The Node does not own the Lease: the Lease must outlive the Node,
//! because it shows whether guests may still run on the node.

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
            field_manager: AGENT_FIELD_MANAGER,
        };
        let lease = LeaseHolder::start(process, client, holding, &changed);
        let (stopping, kept) = (process.stopping(), lease.clone());
        process.spawn("lease taken back", async move {
            while stopping.run_until_cancelled(changed.notified()).await.is_some() {
                let HolderState::By(other) = kept.held() else { continue };
                // The lock on the host decides which agent acts for a node. A different holder that claims this node
                // from another machine is a misconfiguration. The agent logs it, and takes the Lease back after one
                // renewal interval.
                warn!(
                    holder = other,
                    "another process holds this node's Lease; this agent takes the Lease back"
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use drydock_runtime::{
        clock,
        fake::{ApiServer, ReceivedRequest, api_server},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::failing_write::FailingWrite;

    const TAKE: &str = "take";
    const RENEW: &str = "renewal";
    const CREATE: &str = "creation";

    /// The Lease that the API server stores.
    struct Stored {
        lease: Option<Value>,
        version: u64,
    }

    impl Stored {
        fn new() -> Self {
            Self {
                lease: None,
                version: 0,
            }
        }

        fn execute(&mut self, request: &ReceivedRequest) -> Value {
            self.version += 1;
            let holder = match &self.lease {
                Some(lease) if request.body["spec"]["holderIdentity"].is_null() => {
                    lease["spec"]["holderIdentity"].clone()
                }
                _ => request.body["spec"]["holderIdentity"].clone(),
            };
            let lease = self.of(&holder);
            self.lease = Some(lease.clone());
            lease
        }

        fn of(&self, holder: &Value) -> Value {
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {
                    "name": "n", "namespace": NODE_LEASE_NAMESPACE, "resourceVersion": self.version.to_string(),
                },
                "spec": {"holderIdentity": holder},
            })
        }

        /// Responds to a request, which may be the failing write. Returns the name of the write if it succeeded.
        fn respond(&mut self, request: ReceivedRequest, failing: &mut FailingWrite) -> Option<&'static str> {
            let is_apply = request.content_type.starts_with("application/apply-patch");
            let write = match (request.method.as_str(), is_apply) {
                ("GET", _) => {
                    match &self.lease {
                        Some(lease) => request.with(lease),
                        None => request.refuse(404, "NotFound"),
                    }
                    return None;
                }
                ("POST", _) => CREATE,
                (_, true) => TAKE,
                (_, false) => RENEW,
            };
            let Some(lease) = self.lease.as_ref().filter(|_| write == RENEW) else {
                if write == RENEW {
                    request.refuse(404, "NotFound");
                    return None;
                }
                return failing
                    .respond(request, write, |request| self.execute(request))
                    .then_some(write);
            };
            if request.body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                request.refuse(409, "Conflict");
                return None;
            }
            failing
                .respond(request, write, |request| self.execute(request))
                .then_some(write)
        }
    }

    /// Serves requests until the Lease has been renewed this number of times in a row.
    async fn renewed(server: &mut ApiServer, stored: &mut Stored, failing: &mut FailingWrite, times: usize) {
        let mut renewals = 0;
        while renewals < times {
            match stored.respond(server.next_request().await, failing) {
                Some(RENEW) => renewals += 1,
                _ => renewals = 0,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_failed_write_of_the_lease_is_repeated_in_time() {
        for mut failing in FailingWrite::each(&[TAKE, RENEW, CREATE]) {
            let (client, mut server) = api_server();
            let (process, mut stored) = (Process::new(), Stored::new());
            let lease = NodeLease::start(client, "n", "p", &process);
            assert!(server.is_left_alone().await, "{failing}: written before it is taken");
            let start = clock::Instant::now();
            lease.take();
            renewed(&mut server, &mut stored, &mut failing, 2).await;
            // A user deletes the Lease.
            stored.lease = None;
            renewed(&mut server, &mut stored, &mut failing, 2).await;
            failing.assert_settled();
            assert_eq!(lease.0.held(), HolderState::Ours, "{failing}");
            let (writes, pauses) = (6, 2);
            assert!(
                start.elapsed() < RENEW_EVERY * (writes + pauses),
                "{failing}: {:?}",
                start.elapsed()
            );
            process.stop();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lease_held_by_another_process_is_taken_back_later() {
        let (client, mut server) = api_server();
        let (process, mut stored) = (Process::new(), Stored::new());
        let mut failing = FailingWrite::each(&["none"]).remove(0);
        let lease = NodeLease::start(client, "n", "p", &process);
        lease.take();
        renewed(&mut server, &mut stored, &mut failing, 1).await;
        stored.version += 1;
        stored.lease = Some(stored.of(&json!("other")));
        let refused = clock::Instant::now();
        renewed(&mut server, &mut stored, &mut failing, 1).await;
        assert!(refused.elapsed() >= RENEW_EVERY, "taken back at once");
        assert!(
            refused.elapsed() < STALE_AFTER + Duration::from_secs(1),
            "{:?}",
            refused.elapsed()
        );
        assert_eq!(lease.0.held(), HolderState::Ours);
        process.stop();
    }
}
