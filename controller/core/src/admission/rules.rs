//! Rules for values, beyond the schema.
//!
//! - [`cpu_and_memory`], [`hardware`], [`feature_rules`]: the guest's CPU, memory, machine, firmware and clock.
//! - [`disk_rules`], [`volume_rules`], [`networks`]: the guest's devices and their backends.
//! - [`credential_rules`]: the guest's access credentials.
//! - [`scheduling`], [`probe_rules`]: fields that are copied to the pod, checked as the API server checks a pod.
//! - [`describable`]: whether the domain XML can be generated.
//! - [`machine_rules`], [`replica_set_rules`]: the kinds that create instances.

mod cpu_and_memory;
mod credential_rules;
mod describable;
mod disk_rules;
mod feature_rules;
mod hardware;
mod iso_label;
mod machine_rules;
pub(super) mod name_rules;
mod networks;
mod pod_facts;
mod probe_rules;
mod replica_set_rules;
mod scheduling;
mod volume_rules;

use drydock_api::kubevirt::VirtualMachineInstanceSpec;
use serde_json::Value;

use super::{AdmittedKind, At, RefusalList, annotations, migration_requests};

/// Refuses every value that could never work.
pub(super) fn check(raw: &Value, kind: AdmittedKind, refusals: &mut RefusalList) {
    match kind {
        AdmittedKind::Machine => {
            name_rules::of_object(raw, refusals);
            machine_rules::check(raw, refusals);
            template(raw, refusals);
        }
        AdmittedKind::Instance => {
            name_rules::of_object(raw, refusals);
            name_rules::labels(raw.get("metadata"), &At::root("metadata"), refusals);
            annotations::check(raw.get("metadata"), &At::root("metadata"), refusals);
            instance(raw.get("spec"), &At::root("spec"), refusals);
        }
        AdmittedKind::ReplicaSet => {
            name_rules::of_object(raw, refusals);
            replica_set_rules::check(raw, refusals);
            template(raw, refusals);
        }
        AdmittedKind::Migration => migration_requests::check(raw, refusals),
    }
}

/// Checks the template of an object that creates instances.
fn template(raw: &Value, refusals: &mut RefusalList) {
    let at = At::root("spec.template");
    let Some(template) = raw.pointer("/spec/template").filter(|template| template.is_object()) else {
        return refusals.required(&at, "the template describes the instance");
    };
    name_rules::labels(template.get("metadata"), &at.field("metadata"), refusals);
    annotations::check(template.get("metadata"), &at.field("metadata"), refusals);
    instance(template.get("spec"), &at.field("spec"), refusals);
}

/// Checks the spec of an instance, in the instance itself or in a template.
fn instance(raw: Option<&Value>, at: &At, refusals: &mut RefusalList) {
    let Some(raw) = raw.filter(|spec| spec.is_object()) else {
        return refusals.required(at, "the spec describes the instance");
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
    feature_rules::check(&spec, at, refusals);
    credential_rules::check(&spec, at, refusals);
    volume_rules::check(&spec.volumes, at, refusals);
    disk_rules::check(&spec, at, refusals);
    networks::check(&spec, at, refusals);
    probe_rules::check(&spec, at, refusals);
    scheduling::check(&spec, at, refusals);
    if refusals.count() == before {
        describable::check(&spec, at, refusals);
    }
}
