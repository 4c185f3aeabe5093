//! Executes [`drydock_core::eviction::pdbs::plan`]: each pod that is to be protected from eviction has a
//! PodDisruptionBudget (PDB), and no PDB outlives the pod that it protects.
//!
//! ```text
//!  instances, pods, PDBs, VMs ─▶ which instance ─▶ reconcile ─▶ plan ─▶ PDBs created or deleted, conflict reported
//! ```

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::eviction::{
    own_pdb::{instance_of, is_ours},
    pdbs::{ObservedPdbs, PdbPlan, PodPdbs, conflict, is_news, plan},
};
use drydock_runtime::{
    CacheChange, Key, Process, Requeue, Trigger, WorkQueue, apply_status, clock, identity_of, is_refusal,
    lease::Leadership,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use crate::{
    guest_context::GuestContext,
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    refusals::{RefusedStep, StepRefusals},
    requests::unless_changed,
};

/// Maximum number of instances that are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 8;
/// Field manager of the condition that reports a conflict.
const FIELD_MANAGER: &str = "drydock-budgets";

/// Reconciles the PDBs of all instances.
pub(crate) struct PdbTask {
    context: GuestContext,
}

impl PdbTask {
    /// Creates the task with these caches.
    pub(crate) fn new(context: GuestContext) -> Self {
        Self { context }
    }

    /// Reconciles instances while this process leads, until `process` stops. `configured` is notified of changes of the
    /// configuration. They concern every instance, because the configuration contains the cluster's eviction strategy.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, work: WorkQueue, configured: Trigger) {
        let stopping = process.stopping();
        let following = async {
            loop {
                configured.notified().await;
                work.add_pages(|last, count| self.context.instances.unfinished_after(last, count))
                    .await;
            }
        };
        tokio::join!(
            reconciler::run(&self, &work, &stopping, leadership),
            stopping.run_until_cancelled(following),
        );
    }
}

impl Reconciler for PdbTask {
    type Observed = ObservedPdbs;
    type Plan = PdbPlan;

    async fn observe(&self, key: &Key) -> Result<Option<ObservedPdbs>, ReconcileError> {
        // The PDBs of a deleted instance are deleted with its pods.
        let Some(instance) = self.context.instances.get(key) else {
            return Ok(None);
        };
        let pdbs = &self.context.launchers.pdbs;
        let pods = self.context.launchers.of(&instance).into_iter().map(|pod| PodPdbs {
            own: pdbs.of(&pod),
            foreign: pdbs.conflicting(&pod),
            pod,
        });
        Ok(Some(ObservedPdbs {
            now: clock::now(),
            pods: pods.collect(),
            strategy: self.context.launchers.eviction_strategy(&instance),
            instance,
        }))
    }

    fn plan(&self, _: &Key, observed: &ObservedPdbs) -> PdbPlan {
        plan(observed)
    }

    async fn execute(&self, key: &Key, observed: &mut ObservedPdbs, plan: PdbPlan) -> Result<Executed, ReconcileError> {
        let (pdbs, instance, now) = (&self.context.launchers.pdbs, &observed.instance, observed.now);
        for pdb in &plan.delete {
            pdbs.delete(pdb).await?;
        }
        let mut refused = None;
        for pod in &plan.create {
            match pdbs.create(pod).await {
                Err(kube::Error::Api(status)) if is_refusal(&status) => refused = Some(status.message),
                result => result?,
            }
        }
        let complaint = refused.as_deref();
        let conflict = conflict(instance, plan.foreign.as_deref(), complaint, now);
        if is_news(instance, conflict.as_ref()) {
            let status = match &conflict {
                Some(conflict) => json!({"conditions": [conflict]}),
                None => json!({}),
            };
            self.patch_status(key, instance, status).await?;
        }
        if let Some(message) = refused {
            // The status of the instance reports the reason. The queue retries with back-off.
            let step = "the creation of the PodDisruptionBudget";
            return Err(ReconcileError::Refused { step, message });
        }
        Ok(Executed::Requeue(Requeue::OnChange.or_at(plan.wake)))
    }
}

impl Queued for PdbTask {
    async fn all(&self) -> Vec<Key> {
        tokio::join!(
            self.context.instances.wait_until_synced(),
            self.context.launchers.wait_until_synced()
        );
        self.context.instances.keys()
    }

    fn refusable(&self, key: &Key) -> Option<(&StepRefusals, RefusedStep)> {
        Some((&self.context.refusals, RefusedStep::Pdb(key.clone())))
    }
}

impl PdbTask {
    async fn patch_status(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        status: serde_json::Value,
    ) -> kube::Result<()> {
        let api = self.context.api::<VirtualMachineInstance>(key);
        unless_changed(apply_status(&api, identity_of(instance), FIELD_MANAGER, status).await).map(drop)
    }
}

/// Returns the namespace and the instance that a change of a PDB concerns. Without an instance, the change concerns all
/// instances in the namespace, because the selected pods of another owner's PDB are unknown without checking all pods.
pub(crate) fn concerned(change: &CacheChange<PodDisruptionBudget>) -> Option<(String, Option<Key>)> {
    let CacheChange::Object { key, old, new } = change else {
        return None;
    };
    let namespace = key.namespace.as_deref().unwrap_or_default();
    let pdb = new.as_ref().or(old.as_ref())?;
    let instance = instance_of(pdb).filter(|_| is_ours(pdb));
    Some((
        namespace.to_owned(),
        instance.map(|name| Key::namespaced(namespace, name)),
    ))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;
