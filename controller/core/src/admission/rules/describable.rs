//! Whether the domain XML can be generated at all. This is the final check, by the same function that generates the XML
//! when the guest starts: a guest that would fail at its start is refused at its creation.

use std::collections::BTreeSet;

use drydock_api::{
    facts::VirtType,
    kubevirt::VirtualMachineInstanceSpec,
    launcher::{DiskFormat, PreparedDisk},
};

use crate::{
    admission::{
        At, RefusalList,
        defaults::{Named, default_instance},
    },
    configuration::Configuration,
    domain::{DomainInput, DomainProblem, domain_xml},
};

/// The architecture that guests are checked for, by its Kubernetes name and its libvirt name.
const ARCHITECTURE: (&str, &str) = ("amd64", "x86_64");
/// Placeholder for names that do not exist yet.
const NAME: &str = "guest";

/// Refuses a guest whose domain XML cannot be generated. Called only if every single field is valid.
pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let mut spec = spec.clone();
    let named = Named {
        namespace: NAME,
        name: Some(NAME),
    };
    default_instance(&mut spec, named, &Configuration::default(), ARCHITECTURE.0);
    if spec.architecture.as_deref() != Some(ARCHITECTURE.0) {
        return;
    }
    // The disks as the launcher would prepare them.
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
        // The machine type is of another architecture, and so are the cluster's nodes.
        Ok(_) | Err(DomainProblem::UnsupportedMachine(_)) => {}
        Err(problem) => refusals.impossible(&at.field("domain"), &problem.to_string()),
    }
}
