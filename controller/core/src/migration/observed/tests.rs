//! Input of the step functions, built from objects as the API server stores them.

use serde_json::{Value, json};

use super::*;
use crate::instance::AgentSign;
use crate::launcher_pod::MIGRATION_UID;
use crate::migration::{
    cluster::{ClusterStep, MigrationFailure, step},
    rejected::ATTEMPTS,
};
use drydock_api::kubevirt::migration::MigrationPhase;

fn migration(status: &Value) -> VirtualMachineInstanceMigration {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "m", "namespace": "default", "uid": "u", "finalizers": [MIGRATION_FINALIZER]},
        "spec": {"vmiName": "vm"}, "status": status,
    }))
    .unwrap()
}

fn named(phase: &str, source: Option<&str>, target: Option<&str>) -> VirtualMachineInstanceMigration {
    migration(&json!({
        "phase": phase, "guest": {"instanceUID": "i"},
        "source": {"node": "a", "pod": "p", "podUID": "p", "state": source},
        "target": {"node": "b", "pod": "q", "podUID": "q", "state": target},
    }))
}

fn instance(uid: &str, status: &Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": uid},
        "spec": {"domain": {"devices": {}}}, "status": status,
    }))
    .unwrap()
}

fn up() -> Value {
    json!({"phase": "Running", "nodeName": "a"})
}

/// A pod, which belongs to the migration in `of`, if given.
fn pod(uid: &str, of: Option<&str>, state: &Value) -> Arc<Pod> {
    let labels = of.map(|of| json!({MIGRATION_UID: of}));
    serde_json::from_value(json!({
        "metadata": {"name": uid, "uid": uid, "labels": labels},
        "spec": {"nodeName": if of.is_some() { "b" } else { "a" }, "containers": []},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
            "containerID": "c"}]},
    }))
    .map(Arc::new)
    .unwrap()
}

fn running() -> Value {
    json!({"running": {}})
}

fn ended_with(outcome: &str) -> Value {
    json!({"terminated": {"exitCode": 0, "message": json!({"outcome": outcome, "message": "m"}).to_string()}})
}

fn facts<'a>(
    migration: &'a VirtualMachineInstanceMigration,
    instance: Option<&'a VirtualMachineInstance>,
    pods: &'a [Arc<Pod>],
) -> MigrationFacts<'a> {
    MigrationFacts {
        migration,
        instance,
        instance_confirmed: true,
        pods,
        pods_confirmed: true,
        source_node: NodeState::Ready,
        target_node: NodeState::Ready,
        another: false,
        may_place: false,
        has_slot: false,
        overdue: false,
    }
}

/// A target pod that was rejected by its kubelet.
fn rejected(uid: &str) -> Arc<Pod> {
    let mut pod = (*pod(uid, Some("u"), &json!({}))).clone();
    pod.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    pod.status = serde_json::from_value(json!({
        "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}))
    .unwrap();
    Arc::new(pod)
}

#[test]
fn migration_is_orphaned_once_over_and_without_instance() {
    let present = instance("i", &up());
    for (name, phase, deleted, instance, confirmed, expected) in [
        ("over", "Failed", false, None, true, true),
        ("has succeeded", "Succeeded", false, None, true, true),
        ("not over", "Running", false, None, true, false),
        ("deleted already", "Failed", true, None, true, false),
        ("not confirmed", "Failed", false, None, false, false),
        ("has its instance", "Failed", false, Some(&present), false, false),
    ] {
        let mut migration = named(phase, None, None);
        let at = deleted.then_some(json!("2026-01-01T00:00:00Z"));
        migration.metadata.deletion_timestamp = at.map(|at| serde_json::from_value(at).unwrap());
        let facts = MigrationFacts {
            instance_confirmed: confirmed,
            ..facts(&migration, instance, &[])
        };
        assert_eq!(is_orphaned(&facts), expected, "{name}");
    }
}

#[test]
fn of_two_migrations_that_wait_one_precedes_the_other() {
    let at = |uid: &str, second: u8, status: Value| {
        let mut migration = migration(&status);
        migration.metadata.uid = Some(uid.into());
        let time = json!(format!("2026-01-01T00:00:0{second}Z"));
        migration.metadata.creation_timestamp = serde_json::from_value(time).unwrap();
        Arc::new(migration)
    };
    let waits = || json!({"phase": "Scheduled"});
    let moves = || json!({"phase": "PreparingTarget", "target": {"node": "b"}});
    for (what, first, second, expected) in [
        ("older", at("b", 1, waits()), at("a", 2, waits()), [false, true]),
        ("of one second", at("a", 1, waits()), at("b", 1, waits()), [false, true]),
        (
            "the younger moves",
            at("b", 2, moves()),
            at("a", 1, waits()),
            [false, true],
        ),
        ("new", at("a", 1, json!(null)), at("b", 1, waits()), [false, true]),
        (
            "over",
            at("a", 1, json!({"phase": "Failed"})),
            at("b", 1, waits()),
            [false, false],
        ),
    ] {
        for all in [
            [Arc::clone(&first), Arc::clone(&second)],
            [Arc::clone(&second), Arc::clone(&first)],
        ] {
            let found = [is_preceded(&first, &all), is_preceded(&second, &all)];
            assert_eq!(found, expected, "{what}");
        }
    }
}

#[test]
fn rejected_target_pod_is_replaced() {
    let instance = instance("i", &up());
    let migration = migration(&json!({"phase": "Scheduling"}));
    let coming = || pod("q2", Some("u"), &json!({"waiting": {}}));
    let all = || vec![rejected("q"); ATTEMPTS];
    let and = |mut pods: Vec<_>, pod| {
        pods.push(pod);
        pods
    };
    for (what, pods, expected, then) in [
        (
            "once",
            vec![rejected("q")],
            TargetPodState::Rejected,
            vec![ClusterStep::CreatePod],
        ),
        (
            "another is made",
            and(vec![rejected("q")], coming()),
            TargetPodState::Coming,
            vec![],
        ),
        (
            "too often",
            all(),
            TargetPodState::Over,
            vec![ClusterStep::Fail(MigrationFailure::PodEnded)],
        ),
    ] {
        let mut facts = facts(&migration, Some(&instance), &pods);
        facts.may_place = true;
        assert_eq!(view(&facts).target_pod, expected, "{what}");
        assert_eq!(step(&view(&facts)), then, "{what}");
    }
}

#[test]
fn pod_after_a_rejected_pod_is_confirmed_after_the_end() {
    let instance = instance("i", &up());
    let failed = migration(&json!({"phase": "Failed"}));
    let pods = [rejected("q")];
    for (confirmed, expected) in [(false, TargetPodState::Unknown), (true, TargetPodState::Rejected)] {
        let mut facts = facts(&failed, Some(&instance), &pods);
        facts.pods_confirmed = confirmed;
        assert_eq!(view(&facts).target_pod, expected);
    }
}

#[test]
fn instance_of_the_same_name_is_another_instance() {
    let migration = named("Running", None, None);
    for (uid, status, expected) in [
        ("i", up(), Instance::Running),
        ("j", up(), Instance::Missing),
        ("i", json!({"phase": "Running", "nodeName": "b"}), Instance::Moved),
        ("i", json!({"phase": "Failed", "nodeName": "a"}), Instance::Ended),
        (
            "i",
            json!({"phase": "Scheduled", "nodeName": "a"}),
            Instance::NotRunning,
        ),
        (
            "i",
            json!({"phase": "Running", "nodeName": "a", "conditions": [{"type": "LiveMigratable", "status": "False"}]}),
            Instance::NotMigratable,
        ),
    ] {
        let instance = instance(uid, &status);
        assert_eq!(
            view(&facts(&migration, Some(&instance), &[])).instance,
            expected,
            "{status}"
        );
    }
    let mut unknown = facts(&migration, None, &[]);
    assert_eq!(view(&unknown).instance, Instance::Missing);
    unknown.instance_confirmed = false;
    assert_eq!(view(&unknown).instance, Instance::Unknown);
}

#[test]
fn pods_are_matched_by_uid_and_end_by_launcher_report() {
    let migration = named("Running", None, None);
    let instance = instance("i", &up());
    for (source, target, expected) in [
        (running(), running(), (SourcePod::Alive, TargetPodState::Ready)),
        (
            ended_with("Migrated"),
            running(),
            (SourcePod::Left, TargetPodState::Ready),
        ),
        (
            ended_with("Crashed"),
            json!({"waiting": {}}),
            (SourcePod::Over, TargetPodState::Coming),
        ),
        (
            running(),
            ended_with("Failed"),
            (SourcePod::Alive, TargetPodState::Over),
        ),
    ] {
        let pods = [pod("p", None, &source), pod("q", Some("u"), &target)];
        let seen = view(&facts(&migration, Some(&instance), &pods));
        assert_eq!((seen.source_pod, seen.target_pod), expected);
    }
    // A pod of another migration is ignored.
    let pods = [pod("p", None, &running()), pod("q", Some("other"), &running())];
    assert_eq!(
        view(&facts(&migration, Some(&instance), &pods)).target_pod,
        TargetPodState::Missing
    );
    let mut cached = facts(&migration, Some(&instance), &pods);
    cached.pods_confirmed = false;
    assert_eq!(view(&cached).target_pod, TargetPodState::Unknown);
}

#[test]
fn an_instance_moves_when_the_guest_has_left_and_arrived() {
    let instance = instance("i", &up());
    let pods = [pod("p", None, &running()), pod("q", Some("u"), &running())];
    let at = |source, target| {
        let migration = Arc::new(named("Running", source, target));
        let moving = moving(std::slice::from_ref(&migration), |migration| MigrationFacts {
            migration,
            ..facts(migration, None, &[])
        })
        .moved_to
        .map(str::to_owned);
        let moved = moved_to(&facts(&migration, Some(&instance), &pods)).map(str::to_owned);
        assert_eq!(moving, moved);
        moved
    };
    assert_eq!(at(Some("Migrating"), Some("Prepared")), None);
    assert_eq!(at(Some("Released"), Some("Complete")), None);
    assert_eq!(at(Some("Released"), Some("Running")), None);
    assert_eq!(at(Some("Stopped"), Some("Complete")), None);
    assert_eq!(at(Some("Stopped"), Some("Running")).as_deref(), Some("b"));
    assert_eq!(at(Some("Stopped"), Some("Ended")).as_deref(), Some("b"));
    // `HandedOver` covers both sides when the guest arrives. Its state after that is reported by the target.
    assert_eq!(at(Some("HandedOver"), Some("Prepared")).as_deref(), Some("b"));
    assert_eq!(at(Some("HandedOver"), Some("Complete")).as_deref(), Some("b"));
    assert_eq!(at(Some("HandedOver"), Some("Ended")).as_deref(), Some("b"));
}

#[test]
fn guest_has_moved_by_any_unfinished_migration() {
    let named = |uid: &str, to: &str, source: Option<&str>, target: Option<&str>| {
        let mut migration = named("PreparingTarget", source, target);
        migration.metadata.uid = Some(uid.into());
        let status = migration.status.as_mut().unwrap();
        status.target.as_mut().unwrap().node = Some(to.into());
        let state = json!({"migrationUid": uid, "targetNode": to});
        status.migration_state = serde_json::from_value(state).unwrap();
        Arc::new(migration)
    };
    let idle = named("idle", "c", None, None);
    let moves = named("moves", "b", Some("Stopped"), Some("Running"));
    for all in [[Arc::clone(&idle), Arc::clone(&moves)], [moves, idle]] {
        let moving = moving(&all, |migration| facts(migration, None, &[]));
        assert_eq!((moving.under_way, moving.moved_to), (true, Some("b")));
        let state = moving.state.unwrap();
        assert_eq!(state.migration_uid.as_deref(), Some("moves"));
    }
}

#[test]
fn vanished_target_pod_is_confirmed_by_the_api_server() {
    let migration = migration(&json!({"phase": "Scheduling"}));
    let instance = instance("i", &up());
    let mut facts = facts(&migration, Some(&instance), &[]);
    facts.pods_confirmed = false;
    assert_eq!(step(&view(&facts)), [ClusterStep::Confirm]);
    facts.pods_confirmed = true;
    assert_eq!(step(&view(&facts)), [ClusterStep::Fail(MigrationFailure::PodRemoved)]);
}

#[test]
fn a_node_that_is_not_named_cannot_be_gone() {
    let migration = migration(&json!({"phase": "Pending"}));
    let instance = instance("i", &up());
    let mut facts = facts(&migration, Some(&instance), &[]);
    facts.source_node = NodeState::Gone;
    facts.target_node = NodeState::Gone;
    let seen = view(&facts);
    assert!(!seen.source_node_gone && !seen.target_node_gone && seen.has_finalizer);
    assert_eq!(seen.record.phase, Some(MigrationPhase::Pending));
}

#[test]
fn node_of_a_side_is_gone_only_with_an_unresponsive_agent() {
    let sides = json!({"source": {"node": "a"}, "target": {"node": "b"}});
    let migration = migration(&sides);
    for (state, gone) in [
        (NodeState::Ready, false),
        (NodeState::Unknown, false),
        (NodeState::of_deleted(AgentSign::MayLive), false),
        (NodeState::of_deleted(AgentSign::Unresponsive), true),
        (NodeState::OutOfService, true),
    ] {
        let mut facts = facts(&migration, None, &[]);
        (facts.source_node, facts.target_node) = (state, state);
        let seen = view(&facts);
        assert_eq!(
            (seen.source_node_gone, seen.target_node_gone),
            (gone, gone),
            "{state:?}"
        );
    }
}
