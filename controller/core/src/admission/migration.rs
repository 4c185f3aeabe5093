//! What a VirtualMachineInstanceMigration may ask for.

use drydock_api::kubevirt::{
    Phase, VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPhase,
    names::conditions::LIVE_MIGRATABLE,
};
use serde_json::{Map, Value};

use super::{At, Refusal, Refusals, rules::is_label_value};

/// Label of a migration: the instance that moves, for whoever looks for its migrations.
pub const INSTANCE_LABEL: &str = "kubevirt.io/vmi-name";

/// What the cluster knows of the instance that is to move.
#[derive(Clone, Copy, Debug)]
pub struct Moved<'a> {
    /// The instance; `None` if there is none of that name.
    pub instance: Option<&'a VirtualMachineInstance>,
    /// Migrations of that instance, whatever their phase.
    pub migrations: &'a [&'a VirtualMachineInstanceMigration],
}

/// A new migration with the label that names its instance. `None` if it has it, or cannot: names of
/// instances can be longer than labels.
pub fn labelled(raw: &Value) -> Option<Value> {
    let name = raw
        .pointer("/spec/vmiName")?
        .as_str()
        .filter(|name| is_label_value(name))?;
    let mut wanted = raw.clone();
    let metadata = wanted.get_mut("metadata")?.as_object_mut()?;
    let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
    let before = labels.as_object_mut()?.insert(INSTANCE_LABEL.into(), name.into());
    (before.as_ref().and_then(Value::as_str) != Some(name)).then_some(wanted)
}

/// What its own fields say.
pub(super) fn check(raw: &Value, refusals: &mut Refusals) {
    let name = raw.pointer("/spec/vmiName").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        refusals.required(&At::root("spec.vmiName"), "the VirtualMachineInstance that is to move");
    }
}

/// What the state of the instance says, in KubeVirt's words. What is not known yet is no reason to
/// refuse: the migration itself waits for it or fails.
pub fn review_state(name: &str, moved: Moved<'_>) -> Option<Refusal> {
    let mut refusals = Refusals::default();
    let at = At::root("spec.vmiName");
    let Some(instance) = moved.instance else {
        refusals.wrong_state(&at, format!("the VMI \"{name}\" does not exist under the cluster"));
        return refusals.into_vec().pop();
    };
    let status = instance.status.clone().unwrap_or_default();
    let migratable = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == LIVE_MIGRATABLE);
    let unfinished = moved.migrations.iter().find(|migration| !is_finished(migration));
    if status.phase.is_some_and(Phase::is_final) {
        refusals.wrong_state(&at, "Cannot migrate VMI in finalized state.".into());
    } else if let Some(condition) = migratable.filter(|condition| condition.status == "False") {
        let reason = condition.reason.as_deref().unwrap_or_default();
        let message = condition.message.as_deref().unwrap_or_default();
        refusals.wrong_state(&at, format!("Cannot migrate VMI, Reason: {reason}, Message: {message}"));
    } else if let Some(other) = unfinished {
        let other = other.metadata.name.as_deref().unwrap_or_default();
        let words = format!(
            "in-flight migration detected. Active migration job ({other}) is currently running for VMI {name}."
        );
        refusals.wrong_state(&at, words);
    }
    refusals.into_vec().pop()
}

fn is_finished(migration: &VirtualMachineInstanceMigration) -> bool {
    let phase = migration.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(MigrationPhase::Succeeded | MigrationPhase::Failed))
}
