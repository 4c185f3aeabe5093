//! The guest's CPU: topology, model and features.

use std::collections::BTreeSet;

use drydock_api::{
    facts::VirtType,
    kubevirt::{
        domain_spec::{Cpu, FeaturePolicy, Resources},
        instance::VirtualMachineInstanceSpec,
    },
};

use super::{element::Element, problem::DomainProblem};
use crate::{
    default_cpu::{HOST_MODEL, HOST_PASSTHROUGH, MAXIMUM},
    quantity,
};

/// Maximum number of CPUs of a guest without interrupt remapping.
const MOST: u64 = 255;

/// Sockets, cores per socket and threads per core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuestTopology {
    sockets: u32,
    cores: u32,
    threads: u32,
}

impl GuestTopology {
    /// Reads the topology from the spec; unset parts are 1. If none of the three is set, there is one socket per CPU
    /// of the limit, else of the request, as in KubeVirt.
    pub(super) fn of(spec: &VirtualMachineInstanceSpec) -> Self {
        let given = spec.domain.cpu.as_ref();
        let part = |choose: fn(&Cpu) -> Option<u32>| given.and_then(choose);
        let parts = [part(|cpu| cpu.sockets), part(|cpu| cpu.cores), part(|cpu| cpu.threads)];
        let [sockets, cores, threads] = parts.map(|part| part.unwrap_or(1));
        let sockets = match &spec.domain.resources {
            Some(resources) if parts == [None; 3] => whole_cpus(resources).unwrap_or(sockets),
            _ => sockets,
        };
        Self {
            sockets,
            cores,
            threads,
        }
    }

    /// Returns the total number of threads.
    pub(super) fn count(self) -> Result<u64, DomainProblem> {
        let count = u64::from(self.sockets)
            .saturating_mul(self.cores.into())
            .saturating_mul(self.threads.into());
        if (1..=MOST).contains(&count) {
            Ok(count)
        } else {
            Err(DomainProblem::BadCpuCount(count))
        }
    }

    fn element(self) -> Element {
        Element::new("topology")
            .with("sockets", self.sockets.to_string())
            .with("cores", self.cores.to_string())
            .with("threads", self.threads.to_string())
    }
}

/// Returns the CPUs of the limit, else of the request, rounded up; `None` without either.
fn whole_cpus(resources: &Resources) -> Option<u32> {
    let amount = resources.limits.get("cpu").or_else(|| resources.requests.get("cpu"))?;
    let cpus = quantity::milli_cpus(&amount.0)?.div_ceil(1000);
    u32::try_from(cpus).ok().filter(|count| *count > 0)
}

/// The effect of a node's mask on guests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask<'a> {
    /// Features that are withheld from all guests.
    pub(super) masked: &'a BTreeSet<String>,
    /// Features that a guest could have on this node; `None` if unknown.
    pub(super) host: Option<&'a BTreeSet<String>>,
}

impl Mask<'_> {
    /// Returns the policy of a feature that the spec names. A masked feature counts as absent: a guest that can do
    /// without it does so, even where its policy would refuse a host that has it.
    fn policy(self, name: &str, policy: FeaturePolicy) -> Result<FeaturePolicy, DomainProblem> {
        if !self.masked.contains(name) {
            return Ok(policy);
        }
        match policy {
            FeaturePolicy::Force | FeaturePolicy::Require => Err(DomainProblem::FeatureMasked(name.into())),
            FeaturePolicy::Optional | FeaturePolicy::Disable | FeaturePolicy::Forbid => Ok(FeaturePolicy::Disable),
        }
    }

    /// Yields the masked features that a guest could otherwise have, except those that the spec names. On a node whose
    /// features are unknown, these are all masked features.
    fn withheld<'a>(&'a self, named: &'a BTreeSet<&str>) -> impl Iterator<Item = &'a str> {
        self.masked
            .iter()
            .map(String::as_str)
            .filter(|&name| self.host.is_none_or(|host| host.contains(name)) && !named.contains(name))
    }
}

/// Returns the element `cpu`.
///
/// In emulation the emulator is the host: `host-passthrough`, which libvirt does not support in emulation, is the same
/// as `host-model`. `migratable`: whether libvirt may be requested to omit features that cannot be migrated from the
/// host's own CPU; libvirt refuses that where QEMU has no such switch.
pub(super) fn element(
    spec: &VirtualMachineInstanceSpec,
    topology: GuestTopology,
    virt_type: VirtType,
    migratable: bool,
    mask: Mask<'_>,
) -> Result<Element, DomainProblem> {
    let given = spec.domain.cpu.as_ref();
    let model = given.and_then(|cpu| cpu.model.as_deref()).unwrap_or(HOST_MODEL);
    let cpu = Element::new("cpu");
    let mut cpu = match (model, virt_type) {
        (HOST_MODEL, _) | (HOST_PASSTHROUGH, VirtType::Qemu | VirtType::Unknown) => cpu.with("mode", HOST_MODEL),
        (HOST_PASSTHROUGH, VirtType::Kvm) if migratable => cpu.with("mode", HOST_PASSTHROUGH).with("migratable", "on"),
        (HOST_PASSTHROUGH, VirtType::Kvm) => cpu.with("mode", HOST_PASSTHROUGH),
        (MAXIMUM, _) => cpu.with("mode", "maximum"),
        (model, _) => cpu
            .with("mode", "custom")
            .with("match", "exact")
            .child(Element::text("model", model).with("fallback", "forbid")),
    };
    cpu = cpu.child(topology.element());
    let mut named = BTreeSet::new();
    for feature in given.iter().flat_map(|cpu| &cpu.features) {
        if named.insert(feature.name.as_str()) {
            let policy = mask.policy(&feature.name, feature.policy.unwrap_or(FeaturePolicy::Require))?;
            cpu = cpu.child(feature_element(&feature.name, policy));
        }
    }
    let withheld = mask
        .withheld(&named)
        .map(|name| feature_element(name, FeaturePolicy::Disable));
    Ok(cpu.children(withheld))
}

fn feature_element(name: &str, policy: FeaturePolicy) -> Element {
    Element::new("feature")
        .with("policy", policy.as_str())
        .with("name", name)
}
