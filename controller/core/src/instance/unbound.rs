//! Replacement of pods that have no node yet and were created under an earlier configuration.
//!
//! Such a pod may have requirements that no node meets any more, or that no longer suffice for its guest. The pod is
//! deleted and recreated, as nothing can run in it. A pod that is bound, or is being bound, is left alone, whatever it
//! requires.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{InstanceStep, observed_instance::ObservedInstance, uid};
use crate::{
    launcher_pod::{REQUIREMENTS_DIGEST, made_for},
    pod_state::is_final,
};

/// Replaces the pods whose requirements differ from those of a new pod. Digests are compared, which are computed from
/// instance and configuration alone, so that fields filled in by the API server or an admission webhook make no
/// difference.
pub(super) fn replace_obsolete(observed: &ObservedInstance<'_>) -> Vec<InstanceStep> {
    let Some(wanted) = observed.requirements_digest else {
        return Vec::new();
    };
    let obsolete = observed.pods.iter().filter(|pod| is_obsolete(pod, wanted));
    obsolete
        .map(|pod| InstanceStep::ReplacePod {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid(pod),
            resource_version: pod.metadata.resource_version.clone(),
        })
        .collect()
}

/// Returns whether any of these pods may have to be replaced, so that the digest is worth computing.
pub fn may_be_obsolete(pods: &[Arc<Pod>]) -> bool {
    pods.iter().any(|pod| digest(pod).is_some())
}

fn is_obsolete(pod: &Pod, wanted: &str) -> bool {
    digest(pod).is_some_and(|digest| digest != wanted)
}

/// Returns the digest of a pod that waits for a node. A pod without the annotation was created by an earlier release,
/// or the annotation was removed: its requirements are unknown, so it stays.
fn digest(pod: &Pod) -> Option<&str> {
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    // A migration's target pod is subject to the migration's deadline instead.
    if bound || pod.metadata.deletion_timestamp.is_some() || is_final(pod) || made_for(pod).is_some() {
        return None;
    }
    pod.metadata
        .annotations
        .as_ref()?
        .get(REQUIREMENTS_DIGEST)
        .map(String::as_str)
}
