use std::sync::Arc;

use drydock_runtime::SyncState;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn key(name: &str) -> Key {
    Key::namespaced("shop", name)
}

/// Returns a change of the object `name` in namespace `shop` between two states. `Null` means that the object does not
/// exist.
fn change<K: DeserializeOwned>(name: &str, states: [Value; 2]) -> CacheChange<K> {
    let [old, new] = states.map(|mut state| {
        if state.is_null() {
            return None;
        }
        state["metadata"]["name"] = json!(name);
        state["metadata"]["namespace"] = json!("shop");
        Some(Arc::new(serde_json::from_value(state).unwrap()))
    });
    CacheChange::Object {
        key: key(name),
        old,
        new,
    }
}

fn lost<K>() -> CacheChange<K> {
    CacheChange::SyncState(SyncState::default())
}

fn none(_: &Key, _: bool) -> Vec<Key> {
    Vec::new()
}

fn instance(node: &str, set: Option<&str>) -> Value {
    let owners = set.map(|name| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "name": name, "uid": "s",
            "controller": true,
        })
    });
    json!({
        "metadata": {"uid": "u", "ownerReferences": owners.into_iter().collect::<Vec<_>>()},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": node},
    })
}

#[test]
fn instance_enqueues_own_objects_and_drains_if_visible() {
    let itself = [Route::Instance(key("vm")), Route::Machine(key("vm"))];
    let drains = [Route::Pdb(key("vm")), Route::Drains, Route::HeldEvictions];
    let set = [Route::ReplicaSet(key("web"))];
    let mut labelled = instance("a", None);
    labelled["metadata"]["labels"] = json!({"tier": "web"});
    let cases = [
        (
            "created",
            [Value::Null, instance("a", None)],
            [&itself[..], &drains].concat(),
        ),
        (
            "deleted",
            [instance("a", None), Value::Null],
            [&itself[..], &drains].concat(),
        ),
        ("labelled", [instance("a", None), labelled], itself.to_vec()),
        (
            "moved",
            [instance("a", None), instance("b", None)],
            [&itself[..], &drains].concat(),
        ),
        (
            "of a set",
            [instance("a", Some("web")), instance("a", Some("web"))],
            [&itself[..], &set].concat(),
        ),
        (
            "left its set",
            [instance("a", Some("web")), instance("a", None)],
            [&itself[..], &set].concat(),
        ),
    ];
    for (case, states, expected) in cases {
        assert_eq!(of_instance(&change("vm", states), none), expected, "{case}");
    }
    assert_eq!(of_instance(&lost(), none), []);
}

#[test]
fn instance_enqueues_own_migrations() {
    let migrations = |instance: &Key, deleted: bool| vec![key(&format!("{}-{deleted}", instance.name))];
    for (states, expected) in [
        ([instance("a", None), instance("a", None)], "vm-false"),
        ([instance("a", None), Value::Null], "vm-true"),
    ] {
        let routes = of_instance(&change("vm", states), migrations);
        assert!(
            routes.contains(&Route::Migration(key(expected))),
            "{expected}: {routes:?}"
        );
    }
    let of_pod = |instance: &Key, made_for: Option<&str>| {
        let name = format!("{}-{}", instance.name, made_for.unwrap_or_default());
        vec![key(&name)]
    };
    let routes = of_launcher_pod(key("vm"), Some("m"), of_pod);
    assert_eq!(
        routes,
        [
            Route::Migration(key("vm-m")),
            Route::Pdb(key("vm")),
            Route::Instance(key("vm")),
            Route::Drains,
            Route::HeldEvictions,
        ]
    );
}

#[test]
fn migration_enqueues_machines_only_at_begin_and_end() {
    let migration = |instance: &str, phase: &str| json!({"spec": {"vmiName": instance}, "status": {"phase": phase}});
    let machine = |name| Route::Machine(key(name));
    let always = |instances: &[&str]| {
        let mut routes = vec![Route::Drains, Route::Migration(key("m"))];
        routes.extend(instances.iter().map(|name| Route::Instance(key(name))));
        routes
    };
    let with = |mut routes: Vec<Route>, machines: &[Route]| {
        routes.extend_from_slice(machines);
        routes
    };
    let cases = [
        ("waits", [Value::Null, migration("vm", "Pending")], always(&["vm"])),
        (
            "begins",
            [migration("vm", "Scheduled"), migration("vm", "PreparingTarget")],
            with(always(&["vm"]), &[machine("vm")]),
        ),
        (
            "goes on",
            [migration("vm", "Running"), migration("vm", "Running")],
            always(&["vm"]),
        ),
        (
            "ends",
            [migration("vm", "Running"), migration("vm", "Succeeded")],
            with(always(&["vm"]), &[machine("vm")]),
        ),
        (
            "deleted",
            [migration("vm", "Running"), Value::Null],
            with(always(&["vm"]), &[machine("vm")]),
        ),
        (
            "its name passed on",
            [migration("vm", "Running"), migration("other", "Pending")],
            with(always(&["vm", "other"]), &[machine("vm")]),
        ),
    ];
    for (case, states, expected) in cases {
        assert_eq!(of_migration(&change("m", states)), expected, "{case}");
    }
    assert_eq!(
        of_migration(&lost()),
        [Route::Drains],
        "drains report that they see no migrations"
    );
}

#[test]
fn machine_enqueues_the_pdb_of_the_instance() {
    let machine = || json!({"spec": {"template": {"spec": {"domain": {"devices": {}}}}}});
    let routes = of_machine(&change("vm", [machine(), machine()]));
    assert_eq!(routes, [Route::Machine(key("vm")), Route::Pdb(key("vm"))]);
    assert_eq!(of_machine(&lost()), []);
}

#[test]
fn foreign_pdb_enqueues_all_guests_of_the_namespace() {
    let others = |namespace: &str| vec![Key::namespaced(namespace, "a"), Key::namespaced(namespace, "b")];
    let foreign = || json!({"metadata": {}});
    let ours = || {
        json!({"metadata": {
            "labels": {"drydock.dev/launcher": "l"}, "annotations": {"drydock.dev/instance": "vm"},
        }})
    };
    let all = vec![Route::Pdb(key("a")), Route::Pdb(key("b")), Route::Drains];
    let cases = [
        ("foreign", [foreign(), foreign()], all.clone()),
        ("foreign, deleted", [foreign(), Value::Null], all),
        (
            "ours",
            [ours(), ours()],
            vec![Route::Pdb(key("vm")), Route::HeldEvictions],
        ),
        (
            "ours, deleted",
            [ours(), Value::Null],
            vec![Route::Pdb(key("vm")), Route::HeldEvictions],
        ),
    ];
    for (case, states, expected) in cases {
        assert_eq!(of_pdb(&change("pdb", states), others), expected, "{case}");
    }
    assert_eq!(of_pdb(&lost(), others), []);
}

#[test]
fn node_enqueues_a_maintenance_only_if_present() {
    let maintenance = Route::Maintenance(Key::cluster("a"));
    assert!(of_node("a", true).contains(&maintenance));
    assert!(!of_node("a", false).contains(&maintenance));
    assert_eq!(of_node("a", false)[..2], of_unresponsive_agents());
    assert!(of_node("a", false).contains(&Route::Liveness));
    assert_eq!(of_maintenance("a"), std::slice::from_ref(&maintenance));
    assert_eq!(of_node_pod("a"), [maintenance, Route::Drains]);
}

#[test]
fn status_of_the_configuration_follows_nodes_and_objects() {
    for routes in [of_node("a", false), of_hyperconverged(), of_configuration()] {
        assert!(routes.contains(&Route::ConfigurationStatus), "{routes:?}");
    }
    assert!(of_hyperconverged().contains(&Route::Certificates));
    assert!(
        !of_configuration().contains(&Route::Configuration),
        "it would resolve itself again"
    );
}

#[test]
fn configuration_enqueues_pdbs_drains_and_held_evictions() {
    let routes = of_configuration();
    for route in [
        Route::AllPdbs,
        Route::Drains,
        Route::HeldEvictions,
        Route::ConfigurationStatus,
    ] {
        assert!(routes.contains(&route), "{route:?}");
    }
}
