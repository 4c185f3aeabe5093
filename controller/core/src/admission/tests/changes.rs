//! Allowed changes after creation, and the checks of migrations.

use std::{fs, path::Path};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration, names::MIGRATION_FINALIZER};
use serde_json::{Value, json};

use super::{
    super::{
        AdmissionReason, AdmittedKind,
        change::review_change,
        migration_requests::{INSTANCE_LABEL, prepared, review_in_flight, review_instance, review_requester},
        reserved::{CONTROLLER, RESERVED_LABELS},
        sentence,
    },
    instance, machine, put, refusal_text,
};

const SOMEBODY: &str = "kubernetes-admin";

#[test]
fn instance_spec_is_immutable_after_creation() {
    let old = instance();
    let mut new = old.clone();
    put(&mut new, "/metadata/labels", json!({"app": "db"}));
    put(&mut new, "/status", json!({"phase": "Running"}));
    assert_eq!(review_change(&old, &new, AdmittedKind::Instance, SOMEBODY), []);
    put(&mut new, "/spec/evictionStrategy", json!("LiveMigrate"));
    let refusals = review_change(&old, &new, AdmittedKind::Instance, SOMEBODY);
    assert_eq!(sentence(&refusals), "update of VMI object is restricted");
    assert_eq!(refusals[0].reason, AdmissionReason::Immutable);
    // The controller fills in defaults, which are reviewed as well.
    assert_eq!(review_change(&old, &new, AdmittedKind::Instance, CONTROLLER), []);
    put(&mut new, "/spec/architecture", json!("pdp11"));
    let refusals = review_change(&old, &new, AdmittedKind::Instance, CONTROLLER);
    assert_eq!(
        sentence(&refusals),
        "spec.architecture: `pdp11` is not allowed; allowed: amd64, arm64, s390x"
    );
    // Deletion always works.
    put(&mut new, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    assert_eq!(review_change(&old, &new, AdmittedKind::Instance, SOMEBODY), []);
}

#[test]
fn the_time_to_shut_down_can_only_become_shorter() {
    for (before, after, allowed) in [
        (json!(180), json!(0), true),
        (json!(180), json!(179), true),
        (json!(180), json!(180), true),
        (json!(180), json!(181), false),
        (json!(180), json!(-1), false),
        (json!(180), json!("0"), false),
        (json!(180), Value::Null, false),
        (Value::Null, json!(29), true),
        (Value::Null, json!(30), false),
    ] {
        let mut old = instance();
        put(&mut old, "/spec/terminationGracePeriodSeconds", before.clone());
        let mut new = old.clone();
        put(&mut new, "/spec/terminationGracePeriodSeconds", after.clone());
        let refusals = review_change(&old, &new, AdmittedKind::Instance, SOMEBODY);
        assert_eq!(refusals.is_empty(), allowed, "{before} to {after}: {refusals:?}");
        // No other field may change at the same time.
        put(&mut new, "/spec/evictionStrategy", json!("None"));
        assert_ne!(review_change(&old, &new, AdmittedKind::Instance, SOMEBODY), []);
    }
}

#[test]
fn virtual_machine_is_reviewed_when_the_spec_changes() {
    let mut old = machine(instance());
    put(&mut old, "/spec/instancetype", json!({"name": "of an older version"}));
    let mut new = old.clone();
    put(&mut new, "/metadata/labels", json!({"app": "db"}));
    assert_eq!(review_change(&old, &new, AdmittedKind::Machine, SOMEBODY), []);
    put(&mut new, "/spec/runStrategy", json!("Halted"));
    let refusals = review_change(&old, &new, AdmittedKind::Machine, SOMEBODY);
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
        let refusal_text = refusal_text(&object, AdmittedKind::Instance);
        assert!(
            refusal_text.contains(label) && refusal_text.contains("prohibited"),
            "{refusal_text}"
        );
    }
    let mut object = instance();
    put(
        &mut object,
        "/metadata/labels",
        json!({"kubevirt.io/domain": "db", "kubevirt.io/size": "small"}),
    );
    assert_eq!(refusal_text(&object, AdmittedKind::Instance), "");
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
fn migration_refusals_have_the_text_of_kubevirt() {
    let given = |status: Value| {
        let mut object = instance();
        put(&mut object, "/status", status);
        let instance: VirtualMachineInstance = serde_json::from_value(object).unwrap();
        review_instance("vm", Some(&instance)).map(|refusal| refusal.message)
    };
    let condition = |type_: &str, status: &str| {
        json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "False", "reason": "Other", "message": "of something else"},
            {"type": type_, "status": status, "reason": "DisksNotLiveMigratable", "message": "no RWX"},
        ]})
    };
    let missing = review_instance("vm", None).unwrap();
    assert_eq!(missing.message, "the VMI \"vm\" does not exist under the cluster");
    assert_eq!(
        (missing.reason, missing.field.as_str()),
        (AdmissionReason::WrongState, "spec.vmiName")
    );
    for (status, expected_text) in [
        (
            json!({"phase": "Succeeded"}),
            Some("Cannot migrate VMI in finalized state."),
        ),
        (
            json!({"phase": "Failed"}),
            Some("Cannot migrate VMI in finalized state."),
        ),
        (
            condition("LiveMigratable", "False"),
            Some("Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: no RWX"),
        ),
        // Unknown state is no reason to refuse.
        (condition("LiveMigratable", "Unknown"), None),
        (condition("LiveMigratable", "True"), None),
        (condition("StorageLiveMigratable", "False"), None),
        (json!({"phase": "Running"}), None),
        (json!({"phase": "Scheduling"}), None),
        (Value::Null, None),
    ] {
        assert_eq!(given(status.clone()).as_deref(), expected_text, "{status}");
    }
    for finished in ["Succeeded", "Failed"] {
        assert_eq!(review_in_flight(&migration(Some(finished))), None);
    }
    for unfinished in [None, Some("Pending"), Some("Running")] {
        assert_eq!(
            review_in_flight(&migration(unfinished)).unwrap().message,
            "in-flight migration detected. Active migration job (move) is currently already in progress for VMI vm."
        );
    }
}

#[test]
fn migration_spec_is_validated_and_immutable() {
    let refused_for = |spec: Value| {
        refusal_text(
            &json!({"metadata": {"name": "move"}, "spec": spec}),
            AdmittedKind::Migration,
        )
    };
    assert_eq!(
        refused_for(json!({"vmiName": "vm", "addedNodeSelector": {"a": "b"}})),
        ""
    );
    assert!(refused_for(json!({"vmiName": ""})).starts_with("spec.vmiName must be set"));
    for (spec, expected_text) in [
        (
            json!({"vmiName": "../../secrets/x"}),
            "spec.vmiName: `../../secrets/x` is not allowed; allowed: up to 253",
        ),
        (
            json!({"vmiName": "vm", "addedNodeSelector": {"a b": "c"}}),
            "spec.addedNodeSelector: `a b` is not allowed",
        ),
        (
            json!({"vmiName": "vm", "addedNodeSelector": {"guest.node.drydock.dev/5b0a": "true"}}),
            "spec.addedNodeSelector: `guest.node.drydock.dev/5b0a` is not allowed; allowed: a node label that does not start",
        ),
        (
            json!({"vmiName": "vm", "addedNodeSelector": {"a": "b/c"}}),
            "spec.addedNodeSelector.a: `b/c` is not allowed",
        ),
        (
            json!({"vmiName": "vm", "addedNodeSelector": ["a"]}),
            "spec.addedNodeSelector cannot be parsed",
        ),
    ] {
        assert!(
            refused_for(spec.clone()).starts_with(expected_text),
            "{spec}: {}",
            refused_for(spec.clone())
        );
    }
    assert!(
        refused_for(json!({"vmiName": "vm", "sendTo": {"migrationID": "x"}}))
            .starts_with("spec.sendTo is not supported")
    );
    let (old, new) = (json!({"spec": {"vmiName": "a"}}), json!({"spec": {"vmiName": "b"}}));
    let refusals = review_change(&old, &new, AdmittedKind::Migration, CONTROLLER);
    assert_eq!(sentence(&refusals), "update of Migration object's spec is restricted");
}

#[test]
fn only_the_controller_may_set_migration_urgency() {
    let urgent = json!({"metadata": {"name": "move"}, "spec": {"vmiName": "vm", "priority": "system-critical"}});
    assert_eq!(refusal_text(&urgent, AdmittedKind::Migration), "");
    assert_eq!(review_requester(None, &urgent, CONTROLLER), []);
    for user in [SOMEBODY, "", "system:serviceaccount:other:drydock-controller"] {
        let refusals = review_requester(None, &urgent, user);
        assert_eq!(
            sentence(&refusals),
            "spec.priority can only be set by system:serviceaccount:drydock:drydock-controller; leave it out"
        );
        assert_eq!(
            (refusals[0].reason, refusals[0].field.as_str()),
            (AdmissionReason::Reserved, "spec.priority")
        );
    }
    for spec in [json!({"vmiName": "vm"}), json!({"vmiName": "vm", "priority": null})] {
        assert_eq!(review_requester(None, &json!({"spec": spec}), SOMEBODY), []);
    }
}

#[test]
fn only_the_controller_may_mark_an_evacuation() {
    let plain = json!({"metadata": {"name": "move"}, "spec": {"vmiName": "vm"}});
    for key in ["kubevirt.io/evacuationMigration", "kubevirt.io/workloadUpdateMigration"] {
        let marked = |value: &str| {
            let mut marked = plain.clone();
            marked["metadata"]["annotations"] = json!({key: value, "example.com/mine": value});
            marked
        };
        for (old, new) in [
            (None, marked("node1")),
            (Some(&plain), marked("")),
            (Some(&marked("node1")), marked("node2")),
            (Some(&marked("node1")), plain.clone()),
        ] {
            assert_eq!(review_requester(old, &new, CONTROLLER), []);
            let refusals = review_requester(old, &new, SOMEBODY);
            assert_eq!(
                (refusals.len(), refusals[0].reason, refusals[0].field.clone()),
                (1, AdmissionReason::Reserved, format!("metadata.annotations[{key}]"))
            );
        }
        // What the controller has set is not refused when another user changes other fields.
        assert_eq!(review_requester(Some(&marked("node1")), &marked("node1"), SOMEBODY), []);
    }
    let mut other = plain.clone();
    other["metadata"]["annotations"] = json!({"example.com/mine": "a"});
    assert_eq!(review_requester(None, &other, SOMEBODY), []);
}

#[test]
fn migration_gets_the_instance_label_and_a_finalizer() {
    let bare = json!({"metadata": {"name": "move", "finalizers": ["example.com/mine"]}, "spec": {"vmiName": "vm"}});
    let whole = prepared(&bare).unwrap();
    assert_eq!(whole["metadata"]["labels"][INSTANCE_LABEL], "vm");
    assert_eq!(
        whole["metadata"]["finalizers"],
        json!(["example.com/mine", "kubevirt.io/migrationJobFinalize"])
    );
    assert_eq!(prepared(&whole), None);
    let mut wrong = whole.clone();
    wrong["metadata"]["labels"][INSTANCE_LABEL] = json!("other");
    assert_eq!(prepared(&wrong), Some(whole));
    let long = json!({"metadata": {}, "spec": {"vmiName": "x".repeat(64)}});
    assert_eq!(
        prepared(&long).unwrap()["metadata"],
        json!({"finalizers": [MIGRATION_FINALIZER]})
    );
    // Objects that do not parse are left unchanged.
    for unreadable in [
        json!({"spec": {"vmiName": "vm"}}),
        json!({"metadata": {}, "spec": {"vmiName": 7}}),
        json!({"metadata": {}}),
        json!({"metadata": {"labels": 7}, "spec": {"vmiName": "vm"}}),
        json!({"metadata": {"finalizers": 7}, "spec": {"vmiName": "vm"}}),
    ] {
        assert_eq!(prepared(&unreadable), None, "{unreadable}");
    }
}

#[test]
fn migration_in_flight_keeps_the_instance_label() {
    let labelled = |label: Option<&str>, phase: &str| {
        let labels = label.map(|label| json!({(INSTANCE_LABEL): label}));
        json!({"metadata": {"labels": labels}, "spec": {"vmiName": "vm"}, "status": {"phase": phase}})
    };
    for (before, after, phase, expected_text) in [
        (Some("vm"), Some("vm"), "Running", ""),
        (
            Some("vm"),
            None,
            "Running",
            "selector label can't be removed from an in-flight migration",
        ),
        (
            Some("vm"),
            Some("db"),
            "Pending",
            "selector label can't be modified on an in-flight migration",
        ),
        (Some("vm"), None, "Succeeded", ""),
        (Some("vm"), Some("db"), "Failed", ""),
        // A wrong label is corrected.
        (Some("db"), Some("vm"), "Running", ""),
        (None, Some("vm"), "Running", ""),
    ] {
        let (old, mut new) = (labelled(before, phase), labelled(after, phase));
        let refusal_text = sentence(&review_change(&old, &new, AdmittedKind::Migration, SOMEBODY));
        assert_eq!(refusal_text, expected_text, "{before:?} to {after:?}");
        // A migration that is being deleted is still in flight.
        put(&mut new, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        assert_eq!(
            sentence(&review_change(&old, &new, AdmittedKind::Migration, SOMEBODY)),
            expected_text
        );
    }
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
