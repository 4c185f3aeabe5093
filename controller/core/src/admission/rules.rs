//! Rules for values, beyond the schema.
//!
//! - [`cpu_and_memory`], [`hardware`], [`features`]: the guest's CPU, memory, machine, firmware and clock.
//! - [`disks`], [`volumes`], [`networks`]: the guest's devices and their backends.
//! - [`credentials`]: what accounts in the guest accept.
//! - [`scheduling`], [`probes`]: fields that are copied to the pod, checked as the API server checks them there.
//! - [`describable`]: whether the domain XML can be generated.
//! - [`machine`], [`replica_set`]: the kinds that create instances.

mod cpu_and_memory;
mod credentials;
mod describable;
mod disks;
mod features;
mod hardware;
mod iso_label;
mod machine;
pub(super) mod names;
mod networks;
mod pod_facts;
mod probes;
mod replica_set;
mod scheduling;
mod volumes;

use drydock_api::kubevirt::VirtualMachineInstanceSpec;
use serde_json::Value;

use super::{At, Kind, Refusals, annotations, migration};

/// Refuses every value that could never work.
pub(super) fn check(raw: &Value, kind: Kind, refusals: &mut Refusals) {
    match kind {
        Kind::Machine => {
            names::of_object(raw, refusals);
            machine::check(raw, refusals);
            template(raw, refusals);
        }
        Kind::Instance => {
            names::of_object(raw, refusals);
            names::labels(raw.get("metadata"), &At::root("metadata"), refusals);
            annotations::check(raw.get("metadata"), &At::root("metadata"), refusals);
            instance(raw.get("spec"), &At::root("spec"), refusals);
        }
        Kind::ReplicaSet => {
            names::of_object(raw, refusals);
            replica_set::check(raw, refusals);
            template(raw, refusals);
        }
        Kind::Migration => migration::check(raw, refusals),
    }
}

/// Checks the template of an object that creates instances.
fn template(raw: &Value, refusals: &mut Refusals) {
    let at = At::root("spec.template");
    let Some(template) = raw.pointer("/spec/template").filter(|template| template.is_object()) else {
        return refusals.required(&at, "it describes the instance");
    };
    names::labels(template.get("metadata"), &at.field("metadata"), refusals);
    annotations::check(template.get("metadata"), &at.field("metadata"), refusals);
    instance(template.get("spec"), &at.field("spec"), refusals);
}

/// Checks the spec of an instance, in the instance itself or in a template.
fn instance(raw: Option<&Value>, at: &At, refusals: &mut Refusals) {
    let Some(raw) = raw.filter(|spec| spec.is_object()) else {
        return refusals.required(at, "it describes the instance");
    };
    // All components read the spec with these types: a spec that does not parse here does not parse anywhere.
    let spec: VirtualMachineInstanceSpec = match serde_json::from_value(raw.clone()) {
        Ok(spec) => spec,
        Err(error) => return refusals.malformed(at, &error.to_string()),
    };
    let domain = at.field("domain");
    let before = refusals.count();
    cpu_and_memory::check(&spec.domain, &domain, refusals);
    hardware::check(&spec, at, refusals);
    features::check(&spec, at, refusals);
    credentials::check(&spec, at, refusals);
    volumes::check(&spec.volumes, at, refusals);
    disks::check(&spec, at, refusals);
    networks::check(&spec, at, refusals);
    probes::check(&spec, at, refusals);
    scheduling::check(&spec, at, refusals);
    if refusals.count() == before {
        describable::check(&spec, at, refusals);
    }
}
