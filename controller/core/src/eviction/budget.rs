//! The budget that keeps one launcher pod from being evicted, also while no webhook answers.
//!
//! ```text
//!  before the pod ─▶ made ─▶ pod runs ─▶ its guest has moved, ended or is deleted; or may be shut down ─▶ deleted
//!                               └─▶ a budget of somebody else selects the pod too ─▶ deleted, and said
//! ```
//!
//! One budget for each pod, because a pod that two budgets select cannot be evicted at all: the
//! eviction is answered with an internal error, which drainers give up on.

use std::collections::BTreeMap;

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{VirtualMachineInstance, names::LAUNCHER},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::Pod,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::{falls_back, is_finished, made, wants_mark};
use crate::{instance::ending::ended, replica_set::selector::Selector};

/// The budget of a pod that is about to be made. It has the pod's name and belongs to the same
/// instance, so that it goes with it at the latest.
pub fn of(pod: &Pod) -> Option<PodDisruptionBudget> {
    let label = label(pod)?.clone();
    let labels = BTreeMap::from([(LAUNCHER.to_owned(), label)]);
    Some(PodDisruptionBudget {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            owner_references: pod.metadata.owner_references.clone(),
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
        && (wants_mark(instance, strategy, made(pod).or(Some(now)), now) || is_blocked(instance, strategy))
}

/// It is to be migrated, cannot be, and may not be shut down instead.
fn is_blocked(instance: &VirtualMachineInstance, strategy: EvictionStrategy) -> bool {
    strategy == EvictionStrategy::LiveMigrate && !falls_back(instance)
}
