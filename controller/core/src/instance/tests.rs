//! Every state of an instance and its pod, and the resulting plan.

use std::{collections::BTreeMap, sync::Arc};

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationState},
    names::conditions as types,
    status::DrainRequest,
};
use serde_json::{Value, json};

use super::{wanted_status::NODE_GONE, *};
use crate::{eviction::evacuation_request, placement::Targets, vm_conditions::find};

const NOW: &str = "2026-01-01T00:00:00Z";
const UNRESPONSIVE: NodeState = NodeState::NotReady { since: None };

/// Returns an instance with this status, and with a finalizer unless it has no status yet.
fn instance(status: &Value) -> VirtualMachineInstance {
    let finalizers: &[&str] = if status.is_null() { &[] } else { &[FINALIZER] };
    let labels = status["nodeName"].as_str().map(|node| json!({NODE_NAME: node}));
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": "u", "finalizers": finalizers, "labels": labels},
        "spec": {"domain": {"devices": {}}},
        "status": status,
    }))
    .unwrap()
}

fn deleted(mut instance: VirtualMachineInstance) -> VirtualMachineInstance {
    instance.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
    instance
}

/// Returns a pod on `node` whose container is in `state`.
fn pod(uid: &str, node: Option<&str>, state: &Value) -> Arc<Pod> {
    let containers = (!state.is_null()).then(|| {
        json!([{"name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
                "containerID": "c"}])
    });
    serde_json::from_value(json!({
        "metadata": {"name": format!("virt-launcher-{uid}"), "uid": uid},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending", "qosClass": "Burstable", "containerStatuses": containers},
    }))
    .map(Arc::new)
    .unwrap()
}

fn ended_with(outcome: &str) -> Value {
    json!({"terminated": {"exitCode": 0, "message": json!({"outcome": outcome, "message": "it ended"}).to_string()}})
}

fn running() -> Value {
    json!({"running": {"startedAt": NOW}})
}

/// Returns the status of an instance that runs in pod `p` on node `a`.
fn up() -> Value {
    json!({"phase": "Running", "nodeName": "a", "activePods": {"p": "a"}, "qosClass": "Burstable",
           "phaseTransitionTimestamps": [{"phase": "Running", "phaseTransitionTimestamp": NOW}]})
}

/// Returns the usual observations of an instance: all of its pods, on a ready node.
fn seen<'a>(instance: &'a VirtualMachineInstance, pods: &'a [Arc<Pod>]) -> ObservedInstance<'a> {
    ObservedInstance {
        now: NOW.parse().unwrap(),
        instance,
        pods,
        confirmed: true,
        node: NodeState::Ready,
        other_nodes: &[],
        unresponsive: false,
        moving: Moving::default(),
        claims: &[],
        misfit: None,
        targets: None,
        requirements_digest: None,
        failed_create: None,
        unmounted: &[],
        warning: None,
    }
}

fn at(instance: &VirtualMachineInstance, pods: &[Arc<Pod>], confirmed: bool, node: NodeState) -> InstancePlan {
    plan(&ObservedInstance {
        confirmed,
        node,
        ..seen(instance, pods)
    })
}

fn phase(plan: &InstancePlan) -> Option<Phase> {
    plan.status.as_ref().and_then(|status| status.phase)
}

fn reason(plan: &InstancePlan) -> &str {
    plan.status
        .as_ref()
        .and_then(|status| status.reason.as_deref())
        .unwrap_or_default()
}

#[test]
fn new_instance_gets_a_finalizer_and_then_a_pod() {
    let new = instance(&Value::Null);
    assert!(at(&new, &[], false, NodeState::Unknown).confirm, "a cache may be late");
    let plan = at(&new, &[], true, NodeState::Unknown);
    assert_eq!(plan.steps, [InstanceStep::AddFinalizer, InstanceStep::CreatePod]);
    assert_eq!(phase(&plan), Some(Phase::Pending));
}

#[test]
fn failed_pod_creation_is_reported() {
    let new = instance(&json!({"phase": "Pending"}));
    let plan = plan(&ObservedInstance {
        node: NodeState::Unknown,
        failed_create: Some("exceeded quota: pods"),
        ..seen(&new, &[])
    });
    let conditions = plan.status.unwrap().conditions;
    let synchronized = conditions.iter().find(|c| c.type_ == "Synchronized").unwrap();
    assert_eq!(synchronized.reason.as_deref(), Some("FailedCreate"));
    assert_eq!(synchronized.message.as_deref(), Some("exceeded quota: pods"));
}

#[test]
fn phase_is_scheduling_until_the_container_runs_once() {
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    for (before, node, state, after) in [
        ("Pending", None, Value::Null, Phase::Scheduling),
        ("Scheduling", None, Value::Null, Phase::Scheduling),
        ("Scheduling", Some("a"), Value::Null, Phase::Scheduling),
        ("Scheduling", Some("a"), waiting.clone(), Phase::Scheduling),
        ("Scheduling", Some("a"), running(), Phase::Scheduled),
        ("Scheduled", Some("a"), waiting, Phase::Scheduled),
    ] {
        let instance = instance(&json!({"phase": before}));
        let plan = at(&instance, &[pod("p", node, &state)], false, NodeState::Unknown);
        assert_eq!(phase(&plan), Some(after), "{before} {node:?} {state}");
        let status = plan.status.unwrap();
        assert_eq!(status.node_name.as_deref(), node);
        assert_eq!(status.active_pods.get("p").map(String::as_str), node);
        let label = plan.steps.iter().any(|step| matches!(step, InstanceStep::Label(_)));
        assert_eq!(label, node.is_some());
    }
}

#[test]
fn scheduling_and_image_problems_are_reported() {
    let mut unschedulable = pod("p", None, &Value::Null).as_ref().clone();
    unschedulable.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"},
    ]))
    .unwrap();
    let instance = instance(&json!({"phase": "Scheduling"}));
    let pods = [Arc::new(unschedulable)];
    let mut observed = ObservedInstance {
        confirmed: false,
        node: NodeState::Unknown,
        ..seen(&instance, &pods)
    };
    let message = |observed: &ObservedInstance<'_>| {
        let conditions = plan(observed).status.unwrap().conditions;
        let found = conditions
            .into_iter()
            .find(|condition| condition.type_ == "PodScheduled")
            .unwrap();
        (found.reason.unwrap(), found.message.unwrap())
    };
    assert_eq!(message(&observed).1, "0/2 nodes are available");
    observed.misfit = Some("2 nodes lack avx2");
    assert_eq!(message(&observed), ("Unschedulable".into(), "2 nodes lack avx2".into()));

    let pulling = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
    let plan = at(&instance, &[pod("p", Some("a"), &pulling)], false, NodeState::Ready);
    let conditions = plan.status.unwrap().conditions;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == "Synchronized")
        .unwrap();
    assert_eq!(found.reason.as_deref(), Some("ImagePullBackOff"));
}

#[test]
fn image_pull_failure_is_reported_until_resolved() {
    let instance = instance(&json!({"phase": "Scheduling"}));
    let waits = |reason: &str| json!({"waiting": {"reason": reason}});
    let reason = |before: Value, own: Value| {
        let mut one = pod("p", Some("a"), &own).as_ref().clone();
        one.status.as_mut().unwrap().init_container_statuses = serde_json::from_value(json!([
            {"name": "newest-image-0", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": before},
        ]))
        .unwrap();
        let plan = at(&instance, &[Arc::new(one)], false, NodeState::Ready);
        let conditions = plan.status.unwrap().conditions;
        let found = conditions.iter().find(|condition| condition.type_ == "Synchronized");
        found.and_then(|condition| condition.reason.clone())
    };
    let initializing = || waits("PodInitializing");
    assert_eq!(
        reason(waits("ErrImagePull"), initializing()).as_deref(),
        Some("ErrImagePull")
    );
    assert_eq!(reason(waits("PodInitializing"), initializing()), None);
    assert_eq!(reason(running(), initializing()), None);
    let ended = json!({"terminated": {"exitCode": 0}});
    assert_eq!(reason(ended.clone(), initializing()), None);
    assert_eq!(reason(ended, waits("ErrImagePull")).as_deref(), Some("ErrImagePull"));
}

#[test]
fn instance_reason_is_the_obstacle_to_running() {
    let mut unschedulable = pod("p", None, &Value::Null).as_ref().clone();
    unschedulable.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"},
    ]))
    .unwrap();
    let pulling = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
    let usual = json!({"waiting": {"reason": "ContainerCreating"}});
    for (before, pods, failed_create, expected) in [
        ("Pending", vec![], Some("exceeded quota"), "FailedCreate"),
        ("Pending", vec![], None, ""),
        ("Scheduling", vec![Arc::new(unschedulable)], None, "Unschedulable"),
        ("Scheduling", vec![pod("p", Some("a"), &pulling)], None, "ErrImagePull"),
        ("Scheduling", vec![pod("p", Some("a"), &usual)], None, ""),
        ("Scheduled", vec![pod("p", Some("a"), &running())], None, ""),
    ] {
        let instance = instance(&json!({"phase": before, "reason": "Unschedulable"}));
        let plan = plan(&ObservedInstance {
            failed_create,
            ..seen(&instance, &pods)
        });
        let status = plan.status.as_ref();
        let shown_reason = status.map_or("Unschedulable", |status| status.reason.as_deref().unwrap_or_default());
        assert_eq!(shown_reason, expected, "{before} {failed_create:?}");
    }
}

#[test]
fn a_missing_secret_is_reported_until_the_container_starts() {
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    let missing = r#"MountVolume.SetUp failed for volume "user-init" : secret "login" not found"#;
    for (state, of, expected) in [
        (creating.clone(), "p", Some("FailedMount")),
        (creating.clone(), "another", None),
        (running(), "p", None),
        (
            json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            "p",
            Some("ErrImagePull"),
        ),
    ] {
        let instance = instance(&json!({"phase": "Scheduling", "nodeName": "a"}));
        let pods = [pod("p", Some("a"), &state)];
        let unmounted = [(of.to_owned(), missing.to_owned())];
        let plan = plan(&ObservedInstance {
            unmounted: &unmounted,
            ..seen(&instance, &pods)
        });
        assert_eq!(
            plan.status.as_ref().and_then(|status| status.reason.as_deref()),
            expected,
            "{state}"
        );
        let conditions = plan.status.map(|status| status.conditions).unwrap_or_default();
        let synchronized = conditions.iter().find(|condition| condition.type_ == "Synchronized");
        assert_eq!(
            synchronized.and_then(|synchronized| synchronized.reason.as_deref()),
            expected,
            "{state}"
        );
        if expected == Some("FailedMount") {
            let message = synchronized
                .and_then(|synchronized| synchronized.message.as_deref())
                .unwrap();
            assert!(
                message.contains("Secret login does not exist in namespace"),
                "{message}"
            );
        }
    }
}

#[test]
fn a_running_instance_is_left_alone() {
    let instance = instance(&up());
    let plan = at(&instance, &[pod("p", Some("a"), &running())], false, NodeState::Ready);
    assert_eq!(plan, InstancePlan::default());
    // Not even a dead node changes that: the pod may still run there.
    let plan = at(&instance, &[pod("p", Some("a"), &running())], false, UNRESPONSIVE);
    assert_eq!(plan, InstancePlan::default());
}

#[test]
fn the_pods_end_is_the_instances_end() {
    for (outcome, last, why) in [
        ("Shutdown", Phase::Succeeded, "GuestShutdown"),
        ("Crashed", Phase::Failed, "GuestCrashed"),
        ("Destroyed", Phase::Failed, "GuestDestroyed"),
        ("Failed", Phase::Failed, "LauncherFailed"),
    ] {
        let instance = instance(&up());
        let plan = at(
            &instance,
            &[pod("p", Some("a"), &ended_with(outcome))],
            false,
            NodeState::Ready,
        );
        assert_eq!((phase(&plan), reason(&plan)), (Some(last), why));
        let status = plan.status.unwrap();
        assert!(status.active_pods.is_empty());
        assert_eq!(status.node_name.as_deref(), Some("a"), "its last node is kept");
        let ready = &status.conditions[0];
        assert_eq!((ready.type_.as_str(), ready.status.as_str()), ("Ready", "False"));
        assert_eq!(ready.message.as_deref(), Some("it ended"));
    }
    let migrated = at(
        &instance(&up()),
        &[pod("p", Some("a"), &ended_with("Migrated"))],
        false,
        NodeState::Ready,
    );
    assert_eq!(phase(&migrated), None, "its guest went on elsewhere");
}

#[test]
fn a_pod_that_vanished_proves_nothing() {
    let instance = instance(&up());
    assert!(at(&instance, &[], false, NodeState::Ready).confirm);
    assert_eq!(
        at(&instance, &[], true, NodeState::Ready),
        InstancePlan::default(),
        "the node's agent will report it"
    );
    for unresponsive in [UNRESPONSIVE, NodeState::Unknown] {
        let plan = at(&instance, &[], true, unresponsive);
        assert_eq!(phase(&plan), None);
        let conditions = &plan.status.as_ref().unwrap().conditions;
        assert_eq!(conditions[0].type_, "FencingRequired");
        assert!(plan.steps.is_empty(), "no second pod while the first may run");
    }
    for gone in [NodeState::Gone, NodeState::OutOfService] {
        let plan = at(&instance, &[], true, gone);
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Failed), NODE_GONE));
    }
}

#[test]
fn report_of_the_agent_ends_instance_of_a_force_deleted_pod() {
    let mut status = up();
    status["drydock"] = json!({"endedPods": ["p"]});
    let plan = at(&instance(&status), &[], true, NodeState::Ready);
    assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Failed), "Evicted"));
}

#[test]
fn launcher_report_decides_even_if_the_pod_is_gone() {
    // While no controller led, the pod ended and was deleted.
    for (pod, outcome, evicted, expected) in [
        ("p", "Shutdown", true, (Phase::Succeeded, "Evicted")),
        ("p", "Shutdown", false, (Phase::Succeeded, "GuestShutdown")),
        ("p", "Crashed", false, (Phase::Failed, "GuestCrashed")),
        ("p", "Destroyed", true, (Phase::Failed, "Evicted")),
        ("another", "Shutdown", true, (Phase::Failed, "Evicted")),
    ] {
        let mut status = up();
        status["drydock"] = json!({
            "endedPods": ["p"],
            "ending": {"podUID": pod, "outcome": outcome, "message": "m", "evicted": evicted},
        });
        let plan = at(&instance(&status), &[], true, NodeState::Ready);
        assert_eq!(
            (phase(&plan).unwrap(), reason(&plan)),
            expected,
            "{pod} {outcome} {evicted}"
        );
    }
}

#[test]
fn deleted_node_proves_nothing_while_the_agent_may_live() {
    assert_eq!(NodeState::of_deleted(AgentSign::Unresponsive), NodeState::Gone);
    assert_eq!(NodeState::of_deleted(AgentSign::MayLive), NodeState::Deleted);
    let here = |pods: &[Arc<Pod>], status: &Value| at(&instance(status), pods, true, NodeState::Deleted);
    let alive = [pod("p", Some("a"), &running())];
    let plan = here(&alive, &up());
    assert_eq!(
        (phase(&plan), plan.steps.len()),
        (None, 0),
        "the agent ends its guest first"
    );

    // The pod garbage collector has deleted the pod, and the agent is about to report.
    let plan = here(&[], &up());
    let condition = &plan.status.as_ref().unwrap().conditions[0];
    assert_eq!(phase(&plan), None);
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref()),
        ("FencingRequired", Some("NodeDeletedAgentAlive"))
    );
    assert_eq!(
        here(
            &[],
            &json!({"phase": "Scheduled", "nodeName": "a", "activePods": {"p": "a"}})
        )
        .steps,
        []
    );
    assert_eq!(at(&deleted(instance(&up())), &[], true, NodeState::Deleted).steps, []);

    // The agent has reported the end, whether or not the pod still exists.
    let mut reported = up();
    reported["drydock"] = json!({"endedPods": ["p"]});
    for pods in [&alive[..], &[]] {
        let plan = here(pods, &reported);
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Failed), "Evicted"));
    }
    // Then the pod without a guest is deleted.
    reported["phase"] = json!("Failed");
    assert_eq!(here(&alive, &reported).steps.len(), 1);
    // The launcher takes the agent's press of the power button for the guest's own decision.
    let shut_down = [pod("p", Some("a"), &ended_with("Shutdown"))];
    let plan = here(&shut_down, &up());
    assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Succeeded), "Evicted"));
}

#[test]
fn ready_by_the_agent_has_no_reason_of_the_controller() {
    let with_ready = |ready: Value| {
        let mut status = up();
        status["conditions"] = json!([ready]);
        let pods = [pod("p", Some("a"), &running())];
        at(&instance(&status), &pods, false, NodeState::Ready).status
    };
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": NOW});
    assert_eq!(with_ready(ready.clone()), None);
    let mut mixed = ready;
    mixed["reason"] = json!("GuestNotRunning");
    let wanted = with_ready(mixed).expect("nothing is written");
    assert!(wanted.conditions.iter().all(|condition| condition.type_ != "Ready"));
}

#[test]
fn guest_of_unresponsive_node_is_not_ready_until_agent_reports() {
    let since = |time: &str| NodeState::NotReady {
        since: Some(time.parse().unwrap()),
    };
    let ready = |status: &str, time: &str, reason: Option<&str>| {
        let message = reason.map(|_| "node a does not respond; the guest may still run there");
        json!({"type": "Ready", "status": status, "lastTransitionTime": time, "reason": reason, "message": message})
    };
    let before = ready("True", "2025-12-31T23:59:00Z", None);
    let noticed = since("2026-01-01T00:00:00Z");
    let ours = ready("False", NOW, Some("NodeNotReady"));
    let again = ready("True", "2026-01-01T00:00:01Z", None);
    let paused = ready("False", "2025-12-31T23:59:00Z", Some("GuestNotRunning"));
    let ready_condition = |condition: &Value, node: NodeState, pods: &[Arc<Pod>], unresponsive: bool| {
        let mut status = up();
        status["conditions"] = json!([condition]);
        let plan = plan(&ObservedInstance {
            node,
            unresponsive,
            ..seen(&instance(&status), pods)
        });
        let conditions = plan.status.map(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        ready.map(|ready| serde_json::to_value(ready).unwrap())
    };
    let ready_with =
        |condition: &Value, node: NodeState, pods: &[Arc<Pod>]| ready_condition(condition, node, pods, true);
    let pods = [pod("p", Some("a"), &running())];
    for (condition, node, wanted, why) in [
        (&before, noticed, Some(&ours), "it was reported before"),
        (
            &before,
            since("2025-12-31T23:59:00Z"),
            Some(&ours),
            "in the same second",
        ),
        (&again, noticed, None, "its agent lives"),
        (&before, NodeState::Ready, None, "the node is ready"),
        (&before, UNRESPONSIVE, None, "nobody knows since when"),
        (&before, NodeState::Unknown, None, "nothing is known of the node"),
        (&paused, noticed, None, "it was not reported as ready"),
    ] {
        assert_eq!(ready_with(condition, node, &pods), wanted.cloned(), "{why}");
    }
    assert_eq!(
        ready_condition(&before, noticed, &pods, false),
        None,
        "only its kubelet is unresponsive"
    );
    // Also if the pod was force-deleted.
    assert_eq!(ready_with(&before, noticed, &[]), Some(ours.clone()));
    // From then on, only the agent can revert it: a field that one manager applies and another no longer does would
    // be removed.
    for node in [noticed, NodeState::Ready] {
        let mut status = up();
        status["conditions"] = json!([ours]);
        assert_eq!(at(&instance(&status), &pods, false, node).status, None, "nothing new");
        status["qosClass"] = json!("Guaranteed");
        status["activePods"] = json!({});
        let written = at(&instance(&status), &pods, false, node).status.unwrap();
        assert!(written.conditions.iter().any(|condition| condition.type_ == "Ready"));
    }
}

#[test]
fn fencing_is_taken_back_when_the_pod_turns_out_to_be_there() {
    let mut status = up();
    status["conditions"] =
        json!([{"type": "FencingRequired", "status": "True", "reason": "r", "lastTransitionTime": NOW}]);
    let plan = at(
        &instance(&status),
        &[pod("p", Some("a"), &running())],
        false,
        NodeState::Ready,
    );
    assert!(plan.status.unwrap().conditions.is_empty());
}

#[test]
fn instance_on_a_permanently_gone_node_fails() {
    for gone in [NodeState::Gone, NodeState::OutOfService] {
        let plan = at(&instance(&up()), &[pod("p", Some("a"), &running())], false, gone);
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Failed), NODE_GONE));
    }
}

/// Grace periods in seconds: of the instance now, of the pod at creation, and of the pod's deletion.
#[test]
fn a_shutdown_can_be_made_shorter_and_not_longer() {
    for (spec_grace, made_with, deleted_with, step) in [
        (Some(180), 180, None, Some(None)),
        (Some(180), 180, Some(180), None),
        (Some(20), 180, None, Some(Some(20))),
        (Some(20), 180, Some(180), Some(Some(20))),
        (Some(20), 180, Some(20), None),
        (Some(0), 180, Some(180), Some(Some(5))),
        (Some(0), 180, Some(5), None),
        (Some(0), 5, None, Some(None)),
        (Some(0), 5, Some(5), None),
        (Some(300), 180, Some(180), None),
        (None, 30, Some(30), None),
    ] {
        let mut instance = deleted(instance(&up()));
        instance.spec.termination_grace_period_seconds = spec_grace;
        let mut pod = pod("p", Some("a"), &running()).as_ref().clone();
        pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(made_with);
        if deleted_with.is_some() {
            pod.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
            pod.metadata.deletion_grace_period_seconds = deleted_with;
        }
        let expected: Vec<InstanceStep> = step
            .map(|grace| InstanceStep::DeletePod {
                name: "virt-launcher-p".into(),
                uid: "p".into(),
                grace,
            })
            .into_iter()
            .collect();
        let steps = at(&instance, &[Arc::new(pod)], false, NodeState::Ready).steps;
        assert_eq!(steps, expected, "{spec_grace:?} {made_with} {deleted_with:?}");
    }
}

#[test]
fn deletion_waits_for_the_guest_to_end() {
    let instance = deleted(instance(&up()));
    let living = pod("p", Some("a"), &running());
    let delete = InstanceStep::DeletePod {
        name: "virt-launcher-p".into(),
        uid: "p".into(),
        grace: None,
    };
    assert_eq!(
        at(&instance, std::slice::from_ref(&living), false, NodeState::Ready).steps,
        [delete]
    );
    let mut leaving = living.as_ref().clone();
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
    assert_eq!(at(&instance, &[Arc::new(leaving)], false, NodeState::Ready).steps, []);
    let over = at(
        &instance,
        &[pod("p", Some("a"), &ended_with("Shutdown"))],
        false,
        NodeState::Ready,
    );
    assert_eq!(over.steps, [InstanceStep::RemoveFinalizer]);
    assert_eq!(
        at(&instance, &[living], false, NodeState::Gone).steps,
        [InstanceStep::RemoveFinalizer]
    );
    assert_eq!(at(&instance, &[], true, UNRESPONSIVE).steps, [], "it may still run");
    assert_eq!(
        at(&instance, &[], true, NodeState::Gone).steps,
        [InstanceStep::RemoveFinalizer]
    );
}

#[test]
fn pod_deletion_is_an_eviction_unless_instance_is_deleted() {
    let message = json!({"outcome": "Shutdown", "message": "it ended", "requested": true}).to_string();
    let ended = pod(
        "p",
        Some("a"),
        &json!({"terminated": {"exitCode": 0, "message": message}}),
    );
    // Leftovers of a migration keep the instance for a moment.
    let pods = [ended, pod("q", Some("b"), &running())];
    for (instance, expected) in [
        (instance(&up()), "Evicted"),
        (deleted(instance(&up())), "GuestShutdown"),
    ] {
        let plan = at(&instance, &pods, false, NodeState::Ready);
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Succeeded), expected));
    }
}

#[test]
fn instance_deleted_without_a_pod_is_removed_at_once() {
    let instance = deleted(instance(&json!({"phase": "Pending"})));
    assert!(at(&instance, &[], false, NodeState::Unknown).confirm);
    assert_eq!(
        at(&instance, &[], true, NodeState::Unknown).steps,
        [InstanceStep::RemoveFinalizer]
    );
}

#[test]
fn final_phase_is_kept_and_running_pods_are_deleted() {
    let status = json!({"phase": "Succeeded", "reason": "GuestShutdown", "nodeName": "a"});
    let instance = instance(&status);
    let plan = at(
        &instance,
        &[pod("p", Some("a"), &ended_with("Shutdown"))],
        false,
        NodeState::Ready,
    );
    assert_eq!(phase(&plan).unwrap_or(Phase::Succeeded), Phase::Succeeded);
    assert!(plan.steps.is_empty());
    let plan = at(&instance, &[pod("q", Some("b"), &running())], false, NodeState::Ready);
    assert_eq!(plan.steps.len(), 1, "{:?}", plan.steps);
    assert!(
        !at(&instance, &[], true, NodeState::Unknown)
            .steps
            .contains(&InstanceStep::CreatePod)
    );
}

/// A plan is not repeated once it is written. The node's name is known one round after the pod is bound.
#[test]
fn a_plan_that_was_carried_out_is_empty() {
    for status in [json!({"phase": "Pending"}), json!({"phase": "Scheduling"}), up()] {
        for state in [Value::Null, running(), ended_with("Shutdown"), ended_with("Crashed")] {
            for node in [NodeState::Ready, UNRESPONSIVE, NodeState::Gone, NodeState::Deleted] {
                let mut instance = instance(&status);
                let pods = [pod("p", Some("a"), &state)];
                for _ in 0..2 {
                    if let Some(written) = at(&instance, &pods, false, node).status {
                        apply(instance.status.as_mut().unwrap(), written);
                    }
                }
                assert_eq!(
                    at(&instance, &pods, false, node).status,
                    None,
                    "{status} {state} {node:?}"
                );
            }
        }
    }
}

/// Merges the controller's part as the API server does: the agent's fields stay.
fn apply(current: &mut VirtualMachineInstanceStatus, written: VirtualMachineInstanceStatus) {
    let before = std::mem::replace(current, written);
    current.phase = current.phase.or(before.phase);
    let running = before
        .phase_transition_timestamps
        .into_iter()
        .filter(|transition| transition.phase == Phase::Running);
    current.phase_transition_timestamps.extend(running);
}

/// Returns the state of migrations, one of which has moved the guest to node `b`.
fn moved() -> Moving<'static> {
    Moving {
        under_way: true,
        moved_to: Some("b"),
        state: None,
        mode: None,
        migrations: &[],
    }
}

#[test]
fn force_deleted_pod_is_dropped_once_the_side_is_settled() {
    let mut status = up();
    status["activePods"]["q"] = json!("b");
    let instance = deleted(instance(&status));
    let pods = [pod("p", Some("a"), &ended_with("Shutdown"))];
    for (side, pod, reported_state, goes) in [
        ("target", "q", "Gone", true),
        ("target", "q", "Refused", true),
        ("target", "q", "Ended", true),
        ("target", "q", "Complete", false),
        ("target", "q", "Running", false),
        ("target", "another", "Gone", false),
        ("source", "q", "Stopped", true),
        ("source", "q", "Ended", true),
        ("source", "q", "Stayed", false),
        ("source", "q", "Released", false),
    ] {
        let migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "m", "namespace": "default", "uid": "m"},
            "spec": {"vmiName": "vm"},
            "status": {"phase": "Failed", side: {"node": "b", "podUID": pod, "state": reported_state}},
        }))
        .unwrap();
        let plan = plan(&ObservedInstance {
            moving: Moving {
                migrations: &[Arc::new(migration)],
                ..Moving::default()
            },
            ..seen(&instance, &pods)
        });
        assert_eq!(
            plan.steps.contains(&InstanceStep::RemoveFinalizer),
            goes,
            "{side} {pod} {reported_state}"
        );
    }
}

#[test]
fn target_pod_deleted_before_being_active_holds_the_instance() {
    // Phase of the migration, state of the target, nodes that are gone, whether the pod is active, and whether the
    // instance may go.
    for (phase, state, gone, active, goes) in [
        ("PreparingTarget", Some("Prepared"), false, true, false),
        ("Running", Some("Complete"), false, true, false),
        ("Running", Some("Running"), false, true, false),
        ("Running", Some("Running"), true, false, true),
        ("PreparingTarget", None, false, true, false),
        ("PreparingTarget", Some("Gone"), false, false, true),
        ("Running", Some("Ended"), false, false, true),
        ("Failed", Some("Gone"), false, false, true),
    ] {
        let instance = deleted(instance(&up()));
        let pods = [pod("p", Some("a"), &ended_with("Shutdown"))];
        let migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "m", "namespace": "default", "uid": "m"},
            "spec": {"vmiName": "vm"},
            "status": {
                "phase": phase,
                "source": {"node": "a", "podUID": "p"},
                "target": {"node": "b", "podUID": "q", "state": state},
            },
        }))
        .unwrap();
        let migrations = [Arc::new(migration)];
        let nodes = [("b".into(), NodeState::Gone)];
        let mut observed = ObservedInstance {
            moving: Moving {
                under_way: phase != "Failed",
                migrations: &migrations,
                ..Moving::default()
            },
            ..seen(&instance, &pods)
        };
        if gone {
            observed.other_nodes = &nodes;
        }
        let planned = plan(&observed);
        let case = format!("{phase} {state:?} {gone}");
        assert_eq!(planned.steps.contains(&InstanceStep::RemoveFinalizer), goes, "{case}");
        let status = planned.status.unwrap_or_default();
        assert_eq!(
            status.active_pods.get("q").is_some_and(|node| node == "b"),
            active,
            "{case}"
        );
    }
}

#[test]
fn instance_reports_the_migration_mode_before_the_migration() {
    let state: MigrationState = serde_json::from_value(json!({
        "migrationUid": "m", "sourceNode": "a", "targetNode": "b", "targetPod": "virt-launcher-q", "mode": "PreCopy",
    }))
    .unwrap();
    let mut status = up();
    let mode_by = |status: &Value, moving| {
        let instance = instance(status);
        let pods = [pod("p", Some("a"), &running()), pod("q", Some("b"), &running())];
        let plan = plan(&ObservedInstance {
            moving,
            ..seen(&instance, &pods)
        });
        let status = plan.status.expect("it is news");
        status.migration_state.and_then(|state| state.mode)
    };
    let begun = Moving {
        under_way: true,
        state: Some(&state),
        mode: Some(MigrationMode::PreCopy),
        ..Moving::default()
    };
    assert_eq!(mode_by(&status, begun), Some(MigrationMode::PreCopy));
    status["migrationState"] = serde_json::to_value(&state).unwrap();
    let paused = Moving {
        mode: Some(MigrationMode::Paused),
        ..begun
    };
    assert_eq!(mode_by(&status, paused), Some(MigrationMode::Paused));
    let arrived = Moving {
        moved_to: Some("b"),
        ..paused
    };
    assert_eq!(mode_by(&status, arrived), Some(MigrationMode::Paused));
}

#[test]
fn a_mark_is_written_over_together_with_where_the_guest_is() {
    let mark = |node: &str| {
        let (mut status, now) = (up(), NOW.parse().unwrap());
        let requester = evacuation_request::new(DrainRequest::Cordon, now);
        let mark = evacuation_request::status(&instance(&status), node, &requester, now);
        let fields = status.as_object_mut().unwrap();
        fields.extend(mark.as_object().unwrap().clone());
        instance(&status)
    };
    let pods = [pod("p", Some("a"), &running()), pod("q", Some("b"), &running())];
    for (marked, moving, left) in [
        ("a", moved(), true),
        ("b", moved(), false),
        ("a", Moving::default(), false),
    ] {
        let instance = mark(marked);
        let observed = ObservedInstance {
            moving,
            ..seen(&instance, &pods)
        };
        let wanted = plan(&observed).status.unwrap_or_default();
        assert_eq!(wanted.evacuation_node_name.as_deref(), left.then_some(""), "{marked}");
        let condition = find(&wanted.conditions, types::EVICTION_REQUESTED);
        assert_eq!(
            condition.map(|condition| condition.status.as_str()),
            left.then_some("False"),
            "{marked}"
        );
        if !left {
            continue;
        }
        // The status neither has an evacuation request nor changes any more, but it is still applied along with any
        // other change.
        let mut arrived = instance.clone();
        let status = arrived.status.as_mut().unwrap();
        status
            .conditions
            .retain(|condition| condition.type_ != types::EVICTION_REQUESTED);
        status.conditions.extend(wanted.conditions);
        status.evacuation_node_name = wanted.evacuation_node_name;
        status.node_name = wanted.node_name;
        status.active_pods = wanted.active_pods;
        assert_eq!(
            (
                evacuation_request::of(&arrived),
                evacuation_request::evacuation(&arrived)
            ),
            (None, None)
        );
        let again = plan(&ObservedInstance {
            instance: &arrived,
            ..observed
        });
        assert_eq!(again.status, None);
        let targets = Targets {
            available: true,
            reason: "TargetsFound".into(),
            message: "one could".into(),
        };
        let more = plan(&ObservedInstance {
            instance: &arrived,
            targets: Some(&targets),
            ..observed
        });
        let more_status = more.status.unwrap();
        assert!(find(&more_status.conditions, types::MIGRATION_TARGET_AVAILABLE).is_some());
        assert!(find(&more_status.conditions, types::EVICTION_REQUESTED).is_some());
    }
}

#[test]
fn instance_node_follows_the_migration() {
    let mut status = up();
    status["activePods"]["q"] = json!("b");
    let instance = instance(&status);
    let pods = [
        pod("p", Some("a"), &ended_with("Migrated")),
        pod("q", Some("b"), &running()),
    ];
    let observed = |moving| ObservedInstance {
        confirmed: false,
        moving,
        ..seen(&instance, &pods)
    };
    let plan_moved = plan(&observed(moved()));
    let status = plan_moved.status.unwrap();
    assert_eq!((status.node_name.as_deref(), status.phase), (Some("b"), None));
    assert_eq!(status.active_pods, BTreeMap::from([("q".to_owned(), "b".to_owned())]));
    assert!(plan_moved.steps.contains(&InstanceStep::Label("b".into())));
    // A guest that has left has not ended, even while its new node is unknown.
    let unresponsive = plan(&observed(Moving::default()));
    assert_eq!(phase(&unresponsive), None);
}

#[test]
fn guest_that_ended_on_the_target_ends_the_instance() {
    let mut status = up();
    status["activePods"]["q"] = json!("b");
    status["drydock"] = json!({"endedPods": ["q"]});
    // The target's pod is gone before the migration is over.
    let pods = [pod("p", Some("a"), &ended_with("Migrated"))];
    let before = instance(&status);
    let arrived = plan(&ObservedInstance {
        moving: moved(),
        ..seen(&before, &pods)
    });
    let arrived = arrived.status.unwrap();
    assert_eq!((arrived.node_name.as_deref(), arrived.phase), (Some("b"), None));
    assert_eq!(arrived.active_pods, BTreeMap::from([("q".to_owned(), "b".to_owned())]));
    status["nodeName"] = json!("b");
    status["activePods"] = json!(arrived.active_pods);
    let over = at(&instance(&status), &pods, true, NodeState::Ready);
    assert_eq!((phase(&over), reason(&over)), (Some(Phase::Failed), "Evicted"));
}

#[test]
fn pod_left_by_the_guest_is_not_active() {
    let mut status = up();
    status["activePods"]["q"] = json!("b");
    let instance = instance(&status);
    let pods = [pod("p", Some("a"), &running()), pod("q", Some("b"), &running())];
    for (reported_state, moved_to, active) in [
        ("Stopped", Some("b"), ["q"].as_slice()),
        // The guest's new node must be known first: both are reported together.
        ("Stopped", None, &["p", "q"]),
        ("Released", Some("b"), &["p", "q"]),
    ] {
        let migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "m", "namespace": "default", "uid": "m"},
            "spec": {"vmiName": "vm"},
            "status": {"phase": "Running", "source": {"node": "a", "podUID": "p", "state": reported_state}},
        }))
        .unwrap();
        let migrations = [Arc::new(migration)];
        let plan = plan(&ObservedInstance {
            moving: Moving {
                moved_to,
                migrations: &migrations,
                ..moved()
            },
            ..seen(&instance, &pods)
        });
        let status = plan.status.map(|status| status.active_pods);
        let shown = status.unwrap_or_else(|| instance.status.clone().unwrap_or_default().active_pods);
        assert_eq!(
            shown.keys().collect::<Vec<_>>(),
            active,
            "{reported_state} {moved_to:?}"
        );
    }
}

#[test]
fn leftover_of_a_failed_attempt_is_not_a_later_guests_end() {
    let mut status = up();
    status["activePods"]["q"] = json!("b");
    let arrived = instance(&status);
    let [left, never, here] = [
        pod("p", Some("a"), &ended_with("Migrated")),
        pod("n", Some("b"), &ended_with("Destroyed")),
        pod("q", Some("b"), &running()),
    ];
    for pods in [[&left, &never, &here], [&here, &never, &left], [&never, &here, &left]] {
        let pods = pods.map(Arc::clone);
        let plan = plan(&ObservedInstance {
            moving: Moving {
                under_way: false,
                ..moved()
            },
            ..seen(&arrived, &pods)
        });
        assert_eq!(phase(&plan), None, "{pods:?}");
        assert!(
            !plan
                .steps
                .iter()
                .any(|step| matches!(step, InstanceStep::DeletePod { .. })),
            "{plan:?}"
        );
    }

    // When the guest ends there itself, its own pod shows how: the pod that its agent has reported, ...
    let mut status = up();
    status["nodeName"] = json!("b");
    status["activePods"] = json!({"q": "b"});
    let ended = pod("q", Some("b"), &ended_with("Shutdown"));
    for pods in [[&never, &ended], [&ended, &never]] {
        let pods = pods.map(Arc::clone);
        let mut recorded = status.clone();
        recorded["drydock"] = json!({"podUID": "q"});
        let plan = at(&instance(&recorded), &pods, true, NodeState::Ready);
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Succeeded), "GuestShutdown"));

        // ... or before that the pod to which its migration has moved it.
        let state: MigrationState = serde_json::from_value(json!({
            "migrationUid": "m", "sourceNode": "a", "targetNode": "b", "targetPod": "virt-launcher-q", "completed": true,
        }))
        .unwrap();
        let moved = instance(&status);
        let plan = super::plan(&ObservedInstance {
            moving: Moving {
                state: Some(&state),
                ..Moving::default()
            },
            ..seen(&moved, &pods)
        });
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Succeeded), "GuestShutdown"));
    }
}

#[test]
fn guest_end_is_not_reported_before_migration_is_over() {
    let instance = instance(&up());
    let pods = [pod("p", Some("a"), &ended_with("Crashed"))];
    let at = |under_way| {
        plan(&ObservedInstance {
            moving: Moving {
                under_way,
                ..Moving::default()
            },
            ..seen(&instance, &pods)
        })
    };
    assert_eq!(phase(&at(true)), None);
    assert_eq!(phase(&at(false)), Some(Phase::Failed));
}

#[test]
fn a_pod_on_another_node_that_is_gone_keeps_nothing() {
    let mut status = up();
    status["activePods"]["q"] = json!("b");
    let instance = deleted(instance(&status));
    let pods = [pod("p", Some("a"), &ended_with("Shutdown"))];
    let at = |state| {
        let nodes = [("b".to_owned(), state)];
        plan(&ObservedInstance {
            other_nodes: &nodes,
            ..seen(&instance, &pods)
        })
    };
    assert!(!at(UNRESPONSIVE).steps.contains(&InstanceStep::RemoveFinalizer));
    assert!(at(NodeState::Gone).steps.contains(&InstanceStep::RemoveFinalizer));
}

#[test]
fn running_guest_gets_a_probe_for_an_unknown_image_digest() {
    let with_image = |phase: &str, id: Value| {
        let mut status = up();
        status["phase"] = json!(phase);
        status["drydock"] = json!({"podUID": "p",
            "images": [{"name": "root", "imageId": id, "virtualSize": 1, "format": "raw"}]});
        let mut instance = instance(&status);
        instance.spec.volumes =
            serde_json::from_value(json!([{"name": "root", "containerDisk": {"image": "r.example/a:1"}}])).unwrap();
        instance
    };
    let probes = |instance: &VirtualMachineInstance, pod: Arc<Pod>| {
        let steps = at(instance, &[pod], true, NodeState::Ready).steps;
        let names = steps.into_iter().filter_map(|step| match step {
            InstanceStep::ProbeImages { name, uid, containers } => Some((name, uid, containers.len())),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    let here = || pod("p", Some("a"), &running());
    let expected = ("virt-launcher-p".to_owned(), "p".to_owned(), 1);
    assert_eq!(probes(&with_image("Running", Value::Null), here()), [expected]);
    assert_eq!(probes(&with_image("Scheduled", Value::Null), here()), []);
    assert_eq!(
        probes(&with_image("Running", json!("r.example/a@sha256:1")), here()),
        []
    );
    assert_eq!(probes(&deleted(with_image("Running", Value::Null)), here()), []);
    let ended = pod("p", Some("a"), &ended_with("shutdown"));
    assert_eq!(probes(&with_image("Running", Value::Null), ended), []);
}

#[test]
fn a_pod_without_a_node_follows_the_configuration() {
    let waiting = |node: Option<&str>, digest: Option<&str>| {
        let mut pod = pod("p", node, &Value::Null).as_ref().clone();
        pod.metadata.resource_version = Some("7".into());
        let digest = digest.map(|digest| ("drydock.dev/requirements-digest".to_owned(), digest.to_owned()));
        pod.metadata.annotations = Some(digest.into_iter().collect());
        pod
    };
    let labelled = |mut pod: Pod| {
        let label = ("kubevirt.io/migrationJobUID".to_owned(), "m".to_owned());
        pod.metadata.labels = Some([label].into());
        pod
    };
    let leaving = |mut pod: Pod| {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
        pod
    };
    let rejected = |mut pod: Pod| {
        pod.status.as_mut().unwrap().phase = Some("Failed".into());
        pod
    };
    for (what, pod, wanted, replaced) in [
        ("another configuration", waiting(None, Some("old")), Some("new"), true),
        ("the same configuration", waiting(None, Some("new")), Some("new"), false),
        ("not known what is wanted", waiting(None, Some("old")), None, false),
        ("not known what it requires", waiting(None, None), Some("new"), false),
        ("bound", waiting(Some("a"), Some("old")), Some("new"), false),
        (
            "of a migration",
            labelled(waiting(None, Some("old"))),
            Some("new"),
            false,
        ),
        (
            "on its way out",
            leaving(waiting(None, Some("old"))),
            Some("new"),
            false,
        ),
        ("ended", rejected(waiting(None, Some("old"))), Some("new"), false),
    ] {
        let pods = [Arc::new(pod)];
        let replaces = |instance: &VirtualMachineInstance| {
            let steps = plan(&ObservedInstance {
                requirements_digest: wanted,
                ..seen(instance, &pods)
            })
            .steps;
            let replaced = InstanceStep::ReplacePod {
                name: "virt-launcher-p".into(),
                uid: "p".into(),
                resource_version: Some("7".into()),
            };
            steps.contains(&replaced)
        };
        let scheduling = instance(&json!({"phase": "Scheduling"}));
        assert_eq!(replaces(&scheduling), replaced, "{what}");
        assert!(!replaces(&deleted(scheduling)), "{what}: its instance is deleted");
        for phase in ["Scheduled", "Running", "Failed"] {
            assert!(!replaces(&instance(&json!({"phase": phase}))), "{what}: it is {phase}");
        }
    }
}

#[test]
fn a_pod_that_was_replaced_is_made_anew() {
    let instance = instance(&json!({"phase": "Scheduling"}));
    assert!(at(&instance, &[], false, NodeState::Unknown).confirm);
    let plan = at(&instance, &[], true, NodeState::Unknown);
    assert_eq!(plan.steps, [InstanceStep::CreatePod]);
}

#[test]
fn pod_rejected_by_the_kubelet_ends_an_instance() {
    // The node's labels have changed between the scheduler's decision and the kubelet's first sync.
    let mut rejected = pod("p", Some("a"), &Value::Null).as_ref().clone();
    let status = rejected.status.as_mut().unwrap();
    status.phase = Some("Failed".into());
    status.reason = Some("NodeAffinity".into());
    status.message = Some("Pod was rejected: Predicate NodeAffinity failed".into());
    let pods = [Arc::new(rejected)];
    for before in [
        json!({"phase": "Scheduling"}),
        json!({"phase": "Scheduling", "nodeName": "a", "activePods": {"p": "a"}}),
    ] {
        let plan = at(&instance(&before), &pods, false, NodeState::Ready);
        assert_eq!((phase(&plan), reason(&plan)), (Some(Phase::Failed), "GuestNotStarted"));
        let status = plan.status.unwrap();
        assert!(status.active_pods.is_empty());
        let ready = find(&status.conditions, types::READY).unwrap();
        let message = ready.message.as_deref().unwrap_or_default();
        assert!(message.contains("NodeAffinity"), "{message}");
    }
}
