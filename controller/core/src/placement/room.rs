//! Free resources of a node, computed as the scheduler does: the node's allocatable resources minus the requests of
//! the pods on it.
//!
//! ```text
//!  pods, bound and not final ▶ Requests::of_pod ─▶ NodeRoom.add / remove ─▶ requested() by priority
//!  a pod to be placed ───────▶ Requests::of ─────────────────────────────▶ shortages()
//! ```
//!
//! The scheduler may preempt pods of a lower priority, so only pods of the same or a higher priority take room. Pods
//! that are being deleted do not count: their resources are about to become free.

use std::collections::{BTreeMap, BTreeSet};

use drydock_api::launcher::KVM_RESOURCE;
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use super::{Misfit, NodeView, Requirements};
use crate::{pod_state::node_of, quantity};

/// Name of the resource CPU.
const CPU: &str = "cpu";
/// Name of the resource of which a node has one unit per pod that it may have.
pub(super) const PODS: &str = "pods";

/// Amounts of resources by name: CPU in thousandths, all others in units (bytes, or pieces).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAmounts(BTreeMap<String, u64>);

impl ResourceAmounts {
    /// Returns the requests of one container. A limit without a request counts as a request (the API server fills it
    /// in).
    pub fn of(resources: &ResourceRequirements) -> Self {
        let mut requests = Self::from_quantities(resources.limits.as_ref());
        requests.0.extend(Self::from_quantities(resources.requests.as_ref()).0);
        requests
    }

    /// Returns the resources that a pod takes of its node (the scheduler's `PodRequests`, Kubernetes 1.35): the sum of
    /// its containers and sidecars, or the resources of an init container while it runs, whichever is greater; the
    /// pod-level requests instead, where set; plus its overhead.
    pub fn of_pod(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::default();
        };
        let status = pod.status.as_ref();
        let is_infeasible = status.is_some_and(is_resize_infeasible);
        let statuses = status.and_then(|status| status.container_statuses.as_deref());
        let init_statuses = status.and_then(|status| status.init_container_statuses.as_deref());
        let of_container = |container: &Container, among: Option<&[ContainerStatus]>| {
            let mut statuses = among.unwrap_or_default().iter();
            Self::of_container(
                container,
                statuses.find(|status| status.name == container.name),
                is_infeasible,
            )
        };
        let mut total = Self::default();
        for container in &spec.containers {
            total.add(&of_container(container, statuses));
        }
        let mut sidecars = Self::default();
        let mut initial = Self::default();
        for container in spec.init_containers.iter().flatten() {
            let mut needs = of_container(container, init_statuses);
            if container.restart_policy.as_deref() == Some("Always") {
                total.add(&needs);
                sidecars.add(&needs);
                needs = sidecars.clone();
            } else {
                needs.add(&sidecars);
            }
            initial.raise(&needs);
        }
        total.raise(&initial);
        if let Some(own) = &spec.resources {
            total.0.extend(Self::of(own).0);
        }
        total.add(&Self::from_quantities(spec.overhead.as_ref()));
        total.0.retain(|_, amount| *amount > 0);
        total
    }

    /// Returns the resources that a container takes: the maximum of its requests and what the kubelet has granted it so
    /// far.
    fn of_container(container: &Container, status: Option<&ContainerStatus>, is_infeasible: bool) -> Self {
        let mut taken = Self::default();
        if let Some(status) = status {
            let granted = status.resources.as_ref();
            taken.raise(&Self::from_quantities(granted.and_then(|all| all.requests.as_ref())));
            taken.raise(&Self::from_quantities(status.allocated_resources.as_ref()));
        }
        if !is_infeasible || taken.0.is_empty() {
            taken.raise(&container.resources.as_ref().map(Self::of).unwrap_or_default());
        }
        taken
    }

    /// Parses a node's allocatable resources, or a list of requests; invalid quantities are skipped.
    pub(super) fn from_quantities(quantities: Option<&BTreeMap<String, Quantity>>) -> Self {
        let amounts = quantities.into_iter().flatten().filter_map(|(name, amount)| {
            let amount = match name.as_str() {
                CPU => quantity::milli_cpus(&amount.0),
                _ => quantity::bytes(&amount.0),
            };
            Some((name.clone(), amount?))
        });
        Self(amounts.collect())
    }

    /// Returns the requests as quantities of the Kubernetes API.
    pub fn to_quantities(&self) -> BTreeMap<String, Quantity> {
        let write = |(name, amount): (&String, &u64)| {
            let unit = if name == CPU { "m" } else { "" };
            (name.clone(), Quantity(format!("{amount}{unit}")))
        };
        self.0.iter().map(write).collect()
    }

    /// Returns the amount of a resource.
    pub fn get(&self, resource: &str) -> u64 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    /// Yields names and amounts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    pub(super) fn known(&self, resource: &str) -> Option<u64> {
        self.0.get(resource).copied()
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    pub(super) fn set(&mut self, resource: &str, amount: u64) {
        self.0.insert(resource.into(), amount);
    }

    fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            if let Some(sum) = self.0.get_mut(name) {
                *sum = sum.saturating_sub(*amount);
            }
        }
        self.0.retain(|_, amount| *amount > 0);
    }

    /// Raises each amount to at least that of `other`.
    fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = (*own).max(*amount);
        }
    }
}

/// Returns whether the kubelet has refused to resize a pod: the new requests do not count then.
fn is_resize_infeasible(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions
        .any(|condition| condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible"))
}

/// The share of a node that one pod takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodShare {
    /// Requests of the pod.
    pub requests: ResourceAmounts,
    /// Priority of the pod.
    pub priority: i32,
}

impl PodShare {
    /// Returns the node that a pod is bound to and the share of the node that it takes; `None` if the pod is unbound,
    /// final or being deleted.
    pub fn of(pod: &Pod) -> Option<(&str, Self)> {
        let node = node_of(pod).filter(|_| pod.metadata.deletion_timestamp.is_none())?;
        let share = Self {
            requests: ResourceAmounts::of_pod(pod),
            priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
        };
        Some((node, share))
    }
}

/// Returns the lowest priority of pods that the scheduler would not preempt for this one.
pub fn yields_to(spec: &PodSpec) -> i32 {
    match spec.preemption_policy.as_deref() {
        Some("Never") => i32::MIN,
        _ => spec.priority.unwrap_or(0),
    }
}

/// Requests of the pods on a node, summed up by priority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRoom(BTreeMap<i32, Taken>);

/// The share of a node that pods of one priority take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Taken {
    pods: u64,
    requests: ResourceAmounts,
}

impl NodeRoom {
    /// Adds a pod.
    pub fn add(&mut self, share: &PodShare) {
        let taken = self.0.entry(share.priority).or_default();
        taken.pods = taken.pods.saturating_add(1);
        taken.requests.add(&share.requests);
    }

    /// Removes a pod that was added.
    pub fn remove(&mut self, share: &PodShare) {
        let Some(taken) = self.0.get_mut(&share.priority) else {
            return;
        };
        taken.pods = taken.pods.saturating_sub(1);
        taken.requests.subtract(&share.requests);
        if taken.pods == 0 {
            self.0.remove(&share.priority);
        }
    }

    /// Returns whether the node has no pods.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how much of a resource pods of at least this priority have requested; for [`PODS`], their number.
    pub fn requested(&self, resource: &str, priority: i32) -> u64 {
        let amount = |taken: &Taken| match resource {
            PODS => taken.pods,
            _ => taken.requests.get(resource),
        };
        let not_lower = self.0.range(priority..).map(|(_, taken)| amount(taken));
        not_lower.fold(0, u64::saturating_add)
    }
}

/// Yields the resources that a node has too little of for a pod with these requests: name, free and requested amount.
/// `taken` returns how much of a resource is taken. A resource that a node does not list is absent; but every node
/// has CPU, memory and a number of pods, so that their absence means nothing, and missing virtualization is a reason
/// of its own.
pub(super) fn lacks<'a>(
    offered: &ResourceAmounts,
    requests: &'a ResourceAmounts,
    taken: impl Fn(&str) -> u64,
) -> impl Iterator<Item = (&'a str, u64, u64)> {
    let wanted = requests.iter().filter(|(_, amount)| *amount > 0);
    wanted.chain([(PODS, 1)]).filter_map(move |(resource, requested)| {
        let offered = match offered.known(resource) {
            None | Some(0) if resource == KVM_RESOURCE => return None,
            // A kubelet reports these resources, but possibly not yet.
            None if [CPU, "memory", "ephemeral-storage", PODS].contains(&resource) => return None,
            offered => offered.unwrap_or(0),
        };
        let free = offered.saturating_sub(taken(resource));
        (free < requested).then_some((resource, free, requested))
    })
}

/// Returns the resources that a node certainly lacks for a pod with these requirements.
pub(super) fn shortages(needs: &Requirements, node: &NodeView<'_>) -> Vec<Misfit> {
    let Some(allocatable) = node.allocatable else {
        return Vec::new();
    };
    let offered = ResourceAmounts::from_quantities(Some(allocatable));
    let room = node.room.as_deref();
    let taken = |resource: &str| match (room, needs.priority) {
        (Some(room), Some(priority)) => room.requested(resource, priority),
        _ => 0,
    };
    let lacks = lacks(&offered, &needs.requests, taken);
    lacks
        .map(|(resource, free, requested)| Misfit::NoRoom {
            resource: resource.into(),
            requested,
            free,
        })
        .collect()
}

/// Adds the resources that a node lacks, unless the node is too small in total, which is reason enough.
pub(super) fn add_shortages(needs: &Requirements, node: &NodeView<'_>, found: &mut BTreeSet<Misfit>) {
    for shortage in shortages(needs, node) {
        let is_known = found
            .iter()
            .any(|misfit| matches!((misfit, &shortage), (Misfit::TooSmall(one, _), Misfit::NoRoom { resource, .. }) if one == resource));
        if !is_known {
            found.insert(shortage);
        }
    }
}

/// Returns an amount of a resource as human-readable text. A free amount is rounded down and a requested one is rounded
/// up, so that they differ whenever the former is too small for the latter.
pub(super) fn amount(resource: &str, amount: u64, round_up: bool) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    let tenths = |unit: u64| {
        let scaled = u128::from(amount) * 10;
        let unit = u128::from(unit);
        let tenths = if round_up { scaled.div_ceil(unit) } else { scaled / unit };
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let bytes = resource == "memory" || resource == "ephemeral-storage" || resource.starts_with("hugepages-");
    match resource {
        CPU => tenths(1000),
        _ if bytes && amount >= GIB => format!("{} GiB", tenths(GIB)),
        _ if bytes => format!("{} MiB", if round_up { amount.div_ceil(MIB) } else { amount / MIB }),
        _ => amount.to_string(),
    }
}
