//! Converts what the caches hold to the input of decisions: the mask and the configuration of this node.

use std::collections::BTreeSet;

use drydock_core::{
    configuration::{Configuration, ConfigurationSource, Resolution, resolve},
    mask,
    minimum_cpu::Minimum,
};

use crate::cpu_map_queries::{CpuMapQueries, QueryResult};

/// Returns the features that this node must not offer: those of the command line and of the annotation. An invalid
/// annotation is refused, and the previous mask stays in force.
pub(crate) fn mask(
    option: &BTreeSet<String>,
    annotation: Option<&str>,
    before: &BTreeSet<String>,
) -> (BTreeSet<String>, Option<String>) {
    match mask::parse(annotation.unwrap_or_default()) {
        Ok(features) => (option.union(&features).cloned().collect(), None),
        Err(error) => (option.union(before).cloned().collect(), Some(error.to_string())),
    }
}

/// Queries the CPU map for the minimum models that the sources want and the one last in force.
pub(crate) fn query_cpu_map(
    cpu_map_queries: &mut CpuMapQueries,
    sources: &[ConfigurationSource],
    last_good: Option<&Configuration>,
    mask: &BTreeSet<String>,
) -> QueryResult {
    let wanted = sources
        .iter()
        .filter_map(|source| source.parsed.min_cpu_model().map(str::to_owned));
    let models = wanted.chain(last_good.map(|good| good.min_cpu_model.clone())).collect();
    cpu_map_queries.query(models, mask)
}

/// Returns the configuration in force on this node, with its minimum model. Only amd64 has models that can be a
/// minimum; elsewhere none is refused.
pub(crate) fn follow(
    sources: Vec<ConfigurationSource>,
    cpu_map: &QueryResult,
    amd64: bool,
    last_good: Option<&Configuration>,
) -> (Resolution, Minimum) {
    let knows = |model: &str| amd64.then(|| cpu_map.knows(model));
    let resolution = resolve(sources, knows, last_good);
    // No features are found if the model has none (not amd64), or if the map that contained the last good model
    // cannot be read any more. The documented list needs no map.
    let minimum = Minimum::resolve(&resolution.configuration.min_cpu_model, |model| cpu_map.features(model));
    (resolution, minimum.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drydock_api::{HyperConverged, legacy::CONFIG_MAP};
    use drydock_core::configuration::gathering::sources;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn masks_of_option_and_annotation_add_up_unless_invalid() {
        let option = names(&["avx"]);
        assert_eq!(mask(&option, None, &names(&[])), (names(&["avx"]), None));
        assert_eq!(
            mask(&option, Some("avx2"), &names(&["old"])),
            (names(&["avx", "avx2"]), None)
        );
        let (kept, refused) = mask(&option, Some("a/b"), &names(&["avx", "avx2"]));
        assert_eq!(kept, names(&["avx", "avx2"]));
        assert!(refused.unwrap().contains("a/b"));
    }

    #[test]
    fn named_config_map_applies_unless_hyperconverged_overrides() {
        let config_map = |namespace: &str, name: &str| -> Arc<ConfigMap> {
            serde_json::from_value(serde_json::json!({
                "metadata": {"namespace": namespace, "name": name, "resourceVersion": "7"},
                "data": {"debug.useEmulation": "true"},
            }))
            .map(Arc::new)
            .unwrap()
        };
        let hyperconverged: HyperConverged = serde_json::from_value(serde_json::json!({
            "apiVersion": "hco.kubevirt.io/v1beta1", "kind": "HyperConverged",
            "metadata": {"namespace": "kubevirt", "name": "x", "generation": 3},
            "spec": {"obsoleteCPUs": {"minCPUModel": "Nehalem"}},
        }))
        .unwrap();
        let namespaces = ["drydock".to_owned(), "kubevirt".to_owned()];
        let maps = [
            config_map("kubevirt", "other"),
            config_map("kubevirt", CONFIG_MAP),
            config_map("tenant", CONFIG_MAP),
        ];
        let found = sources(&maps, &[Arc::new(hyperconverged)], &namespaces);
        let kinds: Vec<(&str, &str)> = found.iter().map(|s| (s.kind, s.reference.revision.as_str())).collect();
        assert_eq!(kinds, [("ConfigMap", "7"), ("HyperConverged", "3")]);
        let (resolution, minimum) = follow(found, &QueryResult::default(), true, None);
        assert!(
            resolution.configuration.use_emulation,
            "what is not refused stays in force"
        );
        assert!(
            resolution.refused(),
            "the CPU map could not be read, so the model is not known"
        );
        assert_eq!(minimum.model, "Penryn");
    }
}
