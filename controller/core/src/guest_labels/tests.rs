//! A node's labels for its launcher pods, and when they are written.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const NODE: &str = "a";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn pod(launcher: &str, node: Option<&str>, phase: &str) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": launcher, "labels": {LAUNCHER: launcher}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        }))
        .unwrap(),
    )
}

fn terminating(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = pod.as_ref().clone();
    pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    Arc::new(pod)
}

fn without_identity() -> Arc<Pod> {
    let mut pod = pod("x", Some(NODE), "Running").as_ref().clone();
    pod.metadata.labels = None;
    Arc::new(pod)
}

fn key(launcher: &str) -> String {
    format!("guest.node.drydock.dev/{launcher}")
}

/// Returns a node's labels: for these launchers, and others.
fn labels(launchers: &[&str]) -> BTreeMap<String, String> {
    let own = launchers.iter().map(|launcher| (key(launcher), "true".to_owned()));
    let foreign = [("zone", "b"), ("cpu-feature.node.kubevirt.io/avx2", "true")];
    own.chain(foreign.map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect()
}

fn seen(pods: Option<&[Arc<Pod>]>, waiting: PendingLabels) -> LabelledPods<'_> {
    LabelledPods {
        node: NODE,
        pods,
        waiting,
    }
}

/// Returns the names that are added and those that are removed when all changes are due.
fn changed(pods: Option<&[Arc<Pod>]>, launchers: &[&str]) -> (Vec<String>, Vec<String>) {
    let plan = plan(&seen(pods, PendingLabels::default()), &labels(launchers), true, at(0));
    let named = |added: bool| {
        let keys = plan.changes.iter().filter(|(_, value)| value.is_some() == added);
        keys.map(|(key, _)| key.strip_prefix(GUEST).unwrap().to_owned())
            .collect()
    };
    (named(true), named(false))
}

#[test]
fn bound_pods_have_a_node_label_until_final() {
    let running = pod("x", Some(NODE), "Running");
    let invalid = pod("-", Some(NODE), "Running");
    for (what, pods, before, added, removed) in [
        (
            "bound",
            vec![pod("x", Some(NODE), "Pending")],
            &[][..],
            &["x"][..],
            &[][..],
        ),
        ("running, labelled", vec![running.clone()], &["x"], &[], &[]),
        ("not bound", vec![pod("x", None, "Pending")], &[], &[], &[]),
        ("on another node", vec![pod("x", Some("b"), "Running")], &[], &[], &[]),
        (
            "left for another node",
            vec![pod("x", Some("b"), "Running")],
            &["x"],
            &[],
            &["x"],
        ),
        ("final", vec![pod("x", Some(NODE), "Succeeded")], &["x"], &[], &["x"]),
        (
            "rejected by the kubelet",
            vec![pod("x", Some(NODE), "Failed")],
            &["x"],
            &[],
            &["x"],
        ),
        ("terminating", vec![terminating(&running)], &["x"], &[], &[]),
        (
            "terminating, no label yet",
            vec![terminating(&running)],
            &[],
            &["x"],
            &[],
        ),
        ("phase unknown", vec![pod("x", Some(NODE), "Unknown")], &["x"], &[], &[]),
        ("without an identity", vec![without_identity()], &[], &[], &[]),
        ("with an identity that is no name", vec![invalid], &[], &[], &[]),
        ("of nobody", vec![running.clone()], &["x", "stray"], &[], &["stray"]),
        ("none left", vec![], &["x"], &[], &["x"]),
    ] {
        let expected = (
            added.iter().map(ToString::to_string).collect(),
            removed.iter().map(ToString::to_string).collect(),
        );
        assert_eq!(changed(Some(&pods), before), expected, "{what}");
    }
    let unknown = plan(&seen(None, PendingLabels::default()), &labels(&["x"]), true, at(0));
    assert_eq!(
        unknown,
        LabelPlan::default(),
        "a cache that is not synced shows nothing"
    );
}

#[test]
fn a_changed_value_is_put_right() {
    let mut tampered = labels(&[]);
    tampered.insert(key("x"), "false".into());
    let pods = [pod("x", Some(NODE), "Running")];
    let plan = plan(&seen(Some(&pods), PendingLabels::default()), &tampered, true, at(0));
    assert_eq!(plan.changes, BTreeMap::from([(key("x"), Some("true".into()))]));
}

#[test]
fn pods_bound_within_a_second_share_one_write() {
    let node = labels(&[]);
    let [x, y, z] = ["x", "y", "z"].map(|name| pod(name, Some(NODE), "Pending"));
    let first = plan(
        &seen(Some(std::slice::from_ref(&x)), PendingLabels::default()),
        &node,
        false,
        at(0),
    );
    assert!(first.changes.is_empty());
    assert_eq!(first.wake, Some(at(1)));
    let half = at(0) + SignedDuration::from_millis(500);
    let pods = [x, y, z];
    let second = plan(&seen(Some(&pods), first.waiting), &node, false, half);
    assert_eq!(
        (second.changes.len(), second.wake),
        (0, Some(at(1))),
        "no pod waits longer"
    );
    let third = plan(&seen(Some(&pods), second.waiting), &node, false, at(1));
    assert_eq!((third.changes.len(), third.wake), (3, None));
    // A failed write is due immediately.
    assert_eq!(plan(&seen(Some(&pods), third.waiting), &node, false, at(1)), third);
    let written = plan(
        &seen(Some(&pods), third.waiting),
        &labels(&["x", "y", "z"]),
        false,
        at(2),
    );
    assert_eq!(written, LabelPlan::default(), "nothing waits any more");
}

#[test]
fn a_label_that_is_left_goes_late_or_with_the_next_write() {
    let node = labels(&["x"]);
    let left = plan(&seen(Some(&[]), PendingLabels::default()), &node, false, at(0));
    assert_eq!((left.changes.len(), left.wake), (0, Some(at(60))));
    let removed = BTreeMap::from([(key("x"), None)]);
    let late = plan(&seen(Some(&[]), left.waiting), &node, false, at(60));
    assert_eq!(late.changes, removed);
    let rides = plan(&seen(Some(&[]), left.waiting), &node, true, at(5));
    assert_eq!(rides.changes, removed, "the Node is written anyway");
    let next = [pod("y", Some(NODE), "Pending")];
    let waits = plan(&seen(Some(&next), left.waiting), &node, false, at(10));
    assert_eq!((waits.changes.len(), waits.wake), (0, Some(at(11))));
    let both = plan(&seen(Some(&next), waits.waiting), &node, false, at(11));
    assert_eq!(both.changes.len(), 2, "{both:?}");
}

fn pods() -> impl Strategy<Value = Vec<Arc<Pod>>> {
    let node = prop::sample::select(vec![None, Some(NODE), Some("b")]);
    let phase = prop::sample::select(vec!["Pending", "Running", "Succeeded", "Failed"]);
    prop::collection::vec(("[a-d]", node, phase), 0..6).prop_map(|all| {
        all.iter()
            .map(|(launcher, node, phase)| pod(launcher, *node, phase))
            .collect()
    })
}

proptest! {
    #[test]
    fn labels_are_right_after_one_write(pods in pods(), before in prop::collection::vec("[a-f]", 0..4), now in 0..100_i64) {
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let mut node = labels(&before);
        let foreign = labels(&[]);
        let first = plan(&seen(Some(&pods), PendingLabels::default()), &node, false, at(0));
        let next = plan(&seen(Some(&pods), first.waiting), &node, false, at(now));
        prop_assert_eq!(next.wake.is_some(), next.changes.is_empty() && next.waiting != PendingLabels::default());
        let all = plan(&seen(Some(&pods), PendingLabels::default()), &node, true, at(0));
        for (key, value) in all.changes {
            prop_assert!(key.starts_with(GUEST));
            match value {
                Some(value) => node.insert(key, value),
                None => node.remove(&key),
            };
        }
        for pod in &pods {
            let here = pod.spec.as_ref().unwrap().node_name.as_deref() == Some(NODE) && !is_final(pod);
            prop_assert!(!here || node.contains_key(&guest_label(&pod.metadata.labels.as_ref().unwrap()[LAUNCHER])));
        }
        prop_assert!(foreign.iter().all(|(key, value)| node.get(key) == Some(value)));
        prop_assert_eq!(plan(&seen(Some(&pods), PendingLabels::default()), &node, true, at(0)), LabelPlan::default());
    }
}

#[test]
fn clock_set_back_begins_the_wait_anew() {
    let waiting = PendingLabels {
        missing: Some(at(3600)),
        left: Some(at(3600)),
    };
    let bound = [pod("x", Some(NODE), "Running")];
    for (pods, launchers, expected) in [(&bound[..], &[][..], at(1)), (&[], &["x"], at(60))] {
        let plan = plan(&seen(Some(pods), waiting), &labels(launchers), false, at(0));
        assert_eq!((plan.changes.len(), plan.wake), (0, Some(expected)));
    }
}
