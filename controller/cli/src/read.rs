//! Reads the objects that a report is derived from.

use std::{fmt::Debug, sync::Arc};

use drydock_api::{
    HyperConverged, Hypervisor,
    legacy::CONFIG_MAP,
    maintenance::{Group, NodeMaintenance},
};
use drydock_view::snapshot::{Snapshot, UnreadKind};
use jiff::Timestamp;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;

use crate::{failure::CommandError, maintenance_command};

/// Number of objects in one page of a list.
const PAGE: u32 = 500;
/// Reason for a kind of objects that the user may not read.
pub(crate) const FORBIDDEN: &str = "forbidden";

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

/// Reads objects that every report needs.
async fn needed<K>(client: &Client, resource: &'static str) -> Result<Vec<K>, CommandError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    all(client, None).await.map_err(|error| CommandError::Read {
        resource,
        group: K::group(&()).into_owned(),
        error,
    })
}

/// Reads objects that make a report more accurate. A failure is returned instead of an error.
pub(crate) async fn useful<K>(client: &Client, resource: &str, fields: Option<&str>) -> (Vec<K>, Option<UnreadKind>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match all(client, fields).await {
        Ok(found) => (found, None),
        // The cluster does not have this kind, so it has no such objects.
        Err(kube::Error::Api(status)) if status.code == 404 => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(unread(resource, &error))),
    }
}

/// Returns the resource that could not be read, with the reason.
pub(crate) fn unread(resource: &str, error: &kube::Error) -> UnreadKind {
    let why = match error {
        kube::Error::Api(status) if status.code == 403 => FORBIDDEN.to_owned(),
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    };
    UnreadKind {
        resource: resource.to_owned(),
        why,
    }
}

/// Reads the maintenances of all nodes.
async fn maintenances(client: &Client) -> (Vec<(Group, NodeMaintenance)>, Option<UnreadKind>) {
    match maintenance_command::all(client).await {
        Ok(found) => (found, None),
        Err(CommandError::Read { resource, error, .. }) => (Vec::new(), Some(unread(resource, &error))),
        Err(failure) => {
            let resource = "nodemaintenances".to_owned();
            let why = failure.to_string();
            (Vec::new(), Some(UnreadKind { resource, why }))
        }
    }
}

/// Reads all objects that a plan needs.
///
/// # Errors
/// If nodes or instances cannot be read.
pub(crate) async fn snapshot(client: &Client, at: Timestamp) -> Result<Snapshot, CommandError> {
    let essential = futures::future::try_join(
        needed::<Node>(client, "nodes"),
        needed(client, "virtualmachineinstances"),
    );
    let (essential, rest) = tokio::join!(essential, beside_essential(client, at));
    let (nodes, instances) = essential?;
    Ok(Snapshot {
        nodes: shared(nodes),
        instances: shared(instances),
        ..rest
    })
}

/// Reads all objects that a plan needs, as far as they can be read.
pub(crate) async fn readable_snapshot(client: &Client, at: Timestamp) -> Snapshot {
    let ((nodes, no_nodes), (instances, no_instances), mut rest) = tokio::join!(
        useful::<Node>(client, "nodes", None),
        useful(client, "virtualmachineinstances", None),
        beside_essential(client, at),
    );
    rest.unread.extend(no_nodes.into_iter().chain(no_instances));
    Snapshot {
        nodes: shared(nodes),
        instances: shared(instances),
        ..rest
    }
}

/// Reads all objects except nodes and instances.
async fn beside_essential(client: &Client, at: Timestamp) -> Snapshot {
    let name = format!("metadata.name={CONFIG_MAP}");
    let (hypervisors, pods, machines, migrations, budgets, claims, volumes, config_maps, hyperconvergeds, maintained) = tokio::join!(
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
    Snapshot {
        at,
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
        ..Snapshot::default()
    }
}

fn shared<T>(all: Vec<T>) -> Vec<Arc<T>> {
    all.into_iter().map(Arc::new).collect()
}

/// Returns whether the user may apply a verb to a resource in the whole cluster. The resource may have a subresource
/// after a slash.
///
/// # Errors
/// If the API server does not review the right.
pub(crate) async fn is_allowed(client: &Client, verb: &str, resource: &str, group: &str) -> kube::Result<bool> {
    is_allowed_on(client, (verb, resource, group), None).await
}

/// Returns whether the user may apply a verb to a resource of an API group. With `object`, the question is about the
/// object with this namespace and name.
///
/// # Errors
/// If the API server does not review the right.
pub(crate) async fn is_allowed_on(
    client: &Client,
    (verb, resource, group): (&str, &str, &str),
    object: Option<(&str, &str)>,
) -> kube::Result<bool> {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource)),
        None => (resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.into()),
                resource: Some(resource.into()),
                subresource: subresource.map(str::to_owned),
                group: Some(group.into()),
                namespace: object.map(|(namespace, _)| namespace.to_owned()),
                name: object.map(|(_, name)| name.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let review = api.create(&PostParams::default(), &review).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}
