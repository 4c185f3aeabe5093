//! Selects the layers in force from the existing configuration objects.

use std::sync::Arc;

use drydock_api::{HyperConverged, legacy::CONFIG_MAP};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{ConfigurationSource, Reference, choose, hyperconverged, legacy};

/// Returns the configuration objects in force, lowest layer first: at most one of each kind, from the first of
/// `namespaces` that has one.
pub fn sources(
    config_maps: &[Arc<ConfigMap>],
    hyperconvergeds: &[Arc<HyperConverged>],
    namespaces: &[String],
) -> Vec<ConfigurationSource> {
    let config_maps: Vec<_> = config_maps
        .iter()
        .filter(|object| object.metadata.name.as_deref() == Some(CONFIG_MAP))
        .collect();
    let references: Vec<Reference> = config_maps
        .iter()
        .map(|object| {
            reference(
                &object.metadata,
                object.metadata.resource_version.clone().unwrap_or_default(),
            )
        })
        .collect();
    let mut sources = Vec::new();
    if let Some(index) = choose(&references, namespaces).in_force {
        let data = config_maps[index].data.clone().unwrap_or_default();
        sources.push(ConfigurationSource {
            kind: legacy::KIND,
            reference: references[index].clone(),
            parsed: legacy::parse(&data),
        });
    }
    let references: Vec<Reference> = hyperconvergeds
        .iter()
        .map(|object| {
            reference(
                &object.metadata,
                object.metadata.generation.unwrap_or_default().to_string(),
            )
        })
        .collect();
    if let Some(index) = choose(&references, namespaces).in_force {
        sources.push(ConfigurationSource {
            kind: hyperconverged::KIND,
            reference: references[index].clone(),
            parsed: hyperconverged::parse(&hyperconvergeds[index].spec),
        });
    }
    sources
}

fn reference(metadata: &ObjectMeta, revision: String) -> Reference {
    Reference {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        revision,
    }
}
