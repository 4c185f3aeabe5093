//! A pod that has no node yet and was made under an earlier configuration.
//!
//! What such a pod requires of a node may be what no node has any more, or less than its guest needs now. It is deleted
//! and made anew, as nothing can run in it: a pod that is bound, or is being bound, is left alone, whatever it requires.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{Observed, Step, uid};
use crate::{
    guest_labels::is_final,
    launcher_pod::{REQUIREMENTS_DIGEST, made_for},
};

/// Replaces the pods whose requirements are not those that a new one would have. Digests are compared, which are made of
/// instance and configuration alone: nothing that the API server or an admission webhook fills in makes them differ.
pub(super) fn replace_obsolete(observed: &Observed<'_>) -> Vec<Step> {
    let Some(wanted) = observed.requirements_digest else {
        return Vec::new();
    };
    let obsolete = observed.pods.iter().filter(|pod| is_obsolete(pod, wanted));
    obsolete
        .map(|pod| Step::ReplacePod {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid(pod),
            resource_version: pod.metadata.resource_version.clone(),
        })
        .collect()
}

/// Whether any of these pods may have to be replaced, so that the digest is worth computing.
pub fn may_be_obsolete(pods: &[Arc<Pod>]) -> bool {
    pods.iter().any(|pod| digest(pod).is_some())
}

fn is_obsolete(pod: &Pod, wanted: &str) -> bool {
    digest(pod).is_some_and(|digest| digest != wanted)
}

/// The digest of a pod that waits for a node. A pod without the annotation was made by an earlier release, or something
/// has removed it: nothing is known of what it requires, so it stays.
fn digest(pod: &Pod) -> Option<&str> {
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    // A migration's pod has the migration's deadline.
    if bound || pod.metadata.deletion_timestamp.is_some() || is_final(pod) || made_for(pod).is_some() {
        return None;
    }
    pod.metadata
        .annotations
        .as_ref()?
        .get(REQUIREMENTS_DIGEST)
        .map(String::as_str)
}
