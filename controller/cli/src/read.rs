//! Reads the objects that a question is answered from.

use std::{fmt::Debug, sync::Arc};

use drydock_api::{
    HyperConverged, Hypervisor,
    legacy::CONFIG_MAP,
    maintenance::{Group, NodeMaintenance},
};
use drydock_view::snapshot::{Snapshot, Unread};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{failure::Failure, maintenance};

/// Number of objects that are read at once.
const PAGE: u32 = 500;

/// Reads all objects of a kind.
async fn all<K>(client: &Client, fields: Option<&str>) -> kube::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    parameters.field_selector = fields.map(str::to_owned);
    let mut found = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

/// Reads objects without which there is no answer.
async fn needed<K>(client: &Client, resource: &'static str) -> Result<Vec<K>, Failure>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    all(client, None).await.map_err(|error| Failure::Read {
        resource,
        group: K::group(&()).into_owned(),
        error,
    })
}

/// Reads objects without which the answer is less certain; what cannot be read is added to `unread`.
pub(crate) async fn useful<K>(client: &Client, resource: &str, fields: Option<&str>) -> (Vec<K>, Option<Unread>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match all(client, fields).await {
        Ok(found) => (found, None),
        // The cluster has no such kind, so there is no such object.
        Err(kube::Error::Api(status)) if status.code == 404 => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(unread(resource, &error))),
    }
}

/// Returns that a kind of objects could not be read.
pub(crate) fn unread(resource: &str, error: &kube::Error) -> Unread {
    let why = match error {
        kube::Error::Api(status) if status.code == 403 => "forbidden".to_owned(),
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    };
    Unread {
        resource: resource.to_owned(),
        why,
    }
}

/// Reads the nodes in maintenance.
async fn maintenances(client: &Client) -> (Vec<(Group, NodeMaintenance)>, Option<Unread>) {
    match maintenance::all(client).await {
        Ok(found) => (found, None),
        Err(Failure::Read { resource, error, .. }) => (Vec::new(), Some(unread(resource, &error))),
        Err(failure) => {
            let resource = "nodemaintenances".to_owned();
            let why = failure.to_string();
            (Vec::new(), Some(Unread { resource, why }))
        }
    }
}

/// Reads everything that a plan needs.
///
/// # Errors
/// If nodes or instances cannot be read.
pub(crate) async fn snapshot(client: &Client, at: Timestamp) -> Result<Snapshot, Failure> {
    let name = format!("metadata.name={CONFIG_MAP}");
    let essential = futures::future::try_join(
        needed::<Node>(client, "nodes"),
        needed(client, "virtualmachineinstances"),
    );
    let (
        essential,
        hypervisors,
        pods,
        machines,
        migrations,
        budgets,
        claims,
        volumes,
        config_maps,
        hyperconvergeds,
        maintained,
    ) = tokio::join!(
        essential,
        useful::<Hypervisor>(client, "hypervisors", None),
        useful::<Pod>(client, "pods", Some("status.phase!=Succeeded,status.phase!=Failed")),
        useful(client, "virtualmachines", None),
        useful(client, "virtualmachineinstancemigrations", None),
        useful::<PodDisruptionBudget>(client, "poddisruptionbudgets", None),
        useful::<PersistentVolumeClaim>(client, "persistentvolumeclaims", None),
        useful::<PersistentVolume>(client, "persistentvolumes", None),
        useful::<ConfigMap>(client, "configmaps", Some(&name)),
        useful::<HyperConverged>(client, "hyperconvergeds", None),
        maintenances(client),
    );
    let (nodes, instances) = essential?;
    let unread = [
        hypervisors.1,
        pods.1,
        machines.1,
        migrations.1,
        budgets.1,
        claims.1,
        volumes.1,
        config_maps.1,
        hyperconvergeds.1,
        maintained.1,
    ];
    Ok(Snapshot {
        at,
        nodes: shared(nodes),
        instances: shared(instances),
        hypervisors: shared(hypervisors.0),
        pods: shared(pods.0),
        machines: shared(machines.0),
        migrations: shared(migrations.0),
        budgets: shared(budgets.0),
        claims: shared(claims.0),
        volumes: shared(volumes.0),
        config_maps: shared(config_maps.0),
        hyperconvergeds: shared(hyperconvergeds.0),
        maintenances: maintained
            .0
            .into_iter()
            .map(|(group, object)| (group, Arc::new(object)))
            .collect(),
        unread: unread.into_iter().flatten().collect(),
    })
}

fn shared<T>(all: Vec<T>) -> Vec<Arc<T>> {
    all.into_iter().map(Arc::new).collect()
}
