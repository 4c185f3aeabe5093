use std::time::Duration;

use serde_json::json;

use super::*;

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

fn migration(name: &str, instance: &str, phase: &str) -> VirtualMachineInstanceMigration {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"vmiName": instance}, "status": {"phase": phase},
    }))
    .unwrap()
}

fn change(
    old: Option<VirtualMachineInstanceMigration>,
    new: Option<VirtualMachineInstanceMigration>,
) -> CacheChange<VirtualMachineInstanceMigration> {
    CacheChange::Object {
        key: Key::of(new.as_ref().or(old.as_ref()).unwrap()),
        old: old.map(Arc::new),
        new: new.map(Arc::new),
    }
}

fn names(found: &[Arc<VirtualMachineInstanceMigration>]) -> Vec<String> {
    found
        .iter()
        .filter_map(|migration| migration.metadata.name.clone())
        .collect()
}

#[test]
fn migrations_are_found_by_instance() {
    let migrations = Migrations::filled([
        migration("b", "vm1", "Failed"),
        migration("a", "vm1", "Running"),
        migration("c", "vm2", "Pending"),
    ]);
    assert_eq!(names(&migrations.of_instance(&key("vm1"))), ["a", "b"]);
    assert_eq!(names(&migrations.of_instance(&key("vm2"))), ["c"]);
    assert_eq!(names(&migrations.of_instance(&key("vm3"))), [""; 0]);
    // An instance with this name in another namespace is another instance.
    assert!(migrations.of_instance(&Key::namespaced("other", "vm1")).is_empty());
    assert!(migrations.is_moving(&key("vm1")) && !migrations.is_moving(&key("vm2")));
}

#[test]
fn pod_concerns_unsettled_migrations_and_the_failed_one() {
    let with_uid = |name: &str, phase: &str| {
        let mut migration = migration(name, "vm1", phase);
        migration.metadata.uid = Some(name.into());
        migration
    };
    let mut kept: VirtualMachineInstanceMigration = with_uid("kept", "Failed");
    kept.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    kept.status.as_mut().unwrap().source = serde_json::from_value(json!({"node": "a", "state": "Migrating"})).unwrap();
    let migrations = Migrations::filled([
        with_uid("failed", "Failed"),
        kept,
        with_uid("succeeded", "Succeeded"),
        with_uid("waits", "Pending"),
    ]);
    let vm = key("vm1");
    let unsettled = [key("kept"), key("waits")];
    assert_eq!(migrations.keys_of(&vm, false), unsettled);
    assert_eq!(migrations.keys_of(&vm, true).len(), 4);
    for made_for in [None, Some("waits"), Some("succeeded"), Some("unknown")] {
        assert_eq!(migrations.keys_of_pod(&vm, made_for), unsettled, "{made_for:?}");
    }
    assert_eq!(
        migrations.keys_of_pod(&vm, Some("failed")),
        [key("failed"), key("kept"), key("waits")]
    );
}

#[tokio::test(start_paused = true)]
async fn created_migration_counts_until_shown_or_expired() {
    let made = |uid: &str| {
        let mut made = migration("made", "vm1", "Pending");
        made.metadata.uid = Some(uid.into());
        made
    };
    let migrations = Migrations::filled([migration("a", "vm1", "Failed"), made("shown")]);
    // The watch has shown the migration before the response arrived.
    migrations.remember_made(made("shown"));
    assert_eq!(names(&migrations.of_instance(&key("vm1"))), ["a", "made"]);

    let migrations = Migrations::filled([migration("z", "vm1", "Failed")]);
    for shown in [
        change(None, Some(made("1"))),
        // The watch was broken until the migration was deleted.
        change(Some(made("1")), None),
    ] {
        migrations.remember_made(made("1"));
        migrations
            .objects
            .observe(&change(None, Some(migration("b", "vm1", "Failed"))));
        // The created migration comes last, because the watch has shown another object only.
        assert_eq!(names(&migrations.of_instance(&key("vm1"))), ["z", "made"]);
        assert!(migrations.of_instance(&key("vm2")).is_empty());
        assert!(migrations.unfinished().is_empty());
        migrations.objects.observe(&shown);
        assert_eq!(names(&migrations.of_instance(&key("vm1"))), ["z"]);
    }
    migrations.remember_made(made("1"));
    tokio::time::sleep(ASSUMED_FOR + Duration::from_millis(1)).await;
    assert_eq!(names(&migrations.of_instance(&key("vm1"))), ["z"]);
}

#[test]
fn success_is_reported_once_and_unfinished_steps_are_kept() {
    let migrations = Migrations::filled([
        migration("a", "vm1", "Succeeded"),
        migration("b", "vm1", "Failed"),
        migration("c", "vm1", "Running"),
    ]);
    assert_eq!(names(&migrations.unfinished()), ["c"]);
    assert_eq!(names(&migrations.take_succeeded()), ["a"]);
    assert_eq!(names(&migrations.take_succeeded()), [""; 0]);

    let mut succeeded = BTreeSet::new();
    let at = |phase: &str| (!phase.is_empty()).then(|| migration("m", "vm1", phase));
    for (old, new, expected) in [
        ("", "Pending", 0),
        ("Pending", "Running", 0),
        ("Running", "Succeeded", 1),
    ] {
        observe_success(&mut succeeded, &change(at(old), at(new)));
        assert_eq!(succeeded.len(), expected, "{new}");
    }
    succeeded.clear();
    observe_success(&mut succeeded, &change(at("Succeeded"), at("Succeeded")));
    assert!(succeeded.is_empty(), "it was reported");
    observe_success(&mut succeeded, &change(at("Running"), at("Succeeded")));
    observe_success(&mut succeeded, &change(at("Succeeded"), None));
    assert!(succeeded.is_empty(), "it is gone");
}

#[test]
fn an_instance_moves_from_the_preparation_to_the_end() {
    let at = |phase: &str| (!phase.is_empty()).then(|| migration("m1", "vm1", phase));
    let is_notified = |old, new| !begun_or_ended(&change(at(old), at(new))).is_empty();
    assert!(!is_notified("", "Scheduled"));
    assert!(is_notified("Scheduled", "PreparingTarget"));
    assert!(!is_notified("PreparingTarget", "Running"));
    assert!(is_notified("Running", "Succeeded"));
    assert!(is_notified("", "Running"));
    assert!(is_notified("Running", ""));
    assert_eq!(begun_or_ended(&change(at("Running"), None)), [key("vm1")]);
    let other = Some(migration("m1", "vm2", "Running"));
    assert_eq!(begun_or_ended(&change(at("Running"), other)), [key("vm1"), key("vm2")]);
}
