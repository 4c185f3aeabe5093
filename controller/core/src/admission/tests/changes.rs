//! What may change after creation, and what a migration needs.

use std::{fs, path::Path};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use serde_json::{Value, json};

use super::{
    super::{
        Kind, Reason,
        change::{CONTROLLER, RESERVED_LABELS, review_change},
        migration::{INSTANCE_LABEL, Moved, labelled, review_state},
        sentence,
    },
    instance, machine, put, told,
};

const SOMEBODY: &str = "kubernetes-admin";

#[test]
fn an_instance_stays_as_it_was_created() {
    let old = instance();
    let mut new = old.clone();
    put(&mut new, "/metadata/labels", json!({"app": "db"}));
    put(&mut new, "/status", json!({"phase": "Running"}));
    assert_eq!(review_change(&old, &new, Kind::Instance, SOMEBODY), []);
    put(&mut new, "/spec/evictionStrategy", json!("LiveMigrate"));
    let refusals = review_change(&old, &new, Kind::Instance, SOMEBODY);
    assert_eq!(sentence(&refusals), "update of VMI object is restricted");
    assert_eq!(refusals[0].reason, Reason::Immutable);
    // The controller fills in defaults, which are reviewed as well.
    assert_eq!(review_change(&old, &new, Kind::Instance, CONTROLLER), []);
    put(&mut new, "/spec/architecture", json!("pdp11"));
    let refusals = review_change(&old, &new, Kind::Instance, CONTROLLER);
    assert_eq!(
        sentence(&refusals),
        "spec.architecture: `pdp11` is not allowed; allowed: amd64, arm64, s390x"
    );
    // Deleting works whatever there is.
    put(&mut new, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    assert_eq!(review_change(&old, &new, Kind::Instance, SOMEBODY), []);
}

#[test]
fn a_virtual_machine_is_reviewed_when_its_spec_changes() {
    let mut old = machine(instance());
    put(&mut old, "/spec/instancetype", json!({"name": "of an older version"}));
    let mut new = old.clone();
    put(&mut new, "/metadata/labels", json!({"app": "db"}));
    assert_eq!(review_change(&old, &new, Kind::Machine, SOMEBODY), []);
    put(&mut new, "/spec/runStrategy", json!("Halted"));
    let refusals = review_change(&old, &new, Kind::Machine, SOMEBODY);
    assert!(
        sentence(&refusals).starts_with("spec.instancetype is not supported"),
        "{refusals:?}"
    );
}

#[test]
fn labels_of_the_system_cannot_be_set() {
    for label in RESERVED_LABELS {
        let mut object = instance();
        put(&mut object, "/metadata/labels", json!({(label): "x"}));
        let told = told(&object, Kind::Instance);
        assert!(told.contains(label) && told.contains("prohibited"), "{told}");
    }
    let mut object = instance();
    put(
        &mut object,
        "/metadata/labels",
        json!({"kubevirt.io/domain": "db", "kubevirt.io/size": "small"}),
    );
    assert_eq!(told(&object, Kind::Instance), "");
}

fn migration(phase: Option<&str>) -> VirtualMachineInstanceMigration {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "move"},
        "spec": {"vmiName": "vm"},
        "status": {"phase": phase},
    }))
    .unwrap()
}

#[test]
fn migrations_are_refused_in_kubevirts_words() {
    let of = |status: Value| -> VirtualMachineInstance {
        let mut object = instance();
        put(&mut object, "/status", status);
        serde_json::from_value(object).unwrap()
    };
    let condition = |status: &str| {
        json!({"phase": "Running", "conditions": [
            {"type": "LiveMigratable", "status": status, "reason": "DisksNotLiveMigratable", "message": "no RWX"},
        ]})
    };
    let refused = |instance: Option<&VirtualMachineInstance>, migrations: &[&VirtualMachineInstanceMigration]| {
        review_state("vm", Moved { instance, migrations }).map(|refusal| refusal.message)
    };
    let running = of(json!({"phase": "Running"}));
    assert_eq!(
        refused(None, &[]).unwrap(),
        "the VMI \"vm\" does not exist under the cluster"
    );
    assert_eq!(
        refused(Some(&of(json!({"phase": "Succeeded"}))), &[]).unwrap(),
        "Cannot migrate VMI in finalized state."
    );
    assert_eq!(
        refused(Some(&of(condition("False"))), &[]).unwrap(),
        "Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: no RWX"
    );
    // What is not known is no reason.
    assert_eq!(refused(Some(&of(condition("Unknown"))), &[]), None);
    assert_eq!(refused(Some(&running), &[]), None);
    for finished in ["Succeeded", "Failed"] {
        assert_eq!(refused(Some(&running), &[&migration(Some(finished))]), None);
    }
    for unfinished in [None, Some("Pending"), Some("Running")] {
        let words = refused(Some(&running), &[&migration(unfinished)]).unwrap();
        assert!(words.starts_with("in-flight migration detected."), "{words}");
    }
}

#[test]
fn a_migration_names_its_instance_and_nothing_more() {
    let asked = |spec: Value| told(&json!({"metadata": {"name": "move"}, "spec": spec}), Kind::Migration);
    assert_eq!(asked(json!({"vmiName": "vm", "addedNodeSelector": {"a": "b"}})), "");
    assert!(asked(json!({"vmiName": ""})).starts_with("spec.vmiName must be set"));
    assert!(
        asked(json!({"vmiName": "vm", "sendTo": {"migrationID": "x"}})).starts_with("spec.sendTo is not supported")
    );
    let priority = json!({"vmiName": "vm", "priority": "system-critical"});
    assert!(asked(priority).starts_with("spec.priority is not supported"));
    let (old, new) = (json!({"spec": {"vmiName": "a"}}), json!({"spec": {"vmiName": "b"}}));
    let refusals = review_change(&old, &new, Kind::Migration, CONTROLLER);
    assert_eq!(sentence(&refusals), "update of Migration object's spec is restricted");
}

#[test]
fn a_migration_is_labelled_with_its_instance() {
    let bare = json!({"metadata": {"name": "move"}, "spec": {"vmiName": "vm"}});
    let whole = labelled(&bare).unwrap();
    assert_eq!(whole["metadata"]["labels"][INSTANCE_LABEL], "vm");
    assert_eq!(labelled(&whole), None);
    let mut wrong = whole.clone();
    wrong["metadata"]["labels"][INSTANCE_LABEL] = json!("other");
    assert_eq!(labelled(&wrong), Some(whole));
    let long = json!({"metadata": {}, "spec": {"vmiName": "x".repeat(64)}});
    assert_eq!(labelled(&long), None);
    assert_eq!(labelled(&json!({"spec": {"vmiName": "vm"}})), None);
}

#[test]
fn the_policy_protects_every_label_of_the_system() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/policies/instance-labels.yaml");
    let policy = fs::read_to_string(file).unwrap();
    for label in RESERVED_LABELS {
        assert!(policy.contains(&format!("'{label}'")), "{label}");
    }
    assert!(policy.contains(CONTROLLER));
}
