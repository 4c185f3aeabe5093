use std::sync::Arc;

use drydock_api::kubevirt::{
    Phase, RunStrategy, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus,
    instance::StartStrategy,
    machine::{StartFailure, StateChange, StateChangeRequest},
    names::{TEMPLATE, VM_FINALIZER, VM_GENERATION, VM_NAME},
    status::PhaseTransition,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use crate::instance::ending::ended;

use super::{
    DeletionReason, InstanceDecision, InstanceDeletion, MachinePlan, ObservedMachine, Standing,
    instance_of::instance_of, plan, printable::Printable,
};

mod printable;
mod properties;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// Returns a machine that was reconciled before with this strategy.
fn machine(strategy: RunStrategy) -> VirtualMachine {
    let mut machine: VirtualMachine = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm1", "namespace": "default", "uid": "vm-uid", "generation": 4, "finalizers": [VM_FINALIZER]},
        "spec": {
            "runStrategy": strategy,
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {"note": "x"}},
                "spec": {"hostname": "one", "terminationGracePeriodSeconds": 5},
            },
        },
    }))
    .unwrap();
    machine.status = Some(VirtualMachineStatus {
        run_strategy: Some(strategy),
        ..VirtualMachineStatus::default()
    });
    machine
}

/// The machine's instance as it was made, in this phase.
fn instance(machine: &VirtualMachine, uid: &str, phase: Phase) -> VirtualMachineInstance {
    let mut instance = instance_of(machine);
    instance.metadata.uid = Some(uid.into());
    instance.status.get_or_insert_default().phase = Some(phase);
    instance
}

fn ran(mut instance: VirtualMachineInstance) -> VirtualMachineInstance {
    let status = instance.status.get_or_insert_default();
    status.phase_transition_timestamps.push(PhaseTransition {
        phase: Phase::Running,
        phase_transition_timestamp: now(),
    });
    instance
}

fn evicted(mut instance: VirtualMachineInstance) -> VirtualMachineInstance {
    instance.status.get_or_insert_default().reason = Some("Evicted".into());
    instance
}

fn leaving(mut instance: VirtualMachineInstance) -> VirtualMachineInstance {
    instance.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    instance
}

fn foreign(mut instance: VirtualMachineInstance) -> VirtualMachineInstance {
    instance.metadata.owner_references = None;
    instance
}

fn observed(machine: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> ObservedMachine {
    ObservedMachine {
        now: now(),
        machine: machine.clone(),
        instance: instance.cloned().map(Arc::new),
        confirmed: false,
        migrating: false,
        failed_create: None,
    }
}

fn planned(machine: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> MachinePlan {
    plan(&ObservedMachine {
        confirmed: true,
        ..observed(machine, instance)
    })
}

/// Returns the name of a plan's action on the instance.
fn deed(plan: &MachinePlan) -> &'static str {
    let starts_again = plan.status.as_ref().is_some_and(|status| {
        let requests = &status.state_change_requests;
        requests.iter().any(|request| request.action == StateChange::Start)
    });
    match (&plan.delete, &plan.create) {
        (Some(_), Some(_)) => "both",
        (
            Some(InstanceDeletion {
                why: DeletionReason::RunAgain,
                ..
            }),
            None,
        ) if starts_again => "end, then start by request",
        (
            Some(InstanceDeletion {
                why: DeletionReason::RunAgain,
                ..
            }),
            None,
        ) => "end, to run again",
        (Some(_), None) => "end",
        (None, Some(_)) => "start",
        (None, None) if plan.wake.is_some() => "wait",
        (None, None) => "rest",
    }
}

fn request(action: StateChange, uid: Option<&str>) -> StateChangeRequest {
    StateChangeRequest {
        action,
        uid: uid.map(Into::into),
        data: None,
    }
}

#[test]
fn run_strategy_depends_on_the_cause_of_the_guest_end() {
    use RunStrategy::{Always, Manual, Once, RerunOnFailure};
    let (again, by_request) = ("end, to run again", "end, then start by request");
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]);
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    // Way, the pod's metadata, more of its status, the launcher's termination message.
    let requested = json!({"outcome": "Shutdown", "message": "", "requested": true});
    let own = json!({"outcome": "Shutdown", "message": "", "requested": false});
    let older = json!({"outcome": "Shutdown", "message": ""});
    for (way, metadata, status, outcome, reruns) in [
        ("deletion", &deleted, json!({}), &requested, by_request),
        ("deletion, older launcher", &deleted, json!({}), &older, by_request),
        (
            "eviction",
            &deleted,
            json!({"conditions": disrupted}),
            &requested,
            by_request,
        ),
        (
            "node shutdown",
            &json!({}),
            json!({"reason": "Terminated"}),
            &requested,
            by_request,
        ),
        (
            "rejection",
            &json!({}),
            json!({"reason": "NodeAffinity"}),
            &requested,
            by_request,
        ),
        ("own shutdown", &json!({}), json!({}), &own, "end"),
        ("own shutdown just before a deletion", &deleted, json!({}), &own, "end"),
    ] {
        let mut pod = json!({"metadata": metadata, "status": status});
        pod["status"]["containerStatuses"] = json!([{
            "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "message": outcome.to_string()}},
        }]);
        let ended = ended(&serde_json::from_value(pod).unwrap()).unwrap();
        for (strategy, expected) in [
            (Always, again),
            (RerunOnFailure, reruns),
            (Manual, "rest"),
            (Once, "rest"),
        ] {
            let machine = machine(strategy);
            let mut instance = ran(instance(&machine, "i1", ended.phase().unwrap()));
            instance.status.get_or_insert_default().reason = Some(ended.reason().into());
            assert_eq!(
                deed(&planned(&machine, Some(&instance))),
                expected,
                "{way}, {strategy:?}"
            );
        }
    }
}

#[test]
fn each_run_strategy_matches_the_decision_table() {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    let again = "end, to run again";
    let by_request = "end, then start by request";
    // none, pending, scheduled, running, succeeded, failed, evicted + succeeded, evicted + failed, leaving, foreign
    #[rustfmt::skip]
    let table = [
        (Always,         ["start", "rest", "rest", "rest", again,  again,      again,      again,      "rest", "rest"]),
        (RerunOnFailure, ["rest",  "rest", "rest", "rest", "end",  by_request, by_request, by_request, "rest", "rest"]),
        (Manual,         ["rest",  "rest", "rest", "rest", "rest", "rest",     "rest",     "rest",     "rest", "rest"]),
        (Once,           ["start", "rest", "rest", "rest", "rest", "rest",     "rest",     "rest",     "rest", "rest"]),
        (Halted,         ["rest",  "end",  "end",  "end",  "end",  "end",      "end",      "end",      "rest", "rest"]),
    ];
    for (strategy, expected) in table {
        let machine = machine(strategy);
        let of = |phase| ran(instance(&machine, "i1", phase));
        let seen = [
            None,
            Some(instance(&machine, "i1", Phase::Pending)),
            Some(instance(&machine, "i1", Phase::Scheduled)),
            Some(of(Phase::Running)),
            Some(of(Phase::Succeeded)),
            Some(of(Phase::Failed)),
            Some(evicted(of(Phase::Succeeded))),
            Some(evicted(of(Phase::Failed))),
            Some(leaving(of(Phase::Running))),
            Some(foreign(of(Phase::Running))),
        ];
        let done: Vec<_> = seen
            .iter()
            .map(|seen| deed(&planned(&machine, seen.as_ref())))
            .collect();
        assert_eq!(done, expected, "{strategy:?}");
    }
}

#[test]
fn running_stands_for_always_and_halted() {
    for (running, strategy) in [(true, RunStrategy::Always), (false, RunStrategy::Halted)] {
        let mut machine = machine(RunStrategy::Manual);
        machine.spec.run_strategy = None;
        machine.spec.running = Some(running);
        let status = planned(&machine, None).status.unwrap();
        assert_eq!(status.run_strategy, Some(strategy));
    }
}

#[test]
fn requests_are_done_once_and_in_order() {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    let (start, stop) = (
        request(StateChange::Start, None),
        request(StateChange::Stop, Some("i1")),
    );
    let restart = vec![stop.clone(), start.clone()];
    let old = vec![request(StateChange::Stop, Some("i0"))];
    // Strategy, requests, phase of i1 if it is there, deed, requests that are left.
    type Row = (
        RunStrategy,
        Vec<StateChangeRequest>,
        Option<Phase>,
        &'static str,
        Vec<StateChangeRequest>,
    );
    let rows: Vec<Row> = vec![
        (Manual, vec![start.clone()], None, "start", vec![start.clone()]),
        (Manual, vec![start.clone()], Some(Phase::Running), "rest", vec![]),
        (
            Manual,
            vec![start.clone()],
            Some(Phase::Succeeded),
            "end",
            vec![start.clone()],
        ),
        (
            Manual,
            vec![stop.clone()],
            Some(Phase::Running),
            "end",
            vec![stop.clone()],
        ),
        (Manual, vec![stop.clone()], None, "rest", vec![]),
        (Manual, restart.clone(), Some(Phase::Running), "end", restart.clone()),
        (Manual, restart.clone(), None, "start", vec![start.clone()]),
        (Manual, old.clone(), Some(Phase::Running), "rest", vec![]),
        (
            Always,
            vec![stop.clone()],
            Some(Phase::Running),
            "end",
            vec![stop.clone()],
        ),
        (
            RerunOnFailure,
            vec![stop.clone()],
            Some(Phase::Running),
            "end",
            vec![stop.clone()],
        ),
        (
            RerunOnFailure,
            vec![stop.clone()],
            Some(Phase::Failed),
            "end",
            vec![stop.clone()],
        ),
        (RerunOnFailure, vec![start.clone()], None, "start", vec![start.clone()]),
        (Once, restart.clone(), Some(Phase::Succeeded), "end", restart.clone()),
        (Halted, vec![start.clone()], None, "rest", vec![]),
    ];
    for (strategy, requests, phase, expected, left) in rows {
        let mut machine = machine(strategy);
        machine.status.as_mut().unwrap().state_change_requests = requests.clone();
        let instance = phase.map(|phase| ran(instance(&machine, "i1", phase)));
        let plan = planned(&machine, instance.as_ref());
        let deed = if deed(&plan).starts_with("end") {
            "end"
        } else {
            deed(&plan)
        };
        assert_eq!(deed, expected, "{strategy:?} {requests:?} {phase:?}");
        assert_eq!(
            plan.status.unwrap().state_change_requests,
            left,
            "{strategy:?} {requests:?} {phase:?}"
        );
    }
}

#[test]
fn halted_machine_starts_paused_only_by_request_while_halted() {
    use RunStrategy::{Always, Halted, Manual};
    let paused = |value: &str| StateChangeRequest {
        data: Some([("paused".to_owned(), value.to_owned())].into()),
        ..request(StateChange::Start, None)
    };
    // Run strategy that the status has, request, whether it is carried out.
    for (before, request, runs) in [
        (Some(Halted), paused("true"), true),
        (None, paused("true"), true),
        (Some(Manual), paused("true"), false),
        (Some(Halted), paused("false"), false),
        (Some(Halted), request(StateChange::Start, None), false),
    ] {
        let mut machine = machine(Halted);
        let status = machine.status.as_mut().unwrap();
        status.run_strategy = before;
        status.state_change_requests = vec![request.clone()];
        let plan = planned(&machine, None);
        assert_eq!((plan.run, deed(&plan)), (runs, "rest"), "{before:?} {request:?}");
        let status = plan.status.or(machine.status.clone()).unwrap();
        let left = if runs { vec![request] } else { vec![] };
        assert_eq!(status.state_change_requests, left, "{before:?}");
        if !runs {
            continue;
        }
        machine.status = Some(status);
        machine.spec.run_strategy = Some(Always);
        let plan = planned(&machine, None);
        assert_eq!((plan.run, deed(&plan)), (false, "start"));
        assert_eq!(plan.create.unwrap().spec.start_strategy, Some(StartStrategy::Paused));
        // The next start is an ordinary one.
        let running = instance(&machine, "i1", Phase::Running);
        assert_eq!(
            planned(&machine, Some(&running)).status.unwrap().state_change_requests,
            []
        );
    }
}

#[test]
fn request_for_an_unseen_instance_is_confirmed_first() {
    let mut machine = machine(RunStrategy::Manual);
    machine.status.as_mut().unwrap().state_change_requests = vec![request(StateChange::Stop, Some("i2"))];
    let present = instance(&machine, "i1", Phase::Running);
    for seen in [None, Some(&present)] {
        let mut observed = observed(&machine, seen);
        let first = plan(&observed);
        assert_eq!(
            first,
            MachinePlan {
                confirm: true,
                ..MachinePlan::default()
            }
        );
        observed.confirmed = true;
        assert_eq!(plan(&observed).status.unwrap().state_change_requests, []);
    }
}

#[test]
fn new_run_strategy_applies_while_the_last_instance_ends() {
    let mut machine = machine(RunStrategy::RerunOnFailure);
    machine.status.as_mut().unwrap().run_strategy = Some(RunStrategy::Halted);
    let going = leaving(instance(&machine, "i1", Phase::Running));
    machine.status = planned(&machine, Some(&going)).status;
    assert_eq!(deed(&planned(&machine, None)), "start");
    // What was started so is not started again when it has shut down.
    let done = ran(instance(&machine, "i2", Phase::Running));
    machine.status = planned(&machine, Some(&done)).status;
    assert_eq!(machine.status.as_ref().unwrap().state_change_requests, []);
    assert_eq!(deed(&planned(&machine, None)), "rest");
}

#[test]
fn an_instance_is_the_template_under_the_machines_name() {
    let machine = machine(RunStrategy::Always);
    let made = *planned(&machine, None).create.unwrap();
    assert_eq!(made.spec, machine.spec.template.spec);
    let metadata = &made.metadata;
    assert_eq!(
        (metadata.name.as_deref(), metadata.namespace.as_deref()),
        (Some("vm1"), Some("default"))
    );
    let labels = metadata.labels.clone().unwrap();
    assert_eq!((labels["app"].as_str(), labels[VM_NAME].as_str()), ("web", "vm1"));
    let annotations = metadata.annotations.clone().unwrap();
    assert_eq!(
        (annotations["note"].as_str(), annotations[VM_GENERATION].as_str()),
        ("x", "4")
    );
    let owner = &metadata.owner_references.clone().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("VirtualMachine", "vm-uid"));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), None));
    assert!(super::owns(&machine, &made));
}

#[test]
fn template_change_requires_a_restart_run_strategy_does_not() {
    let machine = machine(RunStrategy::Always);
    let running = ran(instance(&machine, "i1", Phase::Running));
    let requires_restart = |machine: &VirtualMachine, running: &VirtualMachineInstance| {
        let plan = planned(machine, Some(running));
        let has_event = |type_: &str| plan.events.iter().any(|event| event.reason == type_);
        let conditions = &plan.status.as_ref().unwrap().conditions;
        assert_eq!(
            has_event("RestartRequired"),
            super::holds(conditions, "RestartRequired")
        );
        has_event("RestartRequired")
    };
    assert!(!requires_restart(&machine, &running));
    let mut other = machine.clone();
    other.metadata.generation = Some(5);
    other.spec.run_strategy = Some(RunStrategy::Manual);
    assert!(!requires_restart(&other, &running));
    other.spec.template.spec.hostname = Some("two".into());
    assert!(requires_restart(&other, &running));
    let status = planned(&other, Some(&running)).status.unwrap();
    assert_eq!(
        (status.observed_generation, status.desired_generation),
        (Some(4), Some(5))
    );
    // Who does not know what it was made of does not guess.
    let mut unknown = running.clone();
    unknown.metadata.annotations.as_mut().unwrap().remove(TEMPLATE);
    assert!(!requires_restart(&other, &unknown));
}

#[test]
fn instance_of_another_owner_is_refused_and_left_alone() {
    let machine = machine(RunStrategy::Always);
    let mut other = foreign(instance(&machine, "i1", Phase::Running));
    for uid in [None, Some("another-vm")] {
        other.metadata.owner_references = uid.map(|uid| {
            let mut owner = instance_of(&machine).metadata.owner_references.unwrap();
            owner[0].uid = uid.into();
            owner
        });
        let plan = planned(&machine, Some(&other));
        assert_eq!(deed(&plan), "rest");
        let status = plan.status.unwrap();
        let failure = super::find(&status.conditions, "Failure").unwrap();
        assert_eq!(failure.reason.as_deref(), Some("InstanceNotOwned"));
        assert_eq!((status.created, status.ready), (false, false));
        assert_eq!(plan.events.len(), 1);
    }
}

#[test]
fn deleted_machine_is_removed_after_the_instance() {
    let mut machine = machine(RunStrategy::Always);
    machine.metadata.deletion_timestamp = leaving(instance_of(&machine)).metadata.deletion_timestamp;
    let running = instance(&machine, "i1", Phase::Running);
    let first = planned(&machine, Some(&running));
    assert_eq!(
        first.delete,
        Some(InstanceDeletion {
            uid: "i1".into(),
            why: DeletionReason::MachineDeleted
        })
    );
    assert_eq!(first.status.unwrap().printable_status.as_deref(), Some("Terminating"));
    assert!(!first.remove_finalizer);
    let second = planned(&machine, Some(&leaving(running.clone())));
    assert!(!second.remove_finalizer && second.delete.is_none() && second.create.is_none());
    let unsure = plan(&observed(&machine, None));
    assert!(unsure.confirm && !unsure.remove_finalizer);
    for gone in [None, Some(foreign(running.clone()))] {
        let last = planned(&machine, gone.as_ref());
        assert!(last.remove_finalizer && last.delete.is_none() && last.create.is_none());
    }
    // The deletion orphans the instance.
    machine.metadata.finalizers.as_mut().unwrap().push("orphan".into());
    let kept = planned(&machine, Some(&running));
    assert!(kept.remove_finalizer && kept.delete.is_none());
}

#[test]
fn an_instance_that_never_ran_delays_the_next() {
    let mut machine = machine(RunStrategy::Always);
    let mut waits = Vec::new();
    for count in 1..=7 {
        let failed = instance(&machine, &format!("i{count}"), Phase::Failed);
        let ends = planned(&machine, Some(&failed));
        assert_eq!(deed(&ends), "end, to run again");
        assert_eq!(ends.events.len(), 1, "{:?}", ends.events);
        machine.status = ends.status;
        // The same instance is counted once.
        assert_eq!(planned(&machine, Some(&failed)).status, None);
        let waiting = planned(&machine, None);
        assert_eq!(deed(&waiting), "wait");
        machine.status = waiting.status;
        let status = machine.status.as_ref().unwrap();
        assert_eq!(status.printable_status.as_deref(), Some("CrashLoopBackOff"));
        let failures = status.start_failure.clone().unwrap();
        assert_eq!(failures.consecutive_fail_count, count);
        waits.push(failures.retry_after_timestamp.unwrap());
        let due = plan(&ObservedMachine {
            now: waiting.wake.unwrap(),
            ..observed(&machine, None)
        });
        assert_eq!(deed(&due), "start");
    }
    assert!(waits.is_sorted(), "{waits:?}");
    assert_eq!(*waits.last().unwrap(), now() + SignedDuration::from_secs(300));
    // Once a guest has run, everything is forgotten.
    let running = instance(&machine, "i8", Phase::Running);
    assert_eq!(planned(&machine, Some(&running)).status.unwrap().start_failure, None);
}

#[test]
fn only_an_end_before_running_counts_as_start_failure() {
    let failures = Some(StartFailure {
        consecutive_fail_count: 2,
        last_failed_vmi_uid: Some("i0".into()),
        retry_after_timestamp: Some(now()),
    });
    let count = |strategy, instance: &dyn Fn(&VirtualMachine) -> VirtualMachineInstance| {
        let mut machine = machine(strategy);
        machine.status.as_mut().unwrap().start_failure = failures.clone();
        let seen = instance(&machine);
        let status = planned(&machine, Some(&seen)).status.unwrap();
        status.start_failure.map(|failures| failures.consecutive_fail_count)
    };
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    for strategy in [Always, RerunOnFailure, Once] {
        let failed = |machine: &VirtualMachine| instance(machine, "i1", Phase::Failed);
        assert_eq!(count(strategy, &failed), Some(3), "{strategy:?}");
        assert_eq!(
            count(strategy, &|machine| evicted(failed(machine))),
            Some(2),
            "{strategy:?}"
        );
        assert_eq!(count(strategy, &|machine| ran(failed(machine))), None, "{strategy:?}");
        let starting = |machine: &VirtualMachine| instance(machine, "i1", Phase::Scheduled);
        assert_eq!(count(strategy, &starting), Some(2), "{strategy:?}");
    }
    for strategy in [Manual, Halted] {
        assert_eq!(count(strategy, &|machine| instance(machine, "i1", Phase::Failed)), None);
    }
}

#[test]
fn instance_evicted_by_the_kubelet_restarts_after_back_off() {
    for phase in [Phase::Failed, Phase::Succeeded] {
        let mut machine = machine(RunStrategy::Always);
        let mut pressed = ran(instance(&machine, "i1", phase));
        pressed.status.get_or_insert_default().reason = Some("EvictedByKubelet".into());
        let ended = planned(&machine, Some(&pressed));
        assert!(ended.delete.is_some());
        machine.status = ended.status;
        let failures = machine
            .status
            .as_ref()
            .and_then(|status| status.start_failure.clone())
            .unwrap();
        assert_eq!(failures.consecutive_fail_count, 1);
        assert!(failures.retry_after_timestamp.unwrap() > now());
        let waiting = planned(&machine, None);
        assert_eq!(deed(&waiting), "wait");
        // Any other eviction is no reason to wait.
        let mut drained = ran(instance(&machine, "i2", phase));
        drained.status.get_or_insert_default().reason = Some("Evicted".into());
        machine.status = planned(&machine, Some(&drained)).status;
        assert_eq!(deed(&planned(&machine, None)), "start");
    }
}

#[test]
fn refused_instance_is_reported_until_retried() {
    let mut machine = machine(RunStrategy::Always);
    let refused = plan(&ObservedMachine {
        failed_create: Some("exceeded quota".into()),
        ..observed(&machine, None)
    });
    let status = refused.status.unwrap();
    let failure = super::find(&status.conditions, "Failure").unwrap();
    assert_eq!(
        (failure.reason.as_deref(), failure.message.as_deref()),
        (Some("FailedCreate"), Some("exceeded quota"))
    );
    assert_eq!(refused.events.len(), 1);
    machine.status = Some(status);
    let again = planned(&machine, None);
    assert_eq!(
        (again.status, again.events),
        (None, vec![]),
        "nothing is reported again before the next try"
    );
    let made = instance(&machine, "i1", Phase::Pending);
    assert!(super::find(&planned(&machine, Some(&made)).status.unwrap().conditions, "Failure").is_none());
}

#[test]
fn the_reason_of_a_failure_is_there_until_a_guest_runs() {
    let reason = |plan: MachinePlan| plan.status.and_then(|status| status.reason);
    let mut machine = machine(RunStrategy::Always);
    let mut failed = instance(&machine, "i1", Phase::Failed);
    failed.status.get_or_insert_default().reason = Some("GuestNotStarted".into());
    let ended = planned(&machine, Some(&failed));
    machine.status.clone_from(&ended.status);
    assert_eq!(reason(ended).as_deref(), Some("GuestNotStarted"));
    // Its instance is gone, and the next waits.
    let waiting = planned(&machine, None);
    machine.status.clone_from(&waiting.status);
    assert_eq!(reason(waiting).as_deref(), Some("GuestNotStarted"));
    let mut starting = instance(&machine, "i2", Phase::Scheduling);
    starting.status.get_or_insert_default().reason = Some("Unschedulable".into());
    assert_eq!(
        reason(planned(&machine, Some(&starting))).as_deref(),
        Some("Unschedulable")
    );
    assert_eq!(
        reason(planned(&machine, Some(&instance(&machine, "i2", Phase::Running)))),
        None
    );
    let refused = plan(&ObservedMachine {
        failed_create: Some("exceeded quota".into()),
        ..observed(&machine, None)
    });
    assert_eq!(reason(refused).as_deref(), Some("FailedCreate"));
}

#[test]
fn machine_without_finalizer_gets_a_finalizer_first() {
    let mut machine = machine(RunStrategy::Always);
    machine.metadata.finalizers = None;
    assert!(planned(&machine, None).add_finalizer);
    assert_eq!(
        super::decide(
            RunStrategy::Always,
            Standing::Absent,
            &super::RequestedChanges::default(),
            false
        ),
        InstanceDecision::Start
    );
    assert_eq!(Printable::ALL.len(), 16);
}
