//! Queries to one libvirt, and the processing of the results.
//!
//! The module makes as few queries as possible on one connection: domain capabilities, the baseline of the host model,
//! capabilities, and two versions. libvirt caches QEMU's capabilities after the first query, so the other queries are
//! cheap.

use drydock_api::facts::{VirtType, VirtualizationFacts};

use crate::{
    architecture::Architecture,
    baseline, capabilities,
    domain_capabilities::{self, DomainCapabilities},
    libvirt::{Detail, Libvirt, LibvirtError, QueriedMachine, Version},
    problem::HostProblem,
};

/// Queries to a libvirt.
pub(crate) trait LibvirtQueries {
    /// Returns the domain capabilities of a machine.
    fn domain_capabilities(&self, machine: &QueriedMachine<'_>, detail: Detail) -> Result<String, LibvirtError>;
    /// Returns the hypervisor CPU baseline of a `<cpu>` element.
    fn baseline(&self, machine: &QueriedMachine<'_>, cpu: &str) -> Result<String, LibvirtError>;
    /// Returns the capabilities of the host.
    fn capabilities(&self) -> Result<String, LibvirtError>;
    /// Returns libvirt's version.
    fn version(&self) -> Result<Version, LibvirtError>;
    /// Returns QEMU's version.
    fn qemu_version(&self) -> Result<Version, LibvirtError>;
}

impl LibvirtQueries for Libvirt {
    fn domain_capabilities(&self, machine: &QueriedMachine<'_>, detail: Detail) -> Result<String, LibvirtError> {
        self.domain_capabilities(machine, detail)
    }

    fn baseline(&self, machine: &QueriedMachine<'_>, cpu: &str) -> Result<String, LibvirtError> {
        self.baseline(machine, cpu)
    }

    fn capabilities(&self) -> Result<String, LibvirtError> {
        self.capabilities()
    }

    fn version(&self) -> Result<Version, LibvirtError> {
        self.version()
    }

    fn qemu_version(&self) -> Result<Version, LibvirtError> {
        self.qemu_version()
    }
}

/// Results of the queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeResult {
    /// Capabilities of guests; `None` if even the domain capabilities are missing.
    pub(crate) facts: Option<VirtualizationFacts>,
    /// Reason why emulation was chosen instead of KVM, if it was.
    pub(crate) kvm_given_up: Option<String>,
    /// Reason why data is missing, if any is.
    pub(crate) problem: Option<HostProblem>,
}

impl From<HostProblem> for ProbeResult {
    fn from(problem: HostProblem) -> Self {
        Self {
            problem: Some(problem),
            ..Self::default()
        }
    }
}

/// Queries libvirt. `virt_type` is the intended way to run guests.
///
/// If `virt_type` is KVM and libvirt refuses KVM or reports no usable model for KVM, emulation is queried instead.
pub(crate) fn probe(
    libvirt: &dyn LibvirtQueries,
    architecture: &Architecture,
    machine: &str,
    virt_type: VirtType,
) -> ProbeResult {
    let mut question = QueriedMachine {
        architecture: architecture.libvirt(),
        machine,
        virt_type,
    };
    let mut kvm_given_up = None;
    let mut domain = domain_capabilities(libvirt, &question, architecture);
    if virt_type == VirtType::Kvm {
        kvm_given_up = match &domain {
            Ok(domain) if domain.has_usable_model() => None,
            Ok(_) => Some("libvirt reports no CPU model that guests can have with KVM".to_owned()),
            // A daemon that has exited gives no information about KVM.
            Err(CapabilitiesProblem::Call(error)) if !error.is_broken_connection() => {
                Some(format!("libvirt refuses KVM: {}", error.message))
            }
            Err(_) => None,
        };
        if kvm_given_up.is_some() {
            question.virt_type = VirtType::Qemu;
            domain = domain_capabilities(libvirt, &question, architecture);
        }
    }
    let domain = match domain {
        Ok(domain) => domain,
        Err(problem) => {
            return ProbeResult {
                kvm_given_up,
                ..problem.into_problem().into()
            };
        }
    };
    let mut problem = None;
    // A failure from this point on leaves a reported gap. The other facts remain valid.
    let mut note = |error: HostProblem| {
        problem.get_or_insert(error);
    };
    let version = libvirt.version().map_err(|error| note(error.into())).ok();
    let qemu_version = libvirt.qemu_version().map_err(|error| note(error.into())).ok();
    let features = features(libvirt, &question, architecture, &domain, version).unwrap_or_else(|error| {
        note(error);
        Vec::new()
    });
    let host = host(libvirt, architecture).unwrap_or_else(|error| {
        note(error);
        capabilities::Capabilities::default()
    });
    let text = |version: Option<Version>| version.map(|version| version.to_string()).unwrap_or_default();
    let facts = facts(question.virt_type, machine, domain, features, host);
    let facts = VirtualizationFacts {
        libvirt_version: text(version),
        qemu_version: text(qemu_version),
        ..facts
    };
    ProbeResult {
        facts: Some(facts),
        kvm_given_up,
        problem,
    }
}

/// Combines the parsed documents to facts.
pub(crate) fn facts(
    virt_type: VirtType,
    machine: &str,
    domain: DomainCapabilities,
    features: Vec<String>,
    host: capabilities::Capabilities,
) -> VirtualizationFacts {
    VirtualizationFacts {
        virt_type,
        machine: machine.to_owned(),
        libvirt_version: String::new(),
        qemu_version: String::new(),
        vendor: domain.vendor,
        host_model: domain.host_model,
        models: domain.models.into(),
        features: features.into(),
        withheld: Vec::new(),
        machine_types: host.machine_types.into(),
        host_passthrough_migratable: domain.host_passthrough_migratable,
        physical_address_bits: domain.physical_address_bits,
        tsc: host.tsc,
        topology: host.topology,
        confidential: domain.confidential,
    }
}

/// Reason why the domain capabilities are missing.
enum CapabilitiesProblem {
    Call(LibvirtError),
    Other(HostProblem),
}

impl CapabilitiesProblem {
    fn into_problem(self) -> HostProblem {
        match self {
            Self::Call(error) => error.into(),
            Self::Other(problem) => problem,
        }
    }
}

fn domain_capabilities(
    libvirt: &dyn LibvirtQueries,
    machine: &QueriedMachine<'_>,
    architecture: &Architecture,
) -> Result<DomainCapabilities, CapabilitiesProblem> {
    let text = libvirt
        .domain_capabilities(machine, Detail::HostModel)
        .map_err(CapabilitiesProblem::Call)?;
    domain_capabilities::parse(&text, architecture).map_err(|error| CapabilitiesProblem::Other(error.into()))
}

/// Returns every feature that a guest can have.
///
/// From libvirt 12.5 on, the input of the baseline is everything that the host can provide. An older libvirt only
/// reports the host model.
fn features(
    libvirt: &dyn LibvirtQueries,
    machine: &QueriedMachine<'_>,
    architecture: &Architecture,
    domain: &DomainCapabilities,
    version: Option<Version>,
) -> Result<Vec<String>, HostProblem> {
    let Some(mut cpu) = domain.host_model_cpu.clone() else {
        return Ok(Vec::new());
    };
    if version.is_some_and(|version| version >= Detail::EVERYTHING_SINCE) {
        let text = libvirt.domain_capabilities(machine, Detail::Everything)?;
        cpu = domain_capabilities::parse(&text, architecture)?
            .host_model_cpu
            .unwrap_or(cpu);
    }
    Ok(baseline::parse(&libvirt.baseline(machine, &cpu)?, architecture)?.features)
}

fn host(libvirt: &dyn LibvirtQueries, architecture: &Architecture) -> Result<capabilities::Capabilities, HostProblem> {
    Ok(capabilities::parse(&libvirt.capabilities()?, architecture)?)
}

#[cfg(test)]
mod tests;
