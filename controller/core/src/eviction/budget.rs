//! The budget that keeps one launcher pod from being evicted, also while no webhook answers.
//!
//! ```text
//!  pod made ─▶ budget made ─▶ guest starts, or arrives ─▶ has moved, ended, or is deleted ─▶ gone with the pod
//!                               ├─▶ its guest may be shut down, or has ended in a pod that stays ─▶ deleted
//!                               └─▶ a budget of somebody else selects the pod too ─▶ deleted, and said
//! ```
//!
//! It belongs to its pod, and Kubernetes deletes it with that, whether or not a controller is there. So it is made right
//! after the pod, and before there is a guest in it: none starts or arrives unless a controller has told an agent to let it,
//! and while one does, webhooks answer, too. Whoever begins to lead makes those that are missing.
//!
//! One budget for each pod, because a pod that two budgets select cannot be evicted at all: the
//! eviction is answered with an internal error, which drainers give up on.

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

use super::{falls_back, is_finished, made, no_target::is_shut_down, wants_mark};
use crate::{instance::ending::ended, replica_set::selector::Selector};

/// The budget of a launcher pod, with the pod's name; `None` of one that the API server has not made.
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

/// The name of the instance that one of our budgets is about. Those of earlier versions belong to the instance itself.
pub fn instance_of(budget: &PodDisruptionBudget) -> Option<&str> {
    let annotations = budget.metadata.annotations.as_ref();
    let named = annotations.and_then(|annotations| annotations.get(INSTANCE));
    let owners = budget.metadata.owner_references.iter().flatten();
    named.map(String::as_str).or_else(|| {
        let mut names = owners.filter_map(name_of_instance);
        names.next()
    })
}

/// Whether a budget is deleted with this pod.
pub fn goes_with(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let mut owners = budget.metadata.owner_references.iter().flatten();
    pod.metadata.uid.is_some() && owners.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// What makes a launcher pod unlike all others.
fn label(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(LAUNCHER)
}

/// Whether a budget is one of ours: it protects one launcher pod.
pub fn is_ours(budget: &PodDisruptionBudget) -> bool {
    let labels = budget.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(LAUNCHER))
}

/// Whether a budget selects a pod. One that cannot be read as Kubernetes reads it selects nothing.
pub fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.and_then(|selector| Selector::new(selector).ok());
    budget.metadata.namespace == pod.metadata.namespace
        && selector.is_some_and(|selector| selector.matches(pod.metadata.labels.as_ref()))
}

/// Whether a pod of an instance is to be protected by a budget: whenever an eviction of it would be
/// refused.
pub fn is_protected(instance: &VirtualMachineInstance, strategy: EvictionStrategy, pod: &Pod, now: Timestamp) -> bool {
    !is_finished(instance)
        && ended(pod).is_none()
        && pod.metadata.deletion_timestamp.is_none()
        && !is_shut_down(instance, strategy, now)
        && (wants_mark(instance, strategy, made(pod).or(Some(now)), now) || is_blocked(instance, strategy))
}

/// It is to be migrated, cannot be, and may not be shut down instead.
fn is_blocked(instance: &VirtualMachineInstance, strategy: EvictionStrategy) -> bool {
    strategy == EvictionStrategy::LiveMigrate && !falls_back(instance)
}
