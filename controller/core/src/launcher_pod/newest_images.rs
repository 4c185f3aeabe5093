//! Resolves a containerDisk's tag at each start if its pull policy requires that; the guest needs no registry after
//! that.
//!
//! A kubelet checks a pod's image volumes each time it syncs the pod, as long as the pod exists (`getImageVolumes` in
//! its `kuberuntime_manager.go`). With the policy Always that is a pull each time: about one in 25 seconds, which is
//! unnecessary, and which registries count and limit. A container's image is pulled once, when the container starts.
//! So the volume has the policy IfNotPresent, and a container of the same image that ends immediately runs before the
//! guest's:
//!
//! ```text
//! init container, Always ─▶ registry: resolves the tag ─▶ the node has the image
//!                                                               │
//! guest's container, later ─▶ image volume, IfNotPresent ─▶ the node's image for that tag
//! ```
//!
//! A guest that arrives by migration needs the image that it started with, or its disks are copied as a whole: it
//! gets no such container.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::volumes::PullPolicy,
    launcher::{LAUNCHER_FOLDER, LAUNCHER_PROGRAM, LOADER, LOADER_LIBRARIES},
};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use super::{
    PodInput,
    pod_volumes::{launcher_volume, mount},
    pull_policy::{can_run, is_wanted},
    resources, security,
};

/// Name prefix of the init containers that resolve tags.
const NEWEST: &str = "newest-image-";

/// Returns the containers that run before the guest's, one for each image.
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
    // The image of a disk has no programs or libraries of its own.
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

/// Returns the resources of the guest's container, without devices. The pod needs the maximum over its init
/// containers and its containers, so this adds nothing, and the pod's QoS class stays the same.
fn as_much(mut resources: ResourceRequirements) -> ResourceRequirements {
    for amounts in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        amounts.retain(|name, _| !name.contains('/') && !name.starts_with("hugepages-"));
    }
    resources
}
