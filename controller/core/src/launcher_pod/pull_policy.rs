//! When the image of a containerDisk is pulled.

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    volumes::{ContainerDisk, PullPolicy},
};

use super::PodInput;

/// The architecture of the launcher's image, which runs in the containers that resolve a tag.
const ARCHITECTURE: &str = "amd64";

/// Returns the pull policy of a containerDisk's volume in the pod.
pub(super) fn volume_policy(input: &PodInput<'_>, disk: &ContainerDisk) -> PullPolicy {
    if disk.image_pull_policy == Some(PullPolicy::Never) {
        PullPolicy::Never
    } else if is_wanted(input, disk) && !can_run(&input.instance.spec) {
        PullPolicy::Always
    } else {
        PullPolicy::IfNotPresent
    }
}

/// Returns whether the tag is to be resolved at the start, by Kubernetes' rule for containers: `latest` may be
/// another image by now.
pub(super) fn is_wanted(input: &PodInput<'_>, disk: &ContainerDisk) -> bool {
    let last = disk.image.rsplit('/').next().unwrap_or_default();
    let by_digest = last.contains('@');
    let by_tag = last.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    let wanted = match disk.image_pull_policy {
        Some(policy) => policy == PullPolicy::Always,
        None => !by_tag,
    };
    input.arriving.is_none() && wanted && !by_digest
}

/// Returns whether the launcher's image can run on nodes of the guest's architecture.
pub(super) fn can_run(spec: &VirtualMachineInstanceSpec) -> bool {
    spec.architecture.as_deref().is_none_or(|one| one == ARCHITECTURE)
}
