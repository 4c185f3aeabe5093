//! Whether the guest can be described to libvirt at all: the last word, by the same function that
//! describes it when it starts. So nothing is admitted that fails there.

use std::collections::BTreeSet;

use drydock_api::{
    facts::VirtType,
    kubevirt::VirtualMachineInstanceSpec,
    launcher::{DiskFormat, PreparedDisk},
};

use crate::{
    admission::{
        At, Refusals,
        defaults::{Named, default_instance},
    },
    configuration::Configuration,
    domain::{DomainInput, DomainProblem, domain_xml},
};

/// The architecture whose guests are described, by Kubernetes' name and libvirt's.
const ARCHITECTURE: (&str, &str) = ("amd64", "x86_64");
/// A name for what has none yet.
const NAME: &str = "guest";

/// Refuses what cannot be described. Asked only where every single field is right.
pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut Refusals) {
    let mut spec = spec.clone();
    let named = Named {
        namespace: NAME,
        name: Some(NAME),
    };
    default_instance(&mut spec, named, &Configuration::default(), ARCHITECTURE.0);
    if spec.architecture.as_deref() != Some(ARCHITECTURE.0) {
        return;
    }
    // As the launcher would prepare them.
    let disks: Vec<PreparedDisk> = spec
        .volumes
        .iter()
        .map(|volume| PreparedDisk {
            name: volume.name.clone(),
            path: format!("/{}", volume.name),
            format: DiskFormat::Raw,
            virtual_size: 0,
            backing: None,
        })
        .collect();
    let described = domain_xml(&DomainInput {
        namespace: NAME,
        name: NAME,
        uid: NAME,
        spec: &spec,
        virt_type: VirtType::Kvm,
        architecture: ARCHITECTURE.1,
        masked_features: &BTreeSet::new(),
        host_features: None,
        host_passthrough_migratable: None,
        disks: &disks,
        addresses: &[],
    });
    match described {
        // A machine of another architecture, which is then that of the cluster.
        Ok(_) | Err(DomainProblem::UnsupportedMachine(_)) => {}
        Err(problem) => refusals.impossible(&at.field("domain"), &problem.to_string()),
    }
}
