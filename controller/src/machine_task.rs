//! Executes [`drydock_core::machine::plan`]: each machine has the instance that its run strategy requires.
//!
//! ```text
//!  machines, instances, migrations ─▶ key of the machine ─▶ reconcile ─▶ plan ─▶ status, then instance, event
//! ```

use std::sync::Arc;

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{RunStrategy, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus, names::VM_FINALIZER},
};
use drydock_core::machine::{InstanceDeletion, MachinePlan, ObservedMachine, plan};
use drydock_runtime::{
    AssumeCache, CacheChange, EventRecorder, Key, ListMode, Process, Requeue, Severity, Watch, WatchStarter, WorkQueue,
    apply_status, clock, is_refusal, lease::Leadership, version_of,
};
use kube::{Client, ResourceExt, api::Patch};
use serde_json::json;
use tracing::info;

use crate::{
    guest_context::GuestContext,
    pruning::prune_metadata,
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    refusals::{RefusedStep, StepRefusals},
    requests::{deleting, patching, unless_changed, unless_missing, with_finalizer, without_finalizer, writing},
};

/// Maximum number of machines that are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 8;

/// Reconciles all machines.
pub(crate) struct MachineTask {
    context: GuestContext,
    machines: AssumeCache<VirtualMachine>,
    events: EventRecorder,
}

/// Starts watching all machines; `on_change` is called with each change.
pub(crate) fn watch_machines(
    client: &Client,
    watches: &WatchStarter,
    on_change: impl FnMut(&CacheChange<VirtualMachine>) + Send + 'static,
) -> AssumeCache<VirtualMachine> {
    let machines = Watch::<VirtualMachine>::all(client.clone(), "machines")
        .listing(ListMode::Streamed)
        .compressed();
    AssumeCache::start(watches, machines, prune, &[], on_change)
}

impl MachineTask {
    /// Creates the task with these caches. Its queue also needs the keys of changed instances, and the keys of
    /// instances whose migration begins or ends. Each of them concerns the machine with the same key.
    pub(crate) fn new(context: GuestContext, machines: AssumeCache<VirtualMachine>) -> Self {
        Self {
            events: context.events.recorder("Reconcile"),
            context,
            machines,
        }
    }

    /// Reconciles machines while this process leads, until `process` stops.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, work: WorkQueue) {
        reconciler::run(&self, &work, &process.stopping(), leadership).await;
    }
}

impl Reconciler for MachineTask {
    type Observed = ObservedMachine;
    type Plan = MachinePlan;

    async fn observe(&self, key: &Key) -> Result<Option<ObservedMachine>, ReconcileError> {
        let Some(machine) = self.machines.newest(key) else {
            return Ok(None);
        };
        let instance = self.context.instances.get(key);
        let uid = instance
            .as_ref()
            .and_then(|instance| instance.uid())
            .unwrap_or_default();
        if self.context.instances.is_deleted(&uid) {
            // The watch will show the deletion.
            return Ok(None);
        }
        Ok(Some(ObservedMachine {
            now: clock::now(),
            machine,
            instance,
            confirmed: false,
            migrating: self.context.migrations.is_moving(key),
            failed_create: None,
        }))
    }

    fn plan(&self, _: &Key, observed: &ObservedMachine) -> MachinePlan {
        plan(observed)
    }

    async fn execute(
        &self,
        key: &Key,
        observed: &mut ObservedMachine,
        plan: MachinePlan,
    ) -> Result<Executed, ReconcileError> {
        if plan.confirm {
            observed.instance = self.context.api(key).get_opt(&key.name).await?.map(Arc::new);
            observed.confirmed = true;
            return Ok(Executed::Replan);
        }
        let machine = &mut observed.machine;
        if let Some(message) = observed.failed_create.take() {
            self.record_events(machine, &plan);
            if let Some(status) = &plan.status {
                self.write_status(key, machine, status).await?;
            }
            // The status of the machine already reports the reason. The queue retries with back-off.
            let step = "the creation of the instance";
            return Err(ReconcileError::Refused { step, message });
        }
        if plan.add_finalizer {
            let finalizers = with_finalizer(machine, VM_FINALIZER);
            self.write_finalizers(key, machine, &finalizers).await?;
        }
        if let Some(status) = &plan.status {
            self.write_status(key, machine, status).await?;
        }
        self.record_events(machine, &plan);
        if plan.run {
            self.run_always(key, machine).await?;
        }
        if let Some(deletion) = &plan.delete {
            self.delete(key, machine, deletion).await?;
        }
        if let Some(instance) = &plan.create
            && let Some(refusal) = self.create(key, machine, instance).await?
        {
            // The status reports the refusal to users.
            (observed.instance, observed.confirmed) = (None, true);
            observed.failed_create = Some(refusal);
            return Ok(Executed::Replan);
        }
        if plan.remove_finalizer {
            let finalizers = without_finalizer(machine, VM_FINALIZER);
            unless_missing(self.write_finalizers(key, machine, &finalizers).await)?;
            self.machines.forget(key);
        }
        Ok(Executed::Requeue(Requeue::OnChange.or_at(plan.wake)))
    }
}

impl Queued for MachineTask {
    async fn all(&self) -> Vec<Key> {
        tokio::join!(
            self.machines.shown().wait_until_synced(),
            self.context.instances.wait_until_synced(),
            self.context.migrations.wait_until_synced()
        );
        self.machines.shown().keys()
    }

    fn refusable(&self, key: &Key) -> Option<(&StepRefusals, RefusedStep)> {
        Some((&self.context.refusals, RefusedStep::Instance(key.clone())))
    }
}

impl MachineTask {
    /// Replaces the finalizers if the machine has not changed since it was observed.
    async fn write_finalizers(
        &self,
        key: &Key,
        machine: &mut VirtualMachine,
        finalizers: &[String],
    ) -> kube::Result<()> {
        let patch = json!({"metadata": {
            "uid": machine.uid(),
            "resourceVersion": machine.resource_version(),
            "finalizers": finalizers,
        }});
        let stored = self
            .context
            .api(key)
            .patch(&key.name, &patching(), &Patch::Merge(patch))
            .await?;
        self.remember(key, machine, stored);
        Ok(())
    }

    /// Changes the run strategy to Always, in the field that the machine uses, if the machine has not changed since it
    /// was observed.
    async fn run_always(&self, key: &Key, machine: &mut VirtualMachine) -> kube::Result<()> {
        let spec = match machine.spec.run_strategy {
            Some(_) => json!({"runStrategy": RunStrategy::Always}),
            None => json!({"running": true}),
        };
        let patch = json!({
            "metadata": {"uid": machine.uid(), "resourceVersion": machine.resource_version()},
            "spec": spec,
        });
        let api = self.context.api(key);
        let stored = api.patch(&key.name, &patching(), &Patch::Merge(patch)).await?;
        self.remember(key, machine, stored);
        Ok(())
    }

    /// Writes the status if the machine has not changed since it was observed.
    async fn write_status(
        &self,
        key: &Key,
        machine: &mut VirtualMachine,
        status: &VirtualMachineStatus,
    ) -> kube::Result<()> {
        let mut status = json!(status);
        // Other clients add requests to this list. An explicit empty list removes them.
        if status.get("stateChangeRequests").is_none() {
            status["stateChangeRequests"] = json!([]);
        }
        let metadata = version_of(machine);
        let stored = apply_status(&self.context.api(key), metadata, CONTROLLER_FIELD_MANAGER, status).await?;
        self.remember(key, machine, stored);
        Ok(())
    }

    fn remember(&self, key: &Key, machine: &mut VirtualMachine, stored: VirtualMachine) {
        machine.clone_from(&stored);
        self.machines.remember(key, stored);
    }

    async fn delete(&self, key: &Key, machine: &VirtualMachine, deletion: &InstanceDeletion) -> kube::Result<()> {
        let parameters = deleting(Some(deletion.uid.clone()));
        let response = self
            .context
            .api::<VirtualMachineInstance>(key)
            .delete(&key.name, &parameters)
            .await;
        if unless_changed(response)?.is_some() {
            let why = deletion.why.as_str();
            info!(vm = %key, why, "instance deleted");
            self.context.instances.deleted(key, &deletion.uid);
            let note = format!(
                "Stopped the virtual machine by deleting the virtual machine instance {}: {why}",
                key.name
            );
            self.events.record(machine, Severity::Normal, "SuccessfulDelete", note);
        }
        Ok(())
    }

    /// Creates the instance. Returns the message of the API server if the API server refuses that.
    async fn create(
        &self,
        key: &Key,
        machine: &VirtualMachine,
        instance: &VirtualMachineInstance,
    ) -> Result<Option<String>, ReconcileError> {
        match self.context.api(key).create(&writing(), instance).await {
            Ok(made) => {
                info!(vm = %key, "instance created");
                self.context.instances.created(made);
                let note = format!(
                    "Started the virtual machine by creating the new virtual machine instance {}",
                    key.name
                );
                self.events.record(machine, Severity::Normal, "SuccessfulCreate", note);
                Ok(None)
            }
            // The watch will show the existing instance, whatever its owner is.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(kube::Error::Api(status)) if is_refusal(&status) => Ok(Some(status.message)),
            Err(source) => Err(ReconcileError::Failed {
                step: "the creation of the instance",
                source,
            }),
        }
    }

    fn record_events(&self, machine: &VirtualMachine, plan: &MachinePlan) {
        for event in &plan.events {
            self.events.record(
                machine,
                Severity::of(event.warning),
                event.reason,
                event.message.clone(),
            );
        }
    }
}

fn prune(machine: &mut VirtualMachine) {
    prune_metadata(&mut machine.metadata);
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;
