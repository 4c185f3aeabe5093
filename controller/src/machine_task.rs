//! Carries out [`drydock_core::machine::plan`]: each machine has the instance that its run strategy requires.
//!
//! ```text
//!  machines, instances, migrations ─▶ key of the machine ─▶ reconcile ─▶ plan ─▶ status, then instance, event
//! ```

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{RunStrategy, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus, names::VM_FINALIZER},
};
use drydock_core::machine::{self, Deletion, Observed, Plan, plan};
use drydock_runtime::{
    Change, Event, Events, Key, Listing, Process, Requeue, Severity, Watch, Watches, WorkQueue, clock, is_refusal,
    lease::Leadership,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use tracing::info;

use crate::{
    assume_cache::{AssumeCache, prune_annotations},
    instances::Instances,
    migrations::Migrations,
    reconciler::{self, ReconcileError, Reconciler},
    refusals::{Refusals, RefusedStep},
};

/// How many machines are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 8;

/// Reconciles all machines.
pub(crate) struct MachineTask {
    client: Client,
    machines: AssumeCache<VirtualMachine>,
    instances: Instances,
    migrations: Migrations,
    events: Events,
    refusals: Refusals,
}

/// Starts watching all machines; `on_change` is called with each change.
pub(crate) fn watch_machines(
    client: &Client,
    watches: &Watches,
    on_change: impl FnMut(&Change<VirtualMachine>) + Send + 'static,
) -> AssumeCache<VirtualMachine> {
    let machines = Watch::<VirtualMachine>::all(client.clone(), "machines")
        .listing(Listing::Streamed)
        .packed();
    AssumeCache::start(watches, machines, prune, on_change)
}

impl MachineTask {
    /// Creates the task over these caches. Its queue also needs the keys of changed `instances`, and of those whose
    /// migration begins or ends: each concerns the machine of the same key.
    pub(crate) fn new(
        client: Client,
        machines: AssumeCache<VirtualMachine>,
        instances: Instances,
        migrations: Migrations,
        events: Events,
        refusals: Refusals,
    ) -> Self {
        Self {
            machines,
            client,
            instances,
            migrations,
            events,
            refusals,
        }
    }

    /// Reconciles machines while this process leads, until `process` stops.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, work: WorkQueue) {
        reconciler::run(&self, &work, &process.stopping(), leadership).await;
    }
}

impl Reconciler for MachineTask {
    async fn all(&self) -> Vec<Key> {
        tokio::join!(
            self.machines.shown().wait_until_synced(),
            self.instances.wait_until_synced(),
            self.migrations.wait_until_synced()
        );
        self.machines.shown().keys()
    }

    async fn reconcile(&self, key: &Key) -> Result<Requeue, ReconcileError> {
        let Some(mut machine) = self.machines.newest(key) else {
            return Ok(Requeue::OnChange);
        };
        let shown = self.instances.get(key);
        let uid = shown.as_ref().and_then(|instance| instance.uid()).unwrap_or_default();
        if self.instances.is_deleted(&uid) {
            // The watch is about to show that.
            return Ok(Requeue::OnChange);
        }
        let (now, migrating) = (clock::now(), self.migrations.is_moving(key));
        let seen = |instance, confirmed| Observed {
            now,
            machine: &machine,
            instance,
            confirmed,
            migrating,
            failed_create: None,
        };
        let mut todo = plan(&seen(shown.as_deref(), false));
        if todo.confirm {
            let live = self.instance_api(key).get_opt(&key.name).await?;
            todo = plan(&seen(live.as_ref(), true));
        }
        let wake = Requeue::OnChange.or_at(todo.wake);
        let Some(failure) = self.execute(key, &mut machine, &todo).await? else {
            return Ok(wake);
        };
        let failed_plan = plan(&Observed {
            now,
            machine: &machine,
            instance: None,
            confirmed: true,
            migrating,
            failed_create: Some(&failure),
        });
        self.notify_all(&machine, &failed_plan);
        if let Some(status) = &failed_plan.status {
            self.write_status(key, &mut machine, status).await?;
        }
        // The machine's status reports the reason by now; the queue retries with back-off.
        Err(ReconcileError::Refused {
            step: "creation of its instance",
            message: failure,
        })
    }

    fn refusable(&self, key: &Key) -> Option<(&Refusals, RefusedStep)> {
        Some((&self.refusals, RefusedStep::Instance(key.clone())))
    }
}

impl MachineTask {
    /// Does what is planned, and keeps `machine` as the API server has it. Returns why the instance
    /// could not be made, if it could not.
    async fn execute(
        &self,
        key: &Key,
        machine: &mut VirtualMachine,
        todo: &Plan,
    ) -> Result<Option<String>, ReconcileError> {
        if todo.add_finalizer {
            let mut finalizers = machine.finalizers().to_vec();
            finalizers.push(VM_FINALIZER.into());
            self.write_finalizers(key, machine, &finalizers).await?;
        }
        if let Some(status) = &todo.status {
            self.write_status(key, machine, status).await?;
        }
        self.notify_all(machine, todo);
        if todo.run {
            self.run_always(key, machine).await?;
        }
        if let Some(deletion) = &todo.delete {
            self.delete(key, machine, deletion).await?;
        }
        if let Some(instance) = &todo.create {
            match self.create(key, machine, instance).await {
                Ok(()) => {}
                // What the API server refuses is for people to read; anything else is tried again.
                Err(kube::Error::Api(status)) if is_refusal(&status) => return Ok(Some(status.message)),
                Err(source) => {
                    return Err(ReconcileError::Failed {
                        step: "creation of its instance",
                        source,
                    });
                }
            }
        }
        if todo.remove_finalizer {
            let mut finalizers = machine.finalizers().to_vec();
            finalizers.retain(|name| name != VM_FINALIZER);
            match self.write_finalizers(key, machine, &finalizers).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                result => result?,
            }
            self.machines.forget(key);
        }
        Ok(None)
    }

    fn api(&self, key: &Key) -> Api<VirtualMachine> {
        Api::namespaced(self.client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    fn instance_api(&self, key: &Key) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    /// Replaces the finalizers, if the machine is unchanged since it was observed.
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
        let parameters = PatchParams {
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let stored = self
            .api(key)
            .patch(&key.name, &parameters, &Patch::Merge(patch))
            .await?;
        self.remember(key, machine, stored);
        Ok(())
    }

    /// Changes the run strategy to Always, in the field that the machine has for it, if the machine is unchanged since
    /// it was observed.
    async fn run_always(&self, key: &Key, machine: &mut VirtualMachine) -> kube::Result<()> {
        let spec = match machine.spec.run_strategy {
            Some(_) => json!({"runStrategy": RunStrategy::Always}),
            None => json!({"running": true}),
        };
        let patch = json!({
            "metadata": {"uid": machine.uid(), "resourceVersion": machine.resource_version()},
            "spec": spec,
        });
        let parameters = PatchParams {
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let api = self.api(key);
        let stored = api.patch(&key.name, &parameters, &Patch::Merge(patch)).await?;
        self.remember(key, machine, stored);
        Ok(())
    }

    /// Writes the status, if the machine is unchanged since it was observed.
    async fn write_status(
        &self,
        key: &Key,
        machine: &mut VirtualMachine,
        status: &VirtualMachineStatus,
    ) -> kube::Result<()> {
        let mut status = json!(status);
        // Other clients add requests; an explicit empty list removes theirs.
        if status.get("stateChangeRequests").is_none() {
            status["stateChangeRequests"] = json!([]);
        }
        let apply = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"name": &*key.name, "uid": machine.uid(), "resourceVersion": machine.resource_version()},
            "status": status,
        });
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        let stored = self
            .api(key)
            .patch_status(&key.name, &parameters, &Patch::Apply(apply))
            .await?;
        self.remember(key, machine, stored);
        Ok(())
    }

    fn remember(&self, key: &Key, machine: &mut VirtualMachine, stored: VirtualMachine) {
        machine.clone_from(&stored);
        self.machines.remember(key, stored);
    }

    async fn delete(&self, key: &Key, machine: &VirtualMachine, deletion: &Deletion) -> kube::Result<()> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(deletion.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.instance_api(key).delete(&key.name, &parameters).await {
            Ok(_) => {
                let why = deletion.why.as_str();
                info!(vm = %key, why, "instance deleted");
                self.instances.deleted(key, &deletion.uid);
                let note = format!(
                    "Stopped the virtual machine by deleting the virtual machine instance {}: {why}",
                    key.name
                );
                self.record_event(machine, Severity::Normal, "SuccessfulDelete", note);
                Ok(())
            }
            // It was deleted or replaced; the watch is about to show that.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, key: &Key, machine: &VirtualMachine, instance: &VirtualMachineInstance) -> kube::Result<()> {
        let parameters = PostParams {
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        match self.instance_api(key).create(&parameters, instance).await {
            Ok(made) => {
                info!(vm = %key, "instance created");
                self.instances.made(made);
                let note = format!(
                    "Started the virtual machine by creating the new virtual machine instance {}",
                    key.name
                );
                self.record_event(machine, Severity::Normal, "SuccessfulCreate", note);
                Ok(())
            }
            // The watch is about to show it, whoever it belongs to.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn notify_all(&self, machine: &VirtualMachine, todo: &Plan) {
        for event in &todo.events {
            self.record_event(machine, severity(event), event.reason, event.message.clone());
        }
    }

    fn record_event(&self, machine: &VirtualMachine, severity: Severity, reason: &'static str, note: String) {
        self.events.publish(Event {
            regarding: machine.object_ref(&()),
            related: None,
            severity,
            reason: reason.into(),
            action: "Reconcile".into(),
            note,
        });
    }
}

/// How bad an event of a plan is.
pub(crate) fn severity(event: &machine::Event) -> Severity {
    if event.warning {
        Severity::Warning
    } else {
        Severity::Normal
    }
}

fn prune(machine: &mut VirtualMachine) {
    machine.metadata.managed_fields = None;
    prune_annotations(&mut machine.metadata.annotations);
}

#[cfg(test)]
mod tests;
