//! Effects of the subresources of a virtual machine: `start`, `stop`, `restart`, `migrate`, `expand-spec`.

use drydock_api::kubevirt::{
    Phase, RunStrategy, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigrationSpec,
    machine::{StateChange, StateChangeRequest},
};
use serde_json::{Value, json};

use super::{
    Effect, GroupResource, JsonPatch, PatchedPart, SubresourceError,
    effect::replace,
    options::{Migrate, Restart, StartOptions, StopOptions},
};
use crate::{
    launcher_pod::GRACE_PERIOD,
    machine::{owns, run_strategy},
};

/// Name prefix of a migration that a user has requested through the machine.
pub const MIGRATION_NAME_PREFIX: &str = "kubevirt-migrate-vm-";
/// Grace period, in seconds, of a guest that is restarted by force: the minimum that a kubelet does not treat as unset.
const FORCED_GRACE_PERIOD: i64 = 1;

/// The machine that a request acts on. `written` is complete, because patches test its values in the API server.
#[derive(Clone, Debug)]
pub struct FoundMachine<'a> {
    /// The machine.
    pub machine: &'a VirtualMachine,
    /// The machine in the API server's notation.
    pub written: &'a Value,
    /// The instance with the machine's name, if the machine owns it.
    pub instance: Option<&'a VirtualMachineInstance>,
}

impl<'a> FoundMachine<'a> {
    /// Returns a machine with the instance of its name, if the machine owns that instance.
    pub fn new(machine: &'a VirtualMachine, written: &'a Value, instance: Option<&'a VirtualMachineInstance>) -> Self {
        Self {
            machine,
            written,
            instance: instance.filter(|instance| owns(machine, instance)),
        }
    }

    fn conflict(&self, why: &str) -> SubresourceError {
        SubresourceError::conflict(GroupResource::Machine, self.name(), why)
    }

    fn name(&self) -> &str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    fn phase(&self) -> Option<Phase> {
        self.instance?.phase()
    }

    /// Returns whether the guest has ended.
    fn is_final(&self) -> bool {
        self.phase().is_some_and(Phase::is_final)
    }

    /// Returns the instance, unless its guest has ended.
    fn live(&self) -> Option<&'a VirtualMachineInstance> {
        self.instance.filter(|_| !self.is_final())
    }

    /// Returns the patch that replaces the machine's pending requests with these. Only a lone request to stop may
    /// replace pending requests.
    fn request(&self, requests: &[StateChangeRequest]) -> Result<JsonPatch, SubresourceError> {
        let pending = self.written.pointer("/status/stateChangeRequests");
        let is_pending = pending.and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        let is_lone_stop = matches!(
            requests,
            [StateChangeRequest {
                action: StateChange::Stop,
                ..
            }]
        );
        if is_pending && !is_lone_stop {
            return Err(SubresourceError::internal(
                "unable to complete request: stop/start already underway",
            ));
        }
        let requests = json!(requests);
        let operations = if self.written.get("status").is_some_and(Value::is_object) {
            let mut operations = replace("/status/stateChangeRequests", pending, &requests);
            // A start that a user requests does not wait for the back-off of earlier failures.
            if let (Some(failure), Value::Array(all)) = (self.written.pointer("/status/startFailure"), &mut operations)
            {
                all.push(json!({"op": "test", "path": "/status/startFailure", "value": failure}));
                all.push(json!({"op": "remove", "path": "/status/startFailure"}));
            }
            operations
        } else {
            let status = json!({"stateChangeRequests": requests, "created": false, "ready": false});
            replace("/status", None, &status)
        };
        Ok(JsonPatch {
            written: PatchedPart::MachineStatus,
            operations,
            undo: None,
        })
    }

    /// Returns the patch that sets the run strategy, in the field that the machine uses for it.
    fn run(&self, runs: bool) -> JsonPatch {
        let strategy = self
            .written
            .pointer("/spec/runStrategy")
            .filter(|value| !value.is_null());
        let operations = match strategy {
            Some(before) => {
                let strategy = if runs { RunStrategy::Always } else { RunStrategy::Halted };
                replace("/spec/runStrategy", Some(before), &json!(strategy))
            }
            None => replace("/spec/running", self.written.pointer("/spec/running"), &json!(runs)),
        };
        JsonPatch {
            written: PatchedPart::Machine,
            operations,
            undo: None,
        }
    }

    /// Returns the patch that shortens the guest's grace period to `seconds`; `None` if it is not longer than that. A
    /// grace period cannot be extended, because a guest that is already shutting down would not learn of the change.
    fn shorten(&self, instance: &VirtualMachineInstance, seconds: i64) -> Option<JsonPatch> {
        const PATH: &str = "/spec/terminationGracePeriodSeconds";
        let before = instance.spec.termination_grace_period_seconds;
        if seconds >= before.unwrap_or(GRACE_PERIOD) {
            return None;
        }
        let (before, after) = (before.map(|seconds| json!(seconds)), json!(seconds));
        let undo = match &before {
            Some(before) => replace(PATH, Some(&after), before),
            None => json!([{"op": "test", "path": PATH, "value": after}, {"op": "remove", "path": PATH}]),
        };
        Some(JsonPatch {
            written: PatchedPart::Instance,
            operations: replace(PATH, before.as_ref(), &after),
            undo: Some(undo),
        })
    }
}

fn stop_request(instance: &VirtualMachineInstance) -> StateChangeRequest {
    StateChangeRequest {
        action: StateChange::Stop,
        uid: instance.metadata.uid.clone(),
        data: None,
    }
}

fn start_request(paused: bool) -> StateChangeRequest {
    StateChangeRequest {
        action: StateChange::Start,
        uid: None,
        data: paused.then(|| [("paused".to_owned(), "true".to_owned())].into()),
    }
}

/// `start`: starts a machine that does not run.
///
/// # Errors
/// 409 if the machine runs already, starts by itself, or has failed under `RerunOnFailure`; 500 if a request is
/// pending.
pub fn start(found: &FoundMachine<'_>, options: &StartOptions) -> Result<Effect, SubresourceError> {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    if found.live().is_some() && !matches!(found.phase(), None | Some(Phase::Unknown)) {
        return Err(found.conflict("VM is already running"));
    }
    let paused = options.paused == Some(true);
    let patch = match run_strategy(found.machine) {
        strategy @ (Always | Once) => {
            let strategy = strategy.as_str();
            return Err(found.conflict(&format!("{strategy} does not support manual start requests")));
        }
        RerunOnFailure if found.phase() == Some(Phase::Failed) => {
            return Err(found.conflict("RerunOnFailure does not support starting VM from failed state"));
        }
        // The controller changes the run strategy itself once it has created the paused instance.
        Halted if paused => found.request(&[start_request(true)])?,
        Halted => found.run(true),
        Manual | RerunOnFailure => {
            let ended = found.instance.filter(|_| found.is_final());
            let mut requests: Vec<_> = ended.map(stop_request).into_iter().collect();
            requests.push(start_request(paused));
            found.request(&requests)?
        }
    };
    Ok(Effect(vec![patch]))
}

/// `stop`: ends the machine's guest, and prevents an automatic restart.
///
/// A grace period that is not shorter than the instance's has no effect; KubeVirt would extend the instance's.
///
/// # Errors
/// 400 for a negative grace period. 409 if there is no guest to stop and the run strategy is neither `Always` nor
/// `Once`, or if it is `Halted` and the grace period is not shorter.
pub fn stop(found: &FoundMachine<'_>, options: &StopOptions) -> Result<Effect, SubresourceError> {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    if options.grace_period.is_some_and(|seconds| seconds < 0) {
        return Err(SubresourceError::bad_request(
            "gracePeriod has to be greater or equal to 0",
        ));
    }
    let strategy = run_strategy(found.machine);
    let live = found.live();
    let shorter = live
        .zip(options.grace_period)
        .and_then(|(instance, seconds)| found.shorten(instance, seconds));
    let stopping = match (strategy, live) {
        (Halted | Manual | RerunOnFailure, None) => return Err(found.conflict("VM is not running")),
        (Halted, Some(_)) if shorter.is_none() => {
            let why = "Halted only supports manual stop requests with a shorter graceperiod";
            return Err(found.conflict(why));
        }
        (Halted | Manual | RerunOnFailure, Some(instance)) => found.request(&[stop_request(instance)])?,
        (Always | Once, _) => found.run(false),
    };
    Ok(Effect(shorter.into_iter().chain([stopping]).collect()))
}

/// `restart`: ends the machine's guest and starts it again.
///
/// # Errors
/// 400 for a grace period other than 0; 409 if the machine has no instance, or has the run strategy `Halted` or `Once`;
/// 500 if a request is pending.
pub fn restart(found: &FoundMachine<'_>, options: &Restart) -> Result<Effect, SubresourceError> {
    use RunStrategy::{Halted, Once};
    match options.grace_period_seconds {
        Some(seconds) if seconds > 0 => {
            let why = "For force restart, only gracePeriod=0 is supported for now";
            return Err(SubresourceError::bad_request(why));
        }
        Some(seconds) if seconds < 0 => {
            return Err(SubresourceError::bad_request(
                "gracePeriod has to be greater or equal to 0",
            ));
        }
        _ => {}
    }
    let strategy = run_strategy(found.machine);
    if matches!(strategy, Halted | Once) {
        let strategy = strategy.as_str();
        // KubeVirt's spelling: its clients and tests match on it.
        return Err(found.conflict(&format!(
            "RunStategy {strategy} does not support manual restart requests"
        )));
    }
    let Some(instance) = found.instance else {
        return Err(found.conflict("VM is not running: Halted"));
    };
    let mut patches = Vec::new();
    if options.grace_period_seconds.is_some() && !found.is_final() {
        patches.extend(found.shorten(instance, FORCED_GRACE_PERIOD));
    }
    patches.push(found.request(&[stop_request(instance), start_request(false)])?);
    Ok(Effect(patches))
}

/// `migrate`: returns the spec of the migration to create. `instance` is the instance with the machine's name.
///
/// # Errors
/// 404 if there is no instance, 409 if the instance does not run.
pub fn migrate(
    name: &str,
    instance: Option<&VirtualMachineInstance>,
    options: &Migrate,
) -> Result<VirtualMachineInstanceMigrationSpec, SubresourceError> {
    let instance = instance.ok_or_else(|| SubresourceError::not_found(GroupResource::Instance, name))?;
    let phase = instance.phase();
    if phase != Some(Phase::Running) {
        return Err(SubresourceError::conflict(
            GroupResource::Machine,
            name,
            "VM is not running",
        ));
    }
    Ok(VirtualMachineInstanceMigrationSpec {
        vmi_name: name.into(),
        added_node_selector: options.added_node_selector.clone().unwrap_or_default(),
        priority: None,
    })
}

/// `expand-spec` and `expand-vm-spec`: the machine itself, since Drydock has no instance types.
///
/// # Errors
/// 400 if `machine` is no VirtualMachine, is of another namespace, or names an instance type or a preference.
pub fn expand(machine: Value, namespace: &str) -> Result<Value, SubresourceError> {
    let is_machine = machine.get("kind").and_then(Value::as_str) == Some("VirtualMachine")
        && machine
            .get("apiVersion")
            .and_then(Value::as_str)
            .is_some_and(|version| version.starts_with("kubevirt.io/"));
    if !is_machine || !machine.pointer("/spec/template").is_some_and(Value::is_object) {
        return Err(SubresourceError::bad_request("Object is not a valid VirtualMachine"));
    }
    let of = machine
        .pointer("/metadata/namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !of.is_empty() && of != namespace {
        return Err(SubresourceError::bad_request(format!(
            "VM namespace must be empty or {namespace}"
        )));
    }
    for (field, what) in [("instancetype", "instance types"), ("preference", "preferences")] {
        if machine
            .pointer(&format!("/spec/{field}"))
            .is_some_and(|value| !value.is_null())
        {
            return Err(SubresourceError::not_supported(&format!("{what} (spec.{field})")));
        }
    }
    Ok(machine)
}
