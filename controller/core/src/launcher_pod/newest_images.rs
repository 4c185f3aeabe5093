//! A containerDisk whose tag is to be resolved at each start is, and its guest needs no registry after that.
//!
//! A kubelet makes sure of a pod's image volumes each time that it looks after the pod, as long as the pod lives
//! (`getImageVolumes` in its `kuberuntime_manager.go`). With the policy Always that is a pull each time: about one in
//! 25 seconds, which nothing needs, and which a registry counts and limits. A container's image is pulled once, when the
//! container starts. So the volume has the policy IfNotPresent, and a container of the same image that ends at once runs
//! before the guest's:
//!
//! ```text
//! init container, Always ─▶ registry: what does the tag name now? ─▶ the node has it
//!                                                                        │
//! guest's container, later ─▶ image volume, IfNotPresent ─▶ what the node has by that tag
//! ```
//!
//! A guest that arrives by a migration needs the image that it began with, or copies its disks whole: none for it.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceSpec,
        volumes::{ContainerDisk, PullPolicy},
    },
    launcher::{LAUNCHER_FOLDER, LAUNCHER_PROGRAM, LOADER, LOADER_LIBRARIES},
};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use super::{
    PodInput, resources, security,
    volumes::{launcher_volume, mount},
};

/// The beginning of the names of these containers.
const NEWEST: &str = "newest-image-";
/// The architecture of which the launcher's image is made, which runs in these containers.
const ARCHITECTURE: &str = "amd64";

/// Pull policy of a containerDisk's volume in the pod.
pub(super) fn volume_policy(input: &PodInput<'_>, disk: &ContainerDisk) -> PullPolicy {
    if disk.image_pull_policy == Some(PullPolicy::Never) {
        PullPolicy::Never
    } else if is_wanted(input, disk) && !can_run(&input.instance.spec) {
        PullPolicy::Always
    } else {
        PullPolicy::IfNotPresent
    }
}

/// The containers that run before the guest's, one for each image.
pub(super) fn containers(input: &PodInput<'_>) -> Vec<Container> {
    let spec = &input.instance.spec;
    if !can_run(spec) {
        return Vec::new();
    }
    let disks = spec.volumes.iter().filter_map(|volume| volume.container_disk.as_ref());
    let images: BTreeSet<&str> = disks
        .filter(|disk| is_wanted(input, disk))
        .map(|disk| disk.image.as_str())
        .collect();
    let launcher = launcher_volume(spec);
    let images = images.into_iter().enumerate();
    images
        .map(|(number, image)| container(number, image, &launcher, input))
        .collect()
}

fn container(number: usize, image: &str, launcher: &str, input: &PodInput<'_>) -> Container {
    // An image of a disk has no program and no library of its own.
    let command = [
        &format!("{LAUNCHER_FOLDER}{LOADER}"),
        "--library-path",
        &format!("{LAUNCHER_FOLDER}{LOADER_LIBRARIES}"),
        &format!("{LAUNCHER_FOLDER}{LAUNCHER_PROGRAM}"),
        "--version",
    ];
    Container {
        name: format!("{NEWEST}{number}"),
        image: Some(image.into()),
        image_pull_policy: Some(PullPolicy::Always.as_str().into()),
        command: Some(command.map(str::to_owned).to_vec()),
        resources: Some(as_much(resources::of(&input.instance.spec, input.emulation))),
        security_context: Some(security::container()),
        volume_mounts: Some(vec![mount(launcher, LAUNCHER_FOLDER.into(), true)]),
        ..Container::default()
    }
}

/// What the guest's container asks for, without devices. It adds nothing to the pod, which needs the most that any of
/// its init containers asks for, and the pod's class of service stays what it is.
fn as_much(mut resources: ResourceRequirements) -> ResourceRequirements {
    for amounts in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        amounts.retain(|name, _| !name.contains('/') && !name.starts_with("hugepages-"));
    }
    resources
}

/// Whether the tag is to be resolved at the start, by Kubernetes' rule for containers: what is called latest may be
/// another image by now.
fn is_wanted(input: &PodInput<'_>, disk: &ContainerDisk) -> bool {
    let last = disk.image.rsplit('/').next().unwrap_or_default();
    let by_digest = last.contains('@');
    let by_tag = last.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    let wanted = match disk.image_pull_policy {
        Some(policy) => policy == PullPolicy::Always,
        None => !by_tag,
    };
    input.arriving.is_none() && wanted && !by_digest
}

fn can_run(spec: &VirtualMachineInstanceSpec) -> bool {
    spec.architecture.as_deref().is_none_or(|one| one == ARCHITECTURE)
}
