//! Which eviction strategy an instance names, and which is the cluster's to choose.
//!
//! The cluster's default (`HyperConverged`'s `evictionStrategy`) is evaluated at each eviction, so that a change of it
//! concerns instances that run. Earlier releases wrote it into each instance that named none. Such a value is told from one
//! that its user has named by what the instance was made of:
//!
//! | the instance has a strategy, and | it |
//! |---|---|
//! | belongs to a machine, was made of its template as it is now, and the template names none | was filled in |
//! | belongs to a machine whose template names one, or was changed since, or is not known | stands |
//! | belongs to something else, such as a replica set | stands |
//! | belongs to nobody, and `kubectl apply` remembers a manifest that names none | was filled in |
//! | belongs to nobody, and there is no such manifest, or it names one | stands |
//!
//! What cannot be told stands as it did until the instance is made anew: an instance must not lose a protection that
//! its user has named. A spec cannot be changed, so nothing else can name a strategy later.

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{VirtualMachine, VirtualMachineInstance, names::TEMPLATE},
};
use serde_json::Value;

use crate::{
    launcher_pod::LAST_APPLIED,
    machine::{instance_of::template_fingerprint, owns},
};

/// The strategy in force for an instance. `machine` is the VirtualMachine of the instance's name, if it is known;
/// `default` is the cluster's.
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

/// Clears the strategy of an instance that belongs to nobody and names none, by the manifest that `kubectl apply`
/// remembers. Whoever drops that annotation calls this before.
pub fn clear_filled_in(instance: &mut VirtualMachineInstance) {
    if !has_controller(instance) && was_filled_in(instance, None) {
        instance.spec.eviction_strategy = None;
    }
}

fn has_controller(instance: &VirtualMachineInstance) -> bool {
    let owners = instance.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.controller == Some(true))
}

fn was_filled_in(instance: &VirtualMachineInstance, machine: Option<&VirtualMachine>) -> bool {
    let annotation = |key: &str| instance.metadata.annotations.as_ref().and_then(|all| all.get(key));
    if has_controller(instance) {
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

    /// The cluster's default was `LiveMigrate` when the instance was made, and is `LiveMigrateIfPossible` now.
    #[test]
    fn strategy_of_a_machines_instance_follows_its_template() {
        let silent = machine(&json!({"domain": {"devices": {}}}));
        let named = machine(&json!({"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"}));
        let changed = machine(&json!({"domain": {"devices": {}}, "hostname": "other"}));
        let mut foreign = silent.clone();
        foreign.metadata.uid = Some("another".into());
        let old = |machine: &VirtualMachine| {
            let mut instance = instance_of(machine);
            instance.spec.eviction_strategy = Some(LiveMigrate);
            instance
        };
        for (what, instance, machine, wanted) in [
            ("filled in", old(&silent), Some(&silent), LiveMigrateIfPossible),
            (
                "not filled in",
                instance_of(&silent),
                Some(&silent),
                LiveMigrateIfPossible,
            ),
            ("named", instance_of(&named), Some(&named), LiveMigrate),
            ("changed since", old(&silent), Some(&changed), LiveMigrate),
            ("named then", old(&named), Some(&silent), LiveMigrate),
            ("of another machine", old(&silent), Some(&foreign), LiveMigrate),
            ("of an unknown machine", old(&silent), None, LiveMigrate),
            (
                "silent, of an unknown machine",
                instance_of(&silent),
                None,
                LiveMigrateIfPossible,
            ),
        ] {
            assert_eq!(in_force(&instance, machine, LiveMigrateIfPossible), wanted, "{what}");
        }
    }

    #[test]
    fn strategy_of_a_bare_instance_follows_its_manifest() {
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
