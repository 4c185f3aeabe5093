//! Each value of `printableStatus`, from an instance in that state.

use super::*;

/// Returns the status of a machine that is healthy except for what `change` does.
fn printable(strategy: RunStrategy, phase: Option<Phase>, change: impl Fn(&mut VirtualMachineInstance)) -> String {
    let machine = machine(strategy);
    let instance = phase.map(|phase| {
        let mut instance = instance(&machine, "i1", phase);
        change(&mut instance);
        instance
    });
    planned(&machine, instance.as_ref())
        .status
        .unwrap()
        .printable_status
        .unwrap()
}

fn with_condition(
    type_: &'static str,
    status: &'static str,
    reason: &'static str,
    message: &'static str,
) -> impl Fn(&mut VirtualMachineInstance) {
    move |instance| {
        let condition = json!({"type": type_, "status": status, "reason": reason, "message": message});
        let conditions = &mut instance.status.get_or_insert_default().conditions;
        conditions.push(serde_json::from_value(condition).unwrap());
    }
}

#[test]
fn every_state_has_the_printable_status_of_kubevirt() {
    use RunStrategy::{Always, Halted, Manual, Once};
    let none = |_: &mut VirtualMachineInstance| {};
    assert_eq!(printable(Halted, None, none), "Stopped");
    assert_eq!(printable(Manual, None, none), "Stopped");
    assert_eq!(printable(Once, Some(Phase::Succeeded), none), "Stopped");
    assert_eq!(printable(Always, None, none), "Starting");
    for phase in [Phase::Pending, Phase::Scheduling, Phase::Scheduled] {
        assert_eq!(printable(Always, Some(phase), none), "Starting");
    }
    assert_eq!(printable(Always, Some(Phase::Running), none), "Running");
    assert_eq!(printable(Always, Some(Phase::Unknown), none), "Unknown");
    assert_eq!(printable(Halted, Some(Phase::Running), none), "Stopping");
    assert_eq!(
        printable(
            Always,
            Some(Phase::Running),
            with_condition("Paused", "True", "PausedByUser", "")
        ),
        "Paused"
    );
    let leave = |instance: &mut VirtualMachineInstance| *instance = leaving(instance.clone());
    assert_eq!(printable(Always, Some(Phase::Running), leave), "Stopping");
}

#[test]
fn printable_status_names_the_obstacle_to_a_start() {
    let starting =
        |change: &dyn Fn(&mut VirtualMachineInstance)| printable(RunStrategy::Always, Some(Phase::Scheduling), change);
    for (reason, expected) in [
        ("ErrImagePull", "ErrImagePull"),
        ("InvalidImageName", "ErrImagePull"),
        ("ImagePullBackOff", "ImagePullBackOff"),
        ("FailedPvcNotFound", "ErrorPvcNotFound"),
        ("DataVolumeError", "DataVolumeError"),
        ("WaitingForVolumeBinding", "WaitingForVolumeBinding"),
        ("Provisioning", "Provisioning"),
        ("FailedCreate", "Starting"),
    ] {
        assert_eq!(starting(&with_condition("Synchronized", "False", reason, "")), expected);
        assert_eq!(
            starting(&with_condition("Synchronized", "True", reason, "")),
            "Starting"
        );
    }
    for (message, expected) in [
        ("0/2 nodes are available: 2 Insufficient memory.", "ErrorUnschedulable"),
        (
            r#"0/2 nodes are available: persistentvolumeclaim "disk" not found."#,
            "ErrorPvcNotFound",
        ),
        (
            "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "WaitingForVolumeBinding",
        ),
    ] {
        assert_eq!(
            starting(&with_condition("PodScheduled", "False", "Unschedulable", message)),
            expected
        );
    }
    assert_eq!(
        starting(&with_condition("PodScheduled", "False", "SchedulingGated", "")),
        "Starting"
    );
    // Once it runs, earlier obstacles do not matter.
    let running = printable(
        RunStrategy::Always,
        Some(Phase::Running),
        with_condition("Synchronized", "False", "ErrImagePull", ""),
    );
    assert_eq!(running, "Running");
}

#[test]
fn a_running_guest_that_moves_is_migrating() {
    let machine = machine(RunStrategy::Always);
    for (phase, expected) in [(Phase::Running, "Migrating"), (Phase::Scheduled, "Starting")] {
        let seen = instance(&machine, "i1", phase);
        let plan = plan(&ObservedMachine {
            migrating: true,
            ..observed(&machine, Some(&seen))
        });
        assert_eq!(plan.status.unwrap().printable_status.as_deref(), Some(expected));
    }
}

#[test]
fn the_instances_conditions_are_the_machines_too() {
    let machine = machine(RunStrategy::Always);
    let mut running = instance(&machine, "i1", Phase::Running);
    with_condition("Ready", "True", "", "")(&mut running);
    with_condition("LiveMigratable", "False", "DisksNotLiveMigratable", "why")(&mut running);
    let status = planned(&machine, Some(&running)).status.unwrap();
    assert!(status.ready && status.created);
    let migratable = super::super::find(&status.conditions, "LiveMigratable").unwrap();
    assert_eq!(migratable.message.as_deref(), Some("why"));
    let stopped = planned(&machine, None).status.unwrap();
    let ready = super::super::find(&stopped.conditions, "Ready").unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_deref()),
        ("False", Some("VMINotExists"))
    );
}
