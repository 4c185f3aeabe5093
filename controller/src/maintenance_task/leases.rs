//! Leases of nodes in maintenance, and reservations of nodes for maintenances that are being created.

use drydock_api::maintenance::{Group, NodeMaintenance, RESERVATION};
use drydock_core::maintenance::{
    maintenance_lease::{self, LeaseFailure, LeaseWrite},
    reservation,
};
use drydock_runtime::{Cache, Key, Watch, WatchStarter, WorkQueue, is_refusal};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt};
use std::sync::Arc;

use super::LeaseNamespaces;
use crate::requests::{deleting_version, writing};

/// Leases that maintenances need.
pub(super) struct Leases {
    nodes: Cache<Lease>,
    reserved: Cache<Lease>,
    medik8s_api: Api<Lease>,
    kubevirt_api: Api<Lease>,
    reservation_api: Api<Lease>,
    namespace: String,
    own_namespace: String,
}

/// Result of writing a Lease.
pub(super) enum LeaseWriteResult {
    /// The Lease was written. The value is the stored Lease.
    Done(Box<Lease>),
    /// Another writer has changed the Lease. The value is the current Lease.
    Changed(Option<Box<Lease>>),
    /// The API server did not write the Lease.
    Failed(LeaseFailure),
}

impl Leases {
    /// Watches the Leases and reservations of maintenances in the newer API group. The node of each changed Lease is
    /// enqueued on `work`. Leases of the older group are in a namespace with other Leases, and are read when they are
    /// needed.
    pub(super) fn start(client: &Client, watches: &WatchStarter, places: &LeaseNamespaces, work: &WorkQueue) -> Self {
        let watch = |namespace: &str, name: &'static str, node_of: fn(&str) -> Option<&str>| {
            let work = work.clone();
            Watch::<Lease>::namespaced(client.clone(), namespace, name).on_change(move |change| {
                if let drydock_runtime::CacheChange::Object { key, .. } = change
                    && let Some(node) = node_of(&key.name)
                {
                    work.add(Key::cluster(node));
                }
            })
        };
        let nodes = watch(
            &places.leases,
            "leases of nodes in maintenance",
            maintenance_lease::node_of,
        );
        let reserved = watch(&places.own, "reservations of nodes", reservation::node_of).labels(RESERVATION);
        Self {
            nodes: watches.start(nodes),
            reserved: watches.start(reserved),
            medik8s_api: Api::namespaced(client.clone(), &places.leases),
            kubevirt_api: Api::namespaced(client.clone(), &places.kubevirt_leases),
            reservation_api: Api::namespaced(client.clone(), &places.own),
            namespace: places.leases.clone(),
            own_namespace: places.own.clone(),
        }
    }

    /// Waits until the caches are synced.
    pub(super) async fn wait_until_synced(&self) {
        tokio::join!(self.nodes.wait_until_synced(), self.reserved.wait_until_synced());
    }

    fn api(&self, group: Group) -> &Api<Lease> {
        match group {
            Group::Medik8s => &self.medik8s_api,
            Group::KubeVirt => &self.kubevirt_api,
        }
    }

    /// Returns the Lease of a node in a maintenance of this API group.
    ///
    /// # Errors
    /// If the Lease has to be read, and the API server does not return it.
    pub(super) async fn of_node(&self, group: Group, node: &str) -> kube::Result<Option<Lease>> {
        let name = maintenance_lease::name(group, node);
        match group {
            Group::Medik8s => {
                let key = Key::namespaced(&self.namespace, &name);
                Ok(self.nodes.get(&key).map(Arc::unwrap_or_clone))
            }
            Group::KubeVirt => self.kubevirt_api.get_opt(&name).await,
        }
    }

    /// Creates or changes a node's Lease.
    ///
    /// # Errors
    /// If the API server does not respond.
    pub(super) async fn write(&self, group: Group, write: &LeaseWrite) -> kube::Result<LeaseWriteResult> {
        let parameters = writing();
        let name = write.lease.name_any();
        let written = if write.exists {
            self.api(group).replace(&name, &parameters, &write.lease).await
        } else {
            self.api(group).create(&parameters, &write.lease).await
        };
        match written {
            Ok(lease) => Ok(LeaseWriteResult::Done(Box::new(lease))),
            Err(kube::Error::Api(status)) if status.code == 409 || (status.is_not_found() && write.exists) => Ok(
                LeaseWriteResult::Changed(self.api(group).get_opt(&name).await?.map(Box::new)),
            ),
            Err(kube::Error::Api(status)) => Ok(LeaseWriteResult::Failed(LeaseFailure {
                why: status.message.clone(),
                is_refused: is_refusal(&status),
            })),
            Err(error) => Err(error),
        }
    }

    /// Deletes a node's Lease if it has not changed since it was read. If it has, returns the current Lease.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn delete(&self, group: Group, lease: &Lease) -> kube::Result<Option<Lease>> {
        let name = lease.name_any();
        if delete(self.api(group), lease).await? {
            Ok(None)
        } else {
            self.api(group).get_opt(&name).await
        }
    }

    /// Returns the nodes that are reserved.
    pub(super) fn reserved_nodes(&self) -> Vec<String> {
        let leases = self.reserved.all();
        let names = leases.iter().filter_map(|lease| lease.metadata.name.as_deref());
        names.filter_map(reservation::node_of).map(str::to_owned).collect()
    }

    /// Deletes a node's reservation once its object is stored or the reservation has expired. Returns the time of the
    /// next check.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn settle_reservation(
        &self,
        node: &str,
        shown: &[(Group, Arc<NodeMaintenance>)],
        now: Timestamp,
    ) -> kube::Result<Option<Timestamp>> {
        let key = Key::namespaced(&self.own_namespace, &reservation::name(node));
        let Some(lease) = self.reserved.get(&key) else {
            return Ok(None);
        };
        let until = reservation::expires(&lease, now);
        let is_stored = shown
            .iter()
            .any(|(group, object)| reservation::is_stored(&lease, &reservation::object_name(*group, object), object));
        if until > now && !is_stored {
            return Ok(Some(until));
        }
        delete(&self.reservation_api, &lease).await?;
        Ok(None)
    }
}

/// Deletes a Lease if it has not changed since it was read. Returns false if it has.
async fn delete(api: &Api<Lease>, lease: &Lease) -> kube::Result<bool> {
    let parameters = deleting_version(lease.uid(), lease.resource_version());
    match api.delete(&lease.name_any(), &parameters).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}
