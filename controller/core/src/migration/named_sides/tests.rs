//! Which pods are named as the sides of a migration.

use serde_json::{Value, json};

use super::*;
use crate::{configuration::Configuration, launcher_pod::MIGRATION_UID};

fn pod(name: &str, node: Option<&str>, of: Option<&str>, phase: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": of.map(|of| json!({MIGRATION_UID: of}))},
        "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase},
    })
}

fn sides(node: Option<&str>, pods: Vec<Value>) -> Option<[String; 2]> {
    let migration = json!({"metadata": {"name": "m", "uid": "u"}, "spec": {"vmiName": "vm"}});
    let instance = json!({
        "metadata": {"name": "vm", "uid": "i"}, "spec": {"domain": {"devices": {}}}, "status": {"nodeName": node},
    });
    let pods: Vec<Arc<Pod>> = serde_json::from_value(Value::Array(pods))
        .map(|pods: Vec<Pod>| pods.into_iter().map(Arc::new).collect())
        .unwrap();
    let settings = Configuration::default().migrations;
    let sides = Sides::of(
        &serde_json::from_value(migration).unwrap(),
        &serde_json::from_value(instance).unwrap(),
        &pods,
        None,
        &settings,
    )?;
    assert_eq!(sides.guest.instance_uid.as_deref(), Some("i"));
    assert_eq!(sides.configuration, configuration(&settings));
    Some([sides.source.join(" "), sides.target.join(" ")])
}

#[test]
fn sides_are_the_guests_pod_and_the_migrations_pod() {
    let source = || pod("p", Some("a"), None, "Running");
    let target = |node| pod("q", node, Some("u"), "Running");
    let named = || Some(["a p uid-p".to_owned(), "b q uid-q".to_owned()]);
    let without = |field: &str| {
        let mut pod = source();
        pod["metadata"].as_object_mut().unwrap().remove(field);
        pod
    };
    for (name, node, pods, expected) in [
        ("both", Some("a"), vec![source(), target(Some("b"))], named()),
        (
            "in another order",
            Some("a"),
            vec![target(Some("b")), source()],
            named(),
        ),
        (
            "an earlier pod on the same node",
            Some("a"),
            vec![pod("o", Some("a"), None, "Failed"), source(), target(Some("b"))],
            named(),
        ),
        (
            "a pod on a third node",
            Some("a"),
            vec![pod("o", Some("c"), Some("v"), "Running"), source(), target(Some("b"))],
            named(),
        ),
        (
            "both on one node",
            Some("a"),
            vec![target(Some("a")), source()],
            Some(["a p uid-p".to_owned(), "a q uid-q".to_owned()]),
        ),
        ("node is unknown", None, vec![source(), target(Some("b"))], None),
        ("no target pod", Some("a"), vec![source()], None),
        ("target pod has no node", Some("a"), vec![source(), target(None)], None),
        ("no source pod", Some("a"), vec![target(Some("b"))], None),
        ("guest is elsewhere", Some("c"), vec![source(), target(Some("b"))], None),
        (
            "source pod has ended",
            Some("a"),
            vec![pod("p", Some("a"), None, "Failed"), target(Some("b"))],
            None,
        ),
        (
            "target pod alone on the node",
            Some("b"),
            vec![source(), target(Some("b"))],
            None,
        ),
        (
            "source pod has no name",
            Some("a"),
            vec![without("name"), target(Some("b"))],
            None,
        ),
        (
            "source pod has no UID",
            Some("a"),
            vec![without("uid"), target(Some("b"))],
            None,
        ),
    ] {
        assert_eq!(sides(node, pods), expected, "{name}");
    }
}
