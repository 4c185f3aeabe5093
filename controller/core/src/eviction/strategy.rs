//! Determines the eviction strategy in force: the VMI's own, or the cluster's default.
//!
//! The cluster's default (`HyperConverged`'s `evictionStrategy`) is evaluated at each eviction, so changing it affects
//! running VMIs. Earlier releases wrote the default into each VMI without a strategy. The VMI's origin distinguishes
//! such a value from a value that the user has set:
//!
//! | the VMI has a strategy, and | the strategy |
//! |---|---|
//! | belongs to a VM, was created from its current template, and the template sets none | was filled in |
//! | belongs to a VM whose template sets one, or was changed since, or is unknown | is kept |
//! | belongs to another owner, such as a replica set | is kept |
//! | has no owner, and `kubectl apply` recorded a manifest that sets none | was filled in |
//! | has no owner, and there is no such manifest, or it sets one | is kept |
//!
//! In undecidable cases the value is kept until the VMI is created again: a VMI must not lose a protection that its
//! user has set. A spec is immutable, so a strategy cannot be set later.

use drydock_api::{
    controlling_owner,
    hyperconverged::EvictionStrategy,
    kubevirt::{VirtualMachine, VirtualMachineInstance, names::TEMPLATE},
};
use serde_json::Value;

use crate::{
    launcher_pod::LAST_APPLIED,
    machine::{instance_of::template_fingerprint, owns},
};

/// Returns the strategy in force for a VMI. `machine` is the VirtualMachine with the VMI's name, if known; `default` is
/// the cluster's default.
pub fn in_force(
    instance: &VirtualMachineInstance,
    machine: Option<&VirtualMachine>,
    default: EvictionStrategy,
) -> EvictionStrategy {
    match instance.spec.eviction_strategy {
        Some(own) if !was_filled_in(instance, machine) => own,
        _ => default,
    }
}

/// Clears the filled-in strategy of a VMI without owner, based on the manifest that `kubectl apply` recorded. Must be
/// called before that annotation is removed.
pub fn clear_filled_in(instance: &mut VirtualMachineInstance) {
    if controlling_owner(&instance.metadata).is_none() && was_filled_in(instance, None) {
        instance.spec.eviction_strategy = None;
    }
}

fn was_filled_in(instance: &VirtualMachineInstance, machine: Option<&VirtualMachine>) -> bool {
    let annotation = |key: &str| instance.metadata.annotations.as_ref().and_then(|all| all.get(key));
    if controlling_owner(&instance.metadata).is_some() {
        return machine
            .filter(|machine| owns(machine, instance))
            .is_some_and(|machine| {
                let template = &machine.spec.template;
                template.spec.eviction_strategy.is_none()
                    && annotation(TEMPLATE) == Some(&template_fingerprint(template))
            });
    }
    let manifest = annotation(LAST_APPLIED).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let spec = manifest.as_ref().and_then(|manifest| manifest.get("spec"));
    spec.is_some_and(|spec| spec.get("evictionStrategy").is_none_or(Value::is_null))
}

#[cfg(test)]
mod tests {
    use EvictionStrategy::{LiveMigrate, LiveMigrateIfPossible};
    use serde_json::json;

    use super::*;
    use crate::machine::instance_of::instance_of;

    fn machine(spec: &Value) -> VirtualMachine {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "vm", "namespace": "n", "uid": "u"},
            "spec": {"runStrategy": "Always", "template": {"metadata": {}, "spec": spec}},
        }))
        .unwrap()
    }

    fn bare(strategy: &Value, last_applied: Option<&str>) -> VirtualMachineInstance {
        let annotations = last_applied.map(|text| json!({LAST_APPLIED: text}));
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "namespace": "n", "annotations": annotations},
            "spec": {"domain": {"devices": {}}, "evictionStrategy": strategy},
        }))
        .unwrap()
    }

    /// The cluster's default was `LiveMigrate` when the VMI was created, and is `LiveMigrateIfPossible` now.
    #[test]
    fn eviction_strategy_of_a_machine_follows_the_template() {
        let unset = machine(&json!({"domain": {"devices": {}}}));
        let named = machine(&json!({"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"}));
        let changed = machine(&json!({"domain": {"devices": {}}, "hostname": "other"}));
        let mut foreign = unset.clone();
        foreign.metadata.uid = Some("another".into());
        let old = |machine: &VirtualMachine| {
            let mut instance = instance_of(machine);
            instance.spec.eviction_strategy = Some(LiveMigrate);
            instance
        };
        for (what, instance, machine, wanted) in [
            ("filled in", old(&unset), Some(&unset), LiveMigrateIfPossible),
            (
                "not filled in",
                instance_of(&unset),
                Some(&unset),
                LiveMigrateIfPossible,
            ),
            ("named", instance_of(&named), Some(&named), LiveMigrate),
            ("changed since", old(&unset), Some(&changed), LiveMigrate),
            ("named then", old(&named), Some(&unset), LiveMigrate),
            ("of another machine", old(&unset), Some(&foreign), LiveMigrate),
            ("of an unknown machine", old(&unset), None, LiveMigrate),
            (
                "unresponsive, of an unknown machine",
                instance_of(&unset),
                None,
                LiveMigrateIfPossible,
            ),
        ] {
            assert_eq!(in_force(&instance, machine, LiveMigrateIfPossible), wanted, "{what}");
        }
    }

    #[test]
    fn eviction_strategy_of_bare_instance_follows_the_manifest() {
        let (own, none) = (json!("LiveMigrate"), Value::Null);
        for (strategy, manifest, wanted) in [
            (&own, Some(r#"{"spec":{"domain":{}}}"#), LiveMigrateIfPossible),
            (
                &own,
                Some(r#"{"spec":{"evictionStrategy":null}}"#),
                LiveMigrateIfPossible,
            ),
            (
                &own,
                Some(r#"{"spec":{"evictionStrategy":"LiveMigrate"}}"#),
                LiveMigrate,
            ),
            (&own, Some("{}"), LiveMigrate),
            (&own, Some("not JSON"), LiveMigrate),
            (&own, None, LiveMigrate),
            (&none, None, LiveMigrateIfPossible),
        ] {
            let mut instance = bare(strategy, manifest);
            assert_eq!(
                in_force(&instance, None, LiveMigrateIfPossible),
                wanted,
                "{strategy}, {manifest:?}"
            );
            clear_filled_in(&mut instance);
            instance.metadata.annotations = None;
            assert_eq!(
                in_force(&instance, None, LiveMigrateIfPossible),
                wanted,
                "{strategy}, {manifest:?}"
            );
        }
        let mut owned = bare(&own, Some(r#"{"spec":{}}"#));
        owned.metadata.owner_references = serde_json::from_value(json!([
            {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "name": "s", "uid": "s", "controller": true},
        ]))
        .unwrap();
        clear_filled_in(&mut owned);
        assert_eq!(in_force(&owned, None, LiveMigrateIfPossible), LiveMigrate);
    }
}
