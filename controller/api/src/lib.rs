//! The contract between Drydock's binaries and their users: kinds, label keys, annotation keys, condition and event
//! reasons, and the configuration objects.
//!
//! Names are KubeVirt's wherever KubeVirt has one, so that existing manifests, schedulers and dashboards keep working;
//! Drydock's own names are under `drydock.dev`.

pub mod annotations;
pub mod facts;
pub mod hyperconverged;
pub mod hypervisor;
pub mod kubevirt;
pub mod labels;
pub mod launcher;
pub mod leases;
pub mod legacy;
pub mod maintenance;
pub mod node_api;
pub mod reasons;
pub mod removal;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::CustomResourceExt;

pub use hyperconverged::{HyperConverged, HyperConvergedSpec, HyperConvergedStatus};
pub use hypervisor::{Hypervisor, HypervisorSpec, HypervisorStatus};
pub use maintenance::NodeMaintenance;

/// Returns the CRDs of all kinds, as in `deploy/crds`.
///
/// Formats that Kubernetes does not know, such as `uint32`, are removed from the schemas, because the API server would
/// warn about them.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![Hypervisor::crd(), HyperConverged::crd()];
    definitions.extend(kubevirt::definitions());
    definitions.extend(maintenance::definitions());
    for version in definitions
        .iter_mut()
        .flat_map(|definition| &mut definition.spec.versions)
    {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            without_foreign_formats(schema);
        }
    }
    definitions
}

fn without_foreign_formats(schema: &mut JSONSchemaProps) {
    if schema.format.as_ref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = None;
    }
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
    {
        without_foreign_formats(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_foreign_formats(items);
    }
}

/// Returns a reference to a Node, which is cluster-scoped, for events.
pub fn node_reference(name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid,
        ..ObjectReference::default()
    }
}

/// Returns the owner that controls an object.
pub fn controlling_owner(object: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = object.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Field manager of everything that the node agent applies.
pub const AGENT_FIELD_MANAGER: &str = "drydock-agent";

/// Field manager of everything that the controller applies.
pub const CONTROLLER_FIELD_MANAGER: &str = "drydock-controller";

/// Namespace into which Drydock's manifests install Drydock.
pub const NAMESPACE: &str = "drydock";
