use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::kubevirt::{Phase, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, status::PhaseTransition};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use super::{BURST, FailedRequest, ObservedReplicaSet, ReplicaSetPlan, Tried, instance_of, plan};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn set(replicas: i32) -> VirtualMachineInstanceReplicaSet {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"name": "web", "namespace": "default", "uid": "set-uid"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web", "tier": "a"}}, "spec": {"terminationGracePeriodSeconds": 5}},
        },
    }))
    .unwrap()
}

/// Returns an instance of the set in this phase, created `age` seconds ago.
fn instance(name: &str, phase: Phase, ready: bool, age: i64) -> VirtualMachineInstance {
    let mut instance = instance_of(&set(1), name);
    instance.metadata.uid = Some(format!("uid-{name}"));
    instance.metadata.creation_timestamp = Some(Time(now() - SignedDuration::from_secs(age)));
    let status = instance.status.get_or_insert_default();
    status.phase = Some(phase);
    if phase == Phase::Running {
        status.phase_transition_timestamps.push(PhaseTransition {
            phase,
            phase_transition_timestamp: now(),
        });
    }
    let ready = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
    status.conditions.push(serde_json::from_value(ready).unwrap());
    instance
}

/// Returns the instance as ended this many seconds ago.
fn ended(mut instance: VirtualMachineInstance, phase: Phase, ago: i64) -> VirtualMachineInstance {
    let status = instance.status.get_or_insert_default();
    status.phase = Some(phase);
    status.phase_transition_timestamps.push(PhaseTransition {
        phase,
        phase_transition_timestamp: now() - SignedDuration::from_secs(ago),
    });
    instance
}

fn deleted(mut instance: VirtualMachineInstance) -> VirtualMachineInstance {
    instance.metadata.deletion_timestamp = Some(Time(now()));
    instance
}

fn planned(set: &VirtualMachineInstanceReplicaSet, instances: &[VirtualMachineInstance]) -> ReplicaSetPlan {
    planned_at(set, instances, now(), None)
}

fn planned_at(
    set: &VirtualMachineInstanceReplicaSet,
    instances: &[VirtualMachineInstance],
    now: Timestamp,
    failure: Option<&FailedRequest>,
) -> ReplicaSetPlan {
    let all: Vec<_> = instances.iter().cloned().map(Arc::new).collect();
    let names: BTreeSet<_> = instances
        .iter()
        .filter_map(|instance| instance.metadata.name.clone())
        .collect();
    plan(&ObservedReplicaSet {
        now,
        set,
        instances: &all,
        is_deleted: &|_| false,
        is_taken: &|name| names.contains(name),
        confirmed: true,
        failure,
    })
}

fn names(targets: &[super::ReplicaName]) -> Vec<&str> {
    targets.iter().map(|target| target.name.as_str()).collect()
}

#[test]
fn missing_replicas_are_created_with_distinct_names() {
    let set = set(3);
    let first = planned(&set, &[]);
    assert_eq!(first.create.len(), 3);
    assert_eq!(first.create.iter().collect::<BTreeSet<_>>().len(), 3);
    assert!(
        first
            .create
            .iter()
            .all(|name| name.starts_with("web-") && name.len() == 10),
        "{first:?}"
    );
    // A controller that does not see its created instances yet plans the same names.
    assert_eq!(planned(&set, &[]).create, first.create);
    let made: Vec<_> = first
        .create
        .iter()
        .map(|name| instance(name, Phase::Pending, false, 0))
        .collect();
    assert_eq!(planned(&set, &made).create, [] as [&str; 0]);
    let fewer = planned(&set, &made[1..]);
    assert_eq!(fewer.create, first.create[..1]);
    let other_uid = {
        let mut other = set.clone();
        other.metadata.uid = Some("another".into());
        planned(&other, &[]).create
    };
    assert_ne!(other_uid, first.create);
    let made = instance_of(&set, "web-1");
    assert_eq!(made.spec, set.spec.template.spec);
    assert_eq!(made.metadata.labels.unwrap()["tier"], "a");
    let owner = &made.metadata.owner_references.unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str()),
        ("VirtualMachineInstanceReplicaSet", "set-uid")
    );
}

#[test]
fn a_burst_is_bounded_both_ways() {
    assert_eq!(planned(&set(1000), &[]).create.len(), BURST);
    let many: Vec<_> = (0..600)
        .map(|n| instance(&format!("i{n}"), Phase::Running, true, n))
        .collect();
    assert_eq!(planned(&set(0), &many).delete.len(), BURST);
}

#[test]
fn the_least_useful_are_deleted_first() {
    let mut placed = instance("scheduling", Phase::Scheduling, false, 5);
    placed.status.as_mut().unwrap().node_name = Some("n1".into());
    let mut all = vec![instance("pending", Phase::Pending, false, 900), placed];
    for (name, ready, age) in [("unready", false, 900), ("young", true, 10), ("old", true, 1000)] {
        let mut running = instance(name, Phase::Running, ready, age);
        running.status.as_mut().unwrap().node_name = Some("n1".into());
        all.push(running);
    }
    let order = ["pending", "scheduling", "unready", "young", "old"];
    for wanted in 0..=5 {
        let plan = planned(&set(wanted), &all);
        let fewer = usize::try_from(5 - wanted).unwrap();
        assert_eq!(names(&plan.delete), order[..fewer], "{wanted}");
        assert_eq!(plan.create, [] as [&str; 0]);
    }
}

#[test]
fn ended_replica_is_deleted_and_replaced() {
    let ran = || instance("a", Phase::Running, true, 100);
    for phase in [Phase::Succeeded, Phase::Failed] {
        let plan = planned(&set(1), &[ended(ran(), phase, 0)]);
        assert_eq!((names(&plan.delete), plan.create.len()), (vec!["a"], 1));
    }
    // Replaced before it is deleted.
    let plan = planned(&set(1), &[deleted(ran())]);
    assert_eq!((plan.delete.len(), plan.create.len()), (0, 1));
    let mut terminating = ran();
    terminating.status.as_mut().unwrap().conditions[0] =
        serde_json::from_value(json!({"type": "Ready", "status": "False", "reason": "PodTerminating"})).unwrap();
    let plan = planned(&set(1), &[terminating]);
    assert_eq!((plan.delete.len(), plan.create.len()), (0, 1));
}

#[test]
fn replica_that_cannot_start_is_recreated_after_a_pause() {
    let failed = |ago| ended(instance("a", Phase::Pending, false, 100), Phase::Failed, ago);
    let plan = planned(&set(1), &[failed(3)]);
    assert_eq!((plan.delete.len(), plan.create.len()), (0, 0));
    assert_eq!(plan.wake, Some(now() + SignedDuration::from_secs(7)));
    assert_eq!(plan.status.unwrap().replicas, 0);
    let plan = planned(&set(1), &[failed(10)]);
    assert_eq!((plan.delete.len(), plan.create.len(), plan.wake), (1, 1, None));
    // It gives up its slot if that is no longer needed. An evicted instance never holds one.
    assert_eq!(planned(&set(0), &[failed(3)]).delete.len(), 1);
    let mut evicted = failed(3);
    evicted.status.as_mut().unwrap().reason = Some("Evicted".into());
    assert_eq!(planned(&set(1), &[evicted]).create.len(), 1);
}

#[test]
fn deleted_replica_does_not_count_while_still_in_the_cache() {
    let all: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| Arc::new(instance(name, Phase::Running, true, 9)))
        .collect();
    let plan = plan(&ObservedReplicaSet {
        now: now(),
        set: &set(2),
        instances: &all,
        is_deleted: &|uid| uid == "uid-b",
        is_taken: &|_| false,
        confirmed: false,
        failure: None,
    });
    assert_eq!((plan.delete, plan.create), (vec![], vec![]));
}

#[test]
fn instance_is_deleted_only_by_api_server_state() {
    for (replicas, phases, confirm) in [
        (1, [Phase::Running, Phase::Running], true),
        (0, [Phase::Running, Phase::Failed], true),
        (2, [Phase::Running, Phase::Running], false),
        (3, [Phase::Running, Phase::Running], false),
        // Its guest has ended, which is final.
        (1, [Phase::Running, Phase::Succeeded], false),
        (0, [Phase::Failed, Phase::Succeeded], false),
    ] {
        let all: Vec<_> = ["a", "b"]
            .into_iter()
            .zip(phases)
            .map(|(name, phase)| Arc::new(instance(name, phase, true, 60)))
            .collect();
        let (set, none) = (set(replicas), |_: &str| false);
        let observed = ObservedReplicaSet {
            now: now(),
            set: &set,
            instances: &all,
            is_deleted: &none,
            is_taken: &none,
            confirmed: false,
            failure: None,
        };
        let shown = plan(&observed);
        assert_eq!(shown.confirm, confirm, "{replicas} {phases:?}");
        let after = plan(&ObservedReplicaSet {
            confirmed: true,
            ..observed
        });
        assert!(!after.confirm);
        if confirm {
            let nothing = ReplicaSetPlan {
                confirm,
                ..ReplicaSetPlan::default()
            };
            assert_eq!(shown, nothing);
            assert!(!after.delete.is_empty());
        } else {
            assert_eq!(shown, after, "{replicas} {phases:?}");
        }
    }
}

#[test]
fn a_paused_or_deleted_set_does_nothing() {
    let ended = ended(instance("a", Phase::Running, true, 9), Phase::Failed, 99);
    let mut paused = set(3);
    paused.spec.paused = Some(true);
    let plan = planned(&paused, std::slice::from_ref(&ended));
    assert_eq!((plan.delete, plan.create), (vec![], vec![]));
    let status = plan.status.unwrap();
    assert_eq!(status.conditions[0].type_, "ReplicaPaused");
    let mut going = set(3);
    going.metadata.deletion_timestamp = Some(Time(now()));
    let plan = planned(&going, &[ended]);
    assert_eq!((plan.delete, plan.create), (vec![], vec![]));
}

#[test]
fn relabelled_instance_is_released_and_replaced() {
    let mut stranger = instance("a", Phase::Running, true, 9);
    stranger.metadata.labels = Some([("app".to_owned(), "debug".to_owned())].into());
    let plan = planned(&set(1), &[stranger]);
    assert_eq!(
        (names(&plan.release), plan.delete.len(), plan.create.len()),
        (vec!["a"], 0, 1)
    );
}

#[test]
fn a_selector_that_does_not_fit_makes_nothing() {
    let mut unfit = set(3);
    unfit.spec.template.metadata = None;
    let mut broken = set(3);
    broken.spec.selector =
        serde_json::from_value(json!({"matchExpressions": [{"key": "a", "operator": "Like"}]})).unwrap();
    for (set, reason) in [(unfit, "SelectorDoesNotMatchTemplate"), (broken, "InvalidSelector")] {
        let plan = planned(&set, &[]);
        assert_eq!(plan.create, [] as [&str; 0]);
        assert_eq!((plan.events.len(), plan.events[0].reason), (1, reason));
        let status = plan.status.unwrap();
        assert_eq!(status.conditions[0].reason.as_deref(), Some(reason));
        let again = VirtualMachineInstanceReplicaSet {
            status: Some(status),
            ..set
        };
        assert_eq!(planned(&again, &[]), ReplicaSetPlan::default());
    }
}

#[test]
fn replica_set_status_has_the_fields_for_scaling() {
    let all = [
        instance("a", Phase::Running, true, 9),
        instance("b", Phase::Running, false, 9),
        deleted(instance("c", Phase::Running, true, 9)),
    ];
    let status = planned(&set(2), &all).status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (2, 1));
    assert_eq!(status.label_selector.as_deref(), Some("app=web"));
}

#[test]
fn failure_is_reported_until_replica_count_is_reached() {
    let mut set = set(2);
    let failure = FailedRequest {
        tried: Tried::Create,
        message: "exceeded quota".into(),
    };
    let refused = planned_at(&set, &[], now(), Some(&failure));
    assert_eq!(refused.events.len(), 1);
    set.status = refused.status;
    assert_eq!(
        set.status.as_ref().unwrap().conditions[0].reason.as_deref(),
        Some("FailedCreate")
    );
    let one = [instance("a", Phase::Running, true, 9)];
    let status = planned(&set, &one).status.unwrap();
    assert_eq!(status.conditions.len(), 1);
    let two = [one[0].clone(), instance("b", Phase::Running, true, 9)];
    assert_eq!(planned(&set, &two).status.unwrap().conditions, []);
}

/// Any state of one instance.
fn any_instance() -> impl Strategy<Value = (u8, bool, i64, bool, bool)> {
    (
        0u8..7,
        any::<bool>(),
        0i64..1000,
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
}

fn build(index: usize, (state, ready, age, gone, stranger): (u8, bool, i64, bool, bool)) -> VirtualMachineInstance {
    let name = format!("i{index}");
    let mut built = match state {
        0 => instance(&name, Phase::Pending, false, age),
        1 => instance(&name, Phase::Scheduling, false, age),
        2 => instance(&name, Phase::Scheduled, false, age),
        3 => instance(&name, Phase::Unknown, false, age),
        4 => instance(&name, Phase::Running, ready, age),
        5 => ended(instance(&name, Phase::Running, ready, age), Phase::Succeeded, age),
        _ => ended(instance(&name, Phase::Pending, false, age), Phase::Failed, age % 20),
    };
    if stranger {
        built.metadata.labels = None;
    }
    if gone { deleted(built) } else { built }
}

fn is_active(instance: &VirtualMachineInstance) -> bool {
    let last = instance.phase().is_some_and(Phase::is_final);
    instance.metadata.deletion_timestamp.is_none() && !last && instance.metadata.owner_references.is_some()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn replica_set_reaches_the_wanted_count_from_any_state(
        states in prop::collection::vec(any_instance(), 0..40),
        wanted in 0i32..600,
    ) {
        let mut set = set(wanted);
        let mut world: BTreeMap<String, VirtualMachineInstance> = states
            .into_iter()
            .enumerate()
            .map(|(index, state)| (format!("i{index}"), build(index, state)))
            .collect();
        let wanted = usize::try_from(wanted).unwrap();
        let mut time = now();
        let mut settled = None;
        for step in 0..8 {
            let all: Vec<_> = world.values().filter(|instance| instance.metadata.owner_references.is_some()).cloned().collect();
            let active = all.iter().filter(|instance| is_active(instance)).count();
            let counted = all.iter().filter(|instance| is_active(instance) && instance.metadata.labels.is_some()).count();
            let todo = planned_at(&set, &all, time, None);
            if todo == ReplicaSetPlan::default() && active == wanted {
                settled = Some(step);
                break;
            }
            let deletes = todo.delete.iter().filter(|target| is_active(&world[&target.name])).count();
            prop_assert!(deletes <= counted.saturating_sub(wanted), "{deletes} of {counted}, wanted {wanted}");
            prop_assert!(todo.create.len() <= BURST && todo.delete.len() <= BURST);
            prop_assert!(todo.create.is_empty() || deletes == 0, "it makes and deletes at the same time");
            prop_assert!(counted + todo.create.len() <= wanted.max(counted));
            for target in &todo.release {
                world.get_mut(&target.name).unwrap().metadata.owner_references = None;
            }
            for target in &todo.delete {
                let removed = world.remove(&target.name).unwrap();
                prop_assert_eq!(removed.metadata.uid.as_ref(), Some(&target.uid));
                prop_assert!(removed.metadata.deletion_timestamp.is_none());
            }
            for name in todo.create {
                let made = instance(&name, Phase::Pending, false, 0);
                prop_assert!(world.insert(name, made).is_none(), "a name was given twice");
            }
            if let Some(status) = todo.status {
                set.status = Some(status);
            }
            if let Some(at) = todo.wake {
                prop_assert!(at > time);
                time = at.max(time + SignedDuration::from_secs(10));
            }
        }
        prop_assert!(settled.is_some(), "{} of {wanted}", world.values().filter(|instance| is_active(instance)).count());
    }
}
