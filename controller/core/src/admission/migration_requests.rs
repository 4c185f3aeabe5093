//! Review of VirtualMachineInstanceMigrations: their own fields, and the state of the cluster.
//!
//! ```text
//!  manifest ─▶ prepared() ─▶ check(), review_requester() ─▶ review_instance(), review_in_flight()
//!              label, finalizer     its own fields            the state of the cluster
//! ```

use std::collections::BTreeMap;

use drydock_api::kubevirt::{
    Phase, VirtualMachineInstance, VirtualMachineInstanceMigration,
    migration::MigrationPhase,
    names::{MIGRATION_FINALIZER, conditions::LIVE_MIGRATABLE},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    AdmissionRefusal, At, RefusalList,
    reserved::CONTROLLER,
    rules::name_rules::{is_label_value, node_selector, reference},
};
use crate::migration::purpose::{EVACUATION, WORKLOAD_UPDATE};

/// Label of a migration: name of the instance that moves; clients list an instance's migrations by it.
pub const INSTANCE_LABEL: &str = "kubevirt.io/vmi-name";

/// KubeVirt's messages, which clients know.
const LABEL_REMOVED: &str = "selector label can't be removed from an in-flight migration";
const LABEL_MODIFIED: &str = "selector label can't be modified on an in-flight migration";

/// Returns a new migration with the label that names its instance, and with the finalizer that lets the controller
/// cancel it cleanly when it is deleted. `None` if it already has both.
///
/// An instance name can be longer than a label value; such a migration gets no label.
pub fn prepared(raw: &Value) -> Option<Value> {
    let mut wanted = raw.clone();
    let name = raw.pointer("/spec/vmiName")?.as_str()?;
    let metadata = wanted.get_mut("metadata")?.as_object_mut()?;
    if is_label_value(name) {
        let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
        labels.as_object_mut()?.insert(INSTANCE_LABEL.into(), name.into());
    }
    let finalizers = metadata
        .entry("finalizers")
        .or_insert_with(|| Value::Array(Vec::new()))
        .as_array_mut()?;
    if !finalizers.iter().any(|name| name == MIGRATION_FINALIZER) {
        finalizers.push(MIGRATION_FINALIZER.into());
    }
    (wanted != *raw).then_some(wanted)
}

/// Checks the migration's own fields.
pub(super) fn check(raw: &Value, refusals: &mut RefusalList) {
    let at = At::root("spec.vmiName");
    match raw.pointer("/spec/vmiName").and_then(Value::as_str) {
        None | Some("") => refusals.required(&at, "the VirtualMachineInstance to migrate"),
        Some(name) => reference(name, &at, refusals),
    }
    if let Some(labels) = raw.pointer("/spec/addedNodeSelector") {
        let at = At::root("spec.addedNodeSelector");
        match BTreeMap::<String, String>::deserialize(labels) {
            Ok(labels) => node_selector(&labels, &at, refusals),
            Err(error) => refusals.malformed(&at, &error.to_string()),
        }
    }
}

/// Refuses requests that are reserved for the controller, so that no other user moves to the head of the queue. These
/// are the priority and the annotations of [`MigrationPurpose`](crate::migration::purpose::MigrationPurpose). `old` is
/// the migration before the change, `None` if the migration is new; fields that were set before are not refused again.
pub fn review_requester(old: Option<&Value>, raw: &Value, user: &str) -> Vec<AdmissionRefusal> {
    let mut refusals = RefusalList::default();
    if user == CONTROLLER {
        return refusals.into_vec();
    }
    let priority = raw.pointer("/spec/priority").filter(|priority| !priority.is_null());
    if priority.is_some() && old.is_none() {
        refusals.reserved(&At::root("spec.priority"), CONTROLLER);
    }
    for key in [EVACUATION, WORKLOAD_UPDATE] {
        let annotation = |raw: &Value| Some(raw.get("metadata")?.get("annotations")?.get(key)?.clone());
        if annotation(raw) != old.and_then(annotation) {
            refusals.reserved(&At::root(&format!("metadata.annotations[{key}]")), CONTROLLER);
        }
    }
    refusals.into_vec()
}

/// Refuses changes to a migration in flight that are outside its spec: changes of the label by which its instance's
/// migrations are found. Correcting a wrong label is allowed.
pub(super) fn check_change(old: &Value, new: &Value, refusals: &mut RefusalList) {
    let label = |raw: &Value| Some(raw.get("metadata")?.get("labels")?.get(INSTANCE_LABEL)?.clone());
    let phase = new.pointer("/status/phase").and_then(Value::as_str);
    let is_over = [MigrationPhase::Succeeded, MigrationPhase::Failed]
        .iter()
        .any(|last| phase == Some(last.as_str()));
    let (before, after) = (label(old), label(new));
    if is_over || before.is_none() || before == after {
        return;
    }
    let at = At::root(&format!("metadata.labels[{INSTANCE_LABEL}]"));
    match after {
        None => refusals.immutable(&at, LABEL_REMOVED),
        Some(name) if Some(&name) == new.pointer("/spec/vmiName") => {}
        Some(_) => refusals.immutable(&at, LABEL_MODIFIED),
    }
}

/// Refuses a migration because of its instance's state, with KubeVirt's messages. `instance` is `None` if the instance
/// does not exist.
///
/// State that is not known yet is no reason to refuse: the migration itself waits for it or fails.
pub fn review_instance(name: &str, instance: Option<&VirtualMachineInstance>) -> Option<AdmissionRefusal> {
    let Some(instance) = instance else {
        return refusal(format!("the VMI \"{name}\" does not exist under the cluster"));
    };
    let status = instance.status.as_ref()?;
    if status.phase.is_some_and(Phase::is_final) {
        return refusal("Cannot migrate VMI in finalized state.".into());
    }
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == LIVE_MIGRATABLE && condition.status == "False")?;
    let reason = condition.reason.as_deref().unwrap_or_default();
    let message = condition.message.as_deref().unwrap_or_default();
    refusal(format!("Cannot migrate VMI, Reason: {reason}, Message: {message}"))
}

/// Refuses a new migration while another one of the same instance is in flight, with KubeVirt's message.
///
/// Two migrations that are created at the same time do not see each other: the controller continues the older one and
/// fails the other.
pub fn review_in_flight(other: &VirtualMachineInstanceMigration) -> Option<AdmissionRefusal> {
    let phase = other.phase();
    if phase.is_some_and(MigrationPhase::is_final) {
        return None;
    }
    let (job, name) = (other.metadata.name.as_deref().unwrap_or_default(), &other.spec.vmi_name);
    refusal(format!(
        "in-flight migration detected. Active migration job ({job}) is currently already in progress for VMI {name}."
    ))
}

fn refusal(text: String) -> Option<AdmissionRefusal> {
    let mut refusals = RefusalList::default();
    refusals.wrong_state(&At::root("spec.vmiName"), text);
    refusals.into_vec().pop()
}
