//! Annotations on launcher pods that the descheduler reads.
//!
//! The descheduler evicts pods to spread them. With its feature gate `EvictionsInBackground`, it interprets a 429 that
//! contains "Eviction triggered evacuation" as an eviction in the background if the pod has the first of these
//! annotations, and counts the pod as evicted. Otherwise it interprets the response as a failure and evicts the next
//! pod as well. It does not evict a pod with the second annotation again until that is removed.
//! (`pkg/descheduler/evictions/evictions.go` of `sigs.k8s.io/descheduler`.)
//!
//! | annotation | on | from | until |
//! |---|---|---|---|
//! | [`REQUEST_EVICT_ONLY`] | pods of VMIs whose strategy refuses evictions | creation | – |
//! | [`EVICTION_IN_PROGRESS`] | the pod of a guest that the descheduler has evicted | the VMI is marked | the VMI is neither marked nor migrating any more |
//!
//! KubeVirt sets the second annotation for every evacuation. Only the descheduler reads it, so for drains it would be
//! one more request per guest, and it is not set.

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{
        VirtualMachineInstance,
        names::{BY_DRYDOCK, DESCHEDULER, EVICTION_IN_PROGRESS, EVICTION_SOURCE, REQUEST_EVICT_ONLY},
    },
};
use k8s_openapi::api::core::v1::Pod;

use super::evacuation_request;

/// Annotates a new launcher pod for the descheduler. `strategy` is the eviction strategy in force for its VMI.
pub fn annotate(pod: &mut Pod, strategy: EvictionStrategy) {
    if strategy != EvictionStrategy::None {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.entry(REQUEST_EVICT_ONLY.into()).or_default();
    }
}

/// Returns whether [`EVICTION_IN_PROGRESS`] must be set on a guest's pod (`true`) or removed from it (`false`); `None`
/// if it is correct. `migrating`: a migration of the VMI has not ended.
pub fn change(instance: &VirtualMachineInstance, pod: &Pod, migrating: bool) -> Option<bool> {
    let annotation = |key: &str| instance.metadata.annotations.as_ref()?.get(key);
    let by_descheduler = annotation(EVICTION_SOURCE).is_some_and(|source| source == DESCHEDULER);
    let here = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let leaves = here.is_some() && evacuation_request::of(instance) == here;
    let of_pod = pod.metadata.annotations.as_ref();
    let value = of_pod.and_then(|annotations| annotations.get(EVICTION_IN_PROGRESS));
    match value {
        None => (by_descheduler && leaves).then_some(true),
        // Values set by others are not removed.
        Some(by) => (by == BY_DRYDOCK && !leaves && !migrating).then_some(false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(source: Option<&str>, marked: Option<&str>) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "annotations": source.map(|source| json!({EVICTION_SOURCE: source}))},
            "spec": {"domain": {"devices": {}}},
            "status": {"evacuationNodeName": marked},
        }))
        .unwrap()
    }

    fn pod(node: Option<&str>, annotations: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": annotations}, "spec": {"nodeName": node, "containers": []}}))
        .unwrap()
    }

    #[test]
    fn eviction_in_progress_follows_the_mark() {
        let by = Some(DESCHEDULER);
        let none = json!(null);
        let ours = json!({EVICTION_IN_PROGRESS: BY_DRYDOCK});
        let others = json!({EVICTION_IN_PROGRESS: "somebody"});
        for (what, source, marked, annotations, migrating, expected) in [
            ("not evicted", None, None, &none, false, None),
            ("drained", None, Some("a"), &none, false, None),
            ("evicted by the descheduler", by, Some("a"), &none, false, Some(true)),
            ("marked to leave another node", by, Some("b"), &none, false, None),
            ("no mark", by, Some(""), &none, false, None),
            ("as it should be", by, Some("a"), &ours, true, None),
            ("cancelled", by, None, &ours, false, Some(false)),
            ("cancelled, still migrating", by, None, &ours, true, None),
            ("arrived elsewhere", by, Some(""), &ours, false, Some(false)),
            ("another's", by, None, &others, false, None),
        ] {
            let instance = instance(source, marked);
            let found = change(&instance, &pod(Some("a"), annotations), migrating);
            assert_eq!(found, expected, "{what}");
        }
        assert_eq!(
            change(&instance(by, Some("a")), &pod(None, &none), false),
            None,
            "not bound"
        );
    }

    #[test]
    fn only_pods_with_refused_evictions_are_annotated() {
        for (strategy, annotations, expected) in [
            (EvictionStrategy::None, json!(null), None),
            (EvictionStrategy::LiveMigrate, json!(null), Some("")),
            (EvictionStrategy::LiveMigrateIfPossible, json!(null), Some("")),
            (EvictionStrategy::External, json!({"a": "b"}), Some("")),
            (
                EvictionStrategy::LiveMigrate,
                json!({REQUEST_EVICT_ONLY: "own"}),
                Some("own"),
            ),
        ] {
            let mut pod = pod(None, &annotations);
            annotate(&mut pod, strategy);
            let found = pod.metadata.annotations.unwrap_or_default().remove(REQUEST_EVICT_ONLY);
            assert_eq!(found.as_deref(), expected, "{strategy:?} {annotations}");
        }
    }
}
