//! The PodDisruptionBudget (PDB) that protects one launcher pod from eviction, even while no webhook is available.
//!
//! ```text
//!  pod created ─▶ PDB created ─▶ guest starts, or arrives ─▶ has moved, ended, or is deleted ─▶ deleted with the pod
//!                                 ├─▶ its guest may be shut down, or has ended in a pod that stays ─▶ deleted
//!                                 └─▶ a foreign PDB selects the pod too ─▶ deleted, and reported
//! ```
//! The PDB is owned by its pod, and Kubernetes deletes it with the pod, whether or not a controller is running. The PDB
//! is created right after the pod, before a guest is in the pod: an agent starts or receives a guest only after a
//! controller has permitted it, and while a controller runs, the webhooks respond, too. A new leader creates missing
//! PDBs.
//!
//! There is one PDB per pod, because a pod that two PDBs select cannot be evicted at all: the eviction fails with an
//! internal error, upon which drainers abort.

use std::collections::BTreeMap;

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{
        VirtualMachineInstance,
        names::{INSTANCE, LAUNCHER},
    },
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::Pod,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};

use super::{falls_back, is_finished, no_target::is_shut_down, wants_mark};
use crate::{instance::ending::ended, label_selector::Selector, pod_state::created_at};

/// Returns the PDB of a launcher pod, with the pod's name; `None` for a pod that the API server has not created.
pub fn of(pod: &Pod) -> Option<PodDisruptionBudget> {
    let label = label(pod)?.clone();
    let labels = BTreeMap::from([(LAUNCHER.to_owned(), label)]);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
        ..OwnerReference::default()
    };
    let instance = pod
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find_map(name_of_instance);
    Some(PodDisruptionBudget {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            annotations: instance.map(|name| BTreeMap::from([(INSTANCE.to_owned(), name.to_owned())])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    })
}

fn name_of_instance(owner: &OwnerReference) -> Option<&str> {
    (owner.kind == "VirtualMachineInstance").then_some(owner.name.as_str())
}

/// Returns the name of the VMI that one of Drydock's PDBs protects. PDBs of earlier versions are owned by the VMI
/// itself.
pub fn instance_of(pdb: &PodDisruptionBudget) -> Option<&str> {
    let annotations = pdb.metadata.annotations.as_ref();
    let named = annotations.and_then(|annotations| annotations.get(INSTANCE));
    let owners = pdb.metadata.owner_references.iter().flatten();
    named.map(String::as_str).or_else(|| {
        let mut names = owners.filter_map(name_of_instance);
        names.next()
    })
}

/// Returns whether a PDB is deleted together with this pod.
pub fn goes_with(pdb: &PodDisruptionBudget, pod: &Pod) -> bool {
    let mut owners = pdb.metadata.owner_references.iter().flatten();
    pod.metadata.uid.is_some() && owners.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// Returns the label value that identifies a launcher pod.
fn label(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(LAUNCHER)
}

/// Returns whether a PDB is one of Drydock's: it protects one launcher pod.
pub fn is_ours(pdb: &PodDisruptionBudget) -> bool {
    let labels = pdb.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(LAUNCHER))
}

/// Returns whether a PDB of another owner allows no eviction of a pod now.
pub fn is_holding(pdb: &PodDisruptionBudget, pod: &Pod) -> bool {
    let status = pdb.status.as_ref();
    status.is_some_and(|status| status.disruptions_allowed == 0) && !is_ours(pdb) && selects(pdb, pod)
}

/// Returns whether a PDB selects a pod. A PDB with an invalid selector selects nothing.
pub fn selects(pdb: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = pdb.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.and_then(|selector| Selector::new(selector).ok());
    pdb.metadata.namespace == pod.metadata.namespace
        && selector.is_some_and(|selector| selector.matches(pod.metadata.labels.as_ref()))
}

/// Returns whether a VMI's pod needs a PDB: whenever its eviction would be refused.
pub fn is_protected(instance: &VirtualMachineInstance, strategy: EvictionStrategy, pod: &Pod, now: Timestamp) -> bool {
    !is_finished(instance)
        && ended(pod).is_none()
        && pod.metadata.deletion_timestamp.is_none()
        && !is_shut_down(instance, strategy, now)
        && (wants_mark(instance, strategy, created_at(pod).or(Some(now)), now) || is_blocked(instance, strategy))
}

/// Returns whether a VMI must be migrated and must not be shut down instead.
fn is_blocked(instance: &VirtualMachineInstance, strategy: EvictionStrategy) -> bool {
    strategy == EvictionStrategy::LiveMigrate && !falls_back(instance)
}
