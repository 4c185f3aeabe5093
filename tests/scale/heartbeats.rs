//! Heartbeats: the Leases of each kubelet and of each agent.

use std::time::Duration;

use drydock_api::leases::{NODE_LEASE_NAMESPACE, RENEW_EVERY};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{requests::Requests, world::ScaleWorld};

/// Namespace of the kubelets' Leases.
pub(crate) const KUBELETS: &str = "kube-node-lease";

/// Renews the Leases of all nodes, one node after the other.
///
/// Each Lease is renewed at the interval of an agent.
pub(crate) async fn heartbeats(requests: &Requests, world: &ScaleWorld) {
    let count = u32::try_from(world.nodes().len()).unwrap_or(u32::MAX).max(1);
    let mut ticks = tokio::time::interval(RENEW_EVERY.checked_div(count).unwrap_or(Duration::from_secs(1)));
    loop {
        for node in world.nodes() {
            ticks.tick().await;
            for namespace in [KUBELETS, NODE_LEASE_NAMESPACE] {
                let api = Api::<Lease>::namespaced(requests.client.clone(), namespace);
                let node = node.clone();
                // A late response must not delay the other renewals.
                tokio::spawn(async move {
                    let now = json!({"spec": {"renewTime": microseconds(Timestamp::now())}});
                    if let Err(error) = api.patch(&node, &PatchParams::default(), &Patch::Merge(now)).await {
                        eprintln!("could not renew the Lease of {node}: {error}");
                    }
                });
            }
        }
    }
}

/// Returns a time in the format of the times in a Lease.
pub(crate) fn microseconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
