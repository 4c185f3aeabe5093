//! The pod that a virtual machine runs in.
//!
//! The pod meets the restricted Pod Security Standard; the only extra is a share of the virtualization resource of the
//! agent's device plugin. The guest's data is written to two folders of the pod and deleted with the pod; all inputs
//! from its namespace (claims, Secrets, images) are mounted, so that nothing outside the pod reads them.
//!
//! ```text
//!   compute            run    /run/drydock              shared with the node's agent
//!   uid 107,           disks  /var/lib/drydock/disks    layers above images, empty disks
//!   no capabilities,   ...    /images/<volume>          containerDisks, read-only
//!   read-only root            /volumes/<volume>         claims with a file system
//!                             /devices/<volume>         claims that are block devices
//!                             /secrets/<volume>/...     Secrets for cloud-init
//! ```
//!
//! The scheduling of the pod depends on labels of nodes; once the pod is bound, it requires nothing that can change:
//!
//! - The pod has no node selector. Every ordinary term of its required node affinity contains all requirements on the
//!   node, and one more term accepts the node with the pod's own label `guest.node.drydock.dev/<launcher>`.
//! - No Node has this label while the pod is being scheduled, so the term does not affect the scheduler. The agent of
//!   the pod's node sets the label ([`guest_labels`](crate::guest_labels)).
//! - A restarting kubelet checks node selector and required node affinity again and ends pods that do not match.
//!   Without the last term, guests would end because an agent is down, or because a mask, an obsolete model or the
//!   minimum CPU model has changed.

mod guest_description;
pub mod image_identity;
mod names;
pub(crate) mod newest_images;
mod node_affinity;
pub mod pending;
mod pod_volumes;
pub(crate) mod probes;
mod pull_policy;
pub(crate) mod resources;
mod security;
mod target_pod;

use std::{collections::BTreeMap, time::Duration};

use drydock_api::{
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceSpec,
        devices::Protocol,
        names::{APP, CREATED_BY, DOMAIN, GUEST_RUNNING, INSTANCE_ID, LAUNCHER, NODE_NAME, VIRT_LAUNCHER, VM_NAME},
    },
    launcher::{CONTAINER, GUEST_VARIABLE},
};
use k8s_openapi::{
    api::core::v1::{Container, ContainerPort, EnvVar, Pod, PodReadinessGate, PodSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use crate::placement::requirements::Requirements;

pub(crate) use names::cut;
use names::stable_uuid;

pub use node_affinity::{REQUIREMENTS_DIGEST, guest_label, requirements_digest};
pub use pod_volumes::credential_volumes;
pub use resources::{Demand, overhead, requests};
pub use security::APP_ARMOR_PROFILE;
pub use target_pod::{MIGRATION_NAME, MIGRATION_UID, TargetPodInput, carry_labels, made_for, target_pod};

/// Input for a launcher pod.
#[derive(Clone, Copy, Debug)]
pub struct PodInput<'a> {
    /// The instance, with defaults applied.
    pub instance: &'a VirtualMachineInstance,
    /// The launcher's image.
    pub image: &'a str,
    /// Requirements on the pod's node.
    pub requirements: &'a Requirements,
    /// Volume modes of the instance's claims, by name; a claim that is not listed has a file system.
    pub claims: &'a BTreeMap<String, ClaimMode>,
    /// The suffix of the pod's name.
    pub suffix: &'a str,
    /// Host UUID of the pod's libvirt, which is the value of its label [`LAUNCHER`] and the name of its Node label.
    pub host_uuid: &'a str,
    /// Whether the guest may run in emulation, which needs additional memory.
    pub emulation: bool,
    /// Set for the target pod of a migration.
    pub arriving: Option<Arriving<'a>>,
}

/// Additional input for the target pod of a migration.
#[derive(Clone, Copy, Debug)]
pub struct Arriving<'a> {
    /// Sizes in bytes of the guest's disks, by volume. The migration copies the disks that the guest can write to.
    pub sizes: &'a BTreeMap<String, u64>,
    /// References of the images that the guest started with, by volume; for other images, only the manifest's
    /// reference is known.
    pub images: &'a BTreeMap<String, String>,
}

/// The volume mode with which a claim is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMode {
    /// The claim is mounted as a folder with a file that contains the disk.
    Filesystem,
    /// The claim is attached as a block device that is the disk.
    Block,
}

/// Default grace period for the guest's shutdown, in seconds. KubeVirt's value.
pub const GRACE_PERIOD: i64 = 30;

/// Minimum grace period of a pod, in seconds: enough for libvirt to destroy the guest, and for the launcher to report
/// how it ended. (With 0, the pod would vanish immediately, while its guest may still run.)
pub(crate) const LEAST_GRACE_PERIOD: i64 = 5;
/// Annotation of a launcher pod: container that kubectl uses if none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Annotation of an object: the configuration that kubectl applied last. It is not copied to pods.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the guest's shutdown grace period in seconds.
fn grace_seconds(spec: &VirtualMachineInstanceSpec) -> i64 {
    spec.termination_grace_period_seconds.unwrap_or(GRACE_PERIOD)
}

/// Returns the guest's shutdown grace period.
pub fn grace_period(spec: &VirtualMachineInstanceSpec) -> Duration {
    Duration::from_secs(u64::try_from(grace_seconds(spec)).unwrap_or(0))
}

/// Returns a name suffix that is always the same for the same text: ten hexadecimal digits. With half as many, a
/// collision would be likely among two thousand names in a namespace.
pub fn suffix(text: &str) -> String {
    stable_uuid(&["pod", text])
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(10)
        .collect()
}

/// Returns the unique host UUID of the libvirt in the pod with this name.
pub fn host_uuid(text: &str) -> String {
    stable_uuid(&["host", text])
}

/// Returns the name of a pod: KubeVirt's prefix, the instance's name, truncated so that the result is a valid label
/// value, and the suffix.
pub fn name(instance: &str, suffix: &str) -> String {
    let room = 63_usize.saturating_sub("virt-launcher--".len() + suffix.len());
    format!("virt-launcher-{}-{suffix}", cut(instance, room))
}

/// Returns the launcher pod of an instance.
pub fn pod(input: &PodInput<'_>) -> Pod {
    let mut pod = unbound_pod(input);
    keep_admitted(&mut pod, input);
    pod
}

fn keep_admitted(pod: &mut Pod, input: &PodInput<'_>) {
    if let Some(spec) = &mut pod.spec {
        node_affinity::keep_admitted(spec, input.host_uuid);
    }
}

/// Returns the launcher pod without the term that lets it be admitted again once it is bound.
fn unbound_pod(input: &PodInput<'_>) -> Pod {
    let PodInput {
        instance, requirements, ..
    } = *input;
    let spec = &instance.spec;
    let grace = grace_seconds(spec);
    let (volumes, mounts, devices) = pod_volumes::of(input);
    let pull_secrets = pod_volumes::pull_secrets(spec);
    let annotations = instance.metadata.annotations.as_ref();
    let app_armor = annotations
        .and_then(|all| all.get(APP_ARMOR_PROFILE))
        .map(String::as_str);
    Pod {
        metadata: metadata(input),
        spec: Some(PodSpec {
            containers: vec![Container {
                name: CONTAINER.into(),
                image: Some(input.image.into()),
                image_pull_policy: Some("IfNotPresent".into()),
                env: Some(vec![EnvVar {
                    name: GUEST_VARIABLE.into(),
                    value: Some(guest_description::json(input, grace)),
                    value_from: None,
                }]),
                ports: some(ports(instance)),
                resources: Some(resources::of(spec, input.emulation)),
                security_context: Some(security::container()),
                volume_mounts: Some(mounts),
                volume_devices: some(devices),
                ..Container::default()
            }],
            init_containers: some(newest_images::containers(input)),
            volumes: Some(volumes),
            image_pull_secrets: some(pull_secrets),
            affinity: node_affinity::for_scheduling(spec.affinity.clone(), requirements),
            tolerations: some(spec.tolerations.clone()),
            topology_spread_constraints: some(spec.topology_spread_constraints.clone()),
            priority_class_name: spec.priority_class_name.clone(),
            scheduler_name: spec.scheduler_name.clone(),
            hostname: Some(names::hostname(instance)),
            subdomain: spec.subdomain.clone(),
            dns_policy: spec.dns_policy.clone(),
            dns_config: spec.dns_config.clone(),
            readiness_gates: Some(vec![PodReadinessGate {
                condition_type: GUEST_RUNNING.into(),
            }]),
            restart_policy: Some("Never".into()),
            termination_grace_period_seconds: Some(grace.max(LEAST_GRACE_PERIOD)),
            service_account_name: pod_volumes::service_account(spec),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(security::pod(app_armor)),
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn metadata(input: &PodInput<'_>) -> ObjectMeta {
    let PodInput {
        instance,
        requirements,
        suffix,
        host_uuid: launcher,
        emulation,
        ..
    } = *input;
    let of = instance.metadata.clone();
    let own = of.name.unwrap_or_default();
    let uid = of.uid.unwrap_or_default();
    let mut labels = of.labels.unwrap_or_default();
    labels.entry(VM_NAME.into()).or_insert_with(|| names::label(&own));
    labels.insert(INSTANCE_ID.into(), names::id(&own));
    labels.insert(APP.into(), VIRT_LAUNCHER.into());
    labels.insert(CREATED_BY.into(), uid.clone());
    labels.insert(LAUNCHER.into(), launcher.into());
    let mut annotations = of.annotations.unwrap_or_default();
    // Metadata about the instance itself is not copied to its pod.
    labels.remove(NODE_NAME);
    annotations.remove(LAST_APPLIED);
    annotations.insert(DOMAIN.into(), own.clone());
    let digest = requirements_digest(&instance.spec, requirements, emulation);
    annotations.insert(REQUIREMENTS_DIGEST.into(), digest);
    // The pod may have other containers, which find out the images of the guest's disks.
    annotations.insert(DEFAULT_CONTAINER.into(), CONTAINER.into());
    ObjectMeta {
        name: Some(name(&own, suffix)),
        namespace: of.namespace,
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: "kubevirt.io/v1".into(),
            kind: "VirtualMachineInstance".into(),
            name: own,
            uid,
            controller: Some(true),
            // Finalizers ensure the order; `true` would require permissions on finalizers in some clusters.
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}

fn ports(instance: &VirtualMachineInstance) -> Vec<ContainerPort> {
    let interfaces = instance.spec.domain.devices.interfaces.iter();
    interfaces
        .flat_map(|interface| &interface.ports)
        .map(|port| ContainerPort {
            name: port.name.clone(),
            container_port: port.port,
            protocol: Some(
                match port.protocol.unwrap_or_default() {
                    Protocol::Tcp => "TCP",
                    Protocol::Udp => "UDP",
                }
                .into(),
            ),
            ..ContainerPort::default()
        })
        .collect()
}

#[cfg(test)]
mod tests;
