//! Executes [`drydock_core::migration::cluster::step`]: each migration gets a target pod, a slot, a source and a
//! target, and a result.
//!
//! ```text
//!  migrations ─┐                                         ┌─▶ target pod, phase, sides, abort, end
//!  instances ──┼─▶ which migration ─▶ reconcile ─▶ step ─┤
//!  pods, nodes ┘                 ▲                       └─▶ finished: its slot is free
//!                                └── next ◀── SlotScheduler ◀──┘
//! ```

mod execution;
mod metrics;
mod migration_status;
mod observe;
mod slot_scheduler;
mod trimming;

use std::{sync::Arc, time::Duration};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPhase};
use drydock_core::{
    drain::DrainRefusal,
    launcher_pod::{TargetPodInput, image_identity},
    migration::{
        cluster::{ClusterStep, ClusterView, step},
        coalescing::may_be_over_by,
        deadlines::PhaseDeadlines,
        failure_detail::{detail, reason},
        named_sides::Sides,
        observed::{is_orphaned, view},
        queue::entry,
        record::MigrationRecord,
        rejected,
        target_pods::{for_target_pod, pod_of},
    },
};
use drydock_runtime::{
    EventRecorder, Key, Process, Requeue, Severity, Trigger, WorkQueue, clock, is_refusal, lease::Leadership,
    list_readable,
};
use execution::{After, Execution};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, core::Status};
use observe::ObservedMigration;
use slot_scheduler::SlotScheduler;
use tracing::{info, warn};
use trimming::Trimming;

use crate::{
    guest_context::GuestContext,
    launchers::{PodDeletion, PodPurpose},
    migrations::instance_of,
    nodes::NodePair,
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    refusals::RefusedStep,
};
pub(crate) use metrics::SlotMetrics;

/// Maximum number of migrations that are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 32;

/// Reconciles all migrations.
pub(crate) struct MigrationTask {
    context: GuestContext,
    events: EventRecorder,
    deadlines: PhaseDeadlines,
    turns: SlotScheduler,
    trimming: Trimming,
    work: WorkQueue,
}

impl MigrationTask {
    /// Creates the task with these caches. `work` is the queue of migrations to reconcile.
    pub(crate) fn new(context: GuestContext, deadlines: PhaseDeadlines, work: WorkQueue) -> Self {
        Self {
            events: context.events.recorder("Migrate"),
            context,
            deadlines,
            turns: SlotScheduler::default(),
            trimming: Trimming::new(),
            work,
        }
    }

    /// Exports the slots of migrations in `metrics` while this process leads.
    pub(crate) fn export(&self, metrics: &SlotMetrics, leadership: &Leadership) {
        let configuration = self.context.launchers.configuration.clone();
        metrics.watch(self.turns.clone(), configuration, leadership.clone());
    }

    /// Reconciles migrations while this process leads, until `process` stops. `cluster_changed` is notified when nodes
    /// or the configuration have changed.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, cluster_changed: Trigger) {
        let stopping = process.stopping();
        let sweeping = async {
            loop {
                cluster_changed.notified().await;
                self.turn();
                for migration in self.context.migrations.depending_on_nodes() {
                    self.work.add(migration);
                }
            }
        };
        let trimming = async {
            loop {
                for migration in self.trimming.quiet().await {
                    self.work.add(migration);
                }
            }
        };
        tokio::join!(
            reconciler::run(&self, &self.work, &stopping, leadership),
            stopping.run_until_cancelled(sweeping),
            stopping.run_until_cancelled(trimming),
        );
    }

    /// Starts a term with the slots that the previous leader has granted.
    async fn begin(&self) {
        self.trimming.active();
        tokio::join!(
            self.context.migrations.wait_until_synced(),
            self.context.instances.wait_until_synced(),
            self.context.launchers.wait_until_synced()
        );
        self.rebuild_slots().await;
    }

    /// Reads the granted slots from the API server, because the caches may not show all grants of the previous leader
    /// yet. Retries until the API server responds.
    async fn rebuild_slots(&self) {
        let mut pause = drydock_runtime::Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            match list_readable::<VirtualMachineInstanceMigration>(self.context.client.clone()).await {
                Ok(migrations) => {
                    let found = migrations
                        .iter()
                        .filter_map(|migration| self.entry(migration))
                        .collect();
                    let limits = self.context.launchers.configuration.get().migrations.clone();
                    self.enqueue(self.turns.begin(found, &limits, clock::now()));
                    return;
                }
                Err(error) => {
                    warn!(error = %drydock_runtime::chain(&error), "could not list the migrations, retrying");
                    clock::sleep_until_instant(Some(clock::Instant::now() + pause.delay())).await;
                }
            }
        }
    }

    /// Returns the instance of a migration and its pods, as the caches show them.
    fn shown(
        &self,
        migration: &VirtualMachineInstanceMigration,
    ) -> (Option<Arc<VirtualMachineInstance>>, Vec<Arc<Pod>>) {
        let instance = self.context.instances.get(&instance_of(&Key::of(migration), migration));
        let pods = instance.as_ref().map(|instance| self.context.launchers.of(instance));
        (instance, pods.unwrap_or_default())
    }

    fn entry(
        &self,
        migration: &VirtualMachineInstanceMigration,
    ) -> Option<drydock_core::migration::queue::QueuedMigration> {
        let (instance, pods) = self.shown(migration);
        let now = clock::now();
        let refused = self
            .refused_step(&Key::of(migration), now)
            .is_some_and(|refused| now < refused.again_at);
        let pod = pod_of(migration, &pods).map(Arc::as_ref);
        entry(migration, instance.as_deref(), pod, refused, now)
    }

    /// Returns the migrations of the same instance that have been queued but have not begun.
    fn queued_beside(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> Vec<Key> {
        let all = self
            .context
            .migrations
            .of_instance(&instance_of(key, migration))
            .into_iter();
        all.filter(|other| MigrationRecord::of(other).is_queued())
            .map(|other| Key::of(other.as_ref()))
            .collect()
    }

    /// Updates the state that this process keeps about a migration before it is observed: its entry in the queue, and
    /// its refusal, which ends with a target pod. The new entry may lead to grants for this migration and for others.
    /// `None` means that the migration does not exist.
    fn update_queue(&self, key: &Key, migration: Option<&VirtualMachineInstanceMigration>) {
        let refused = RefusedStep::TargetPod(key.clone());
        let Some(migration) = migration else {
            self.turns.missing(&key.to_string());
            self.turn();
            self.context.refusals.forget(&refused);
            return;
        };
        let uid = migration.uid().unwrap_or_default();
        let record = MigrationRecord::of(migration);
        let over = record.is_over();
        if !over {
            self.trimming.active();
        }
        if record.phase.is_none() {
            // The new migration may take precedence over those that are already queued.
            for queued in self.queued_beside(key, migration) {
                self.work.add(queued);
            }
        }
        let freed = over && self.turns.finished(&uid);
        if self.turns.observe(&uid, self.entry(migration)) || freed {
            self.turn();
        }
        if over || rejected::has_pod(migration, &self.shown(migration).1) {
            self.context.refusals.forget(&refused);
        }
    }

    /// Grants places (permissions to have a target pod) and slots to the next migrations, and enqueues these
    /// migrations.
    fn turn(&self) {
        let limits = self.context.launchers.configuration.get().migrations.clone();
        self.enqueue(self.turns.grant(&limits, clock::now()));
    }

    fn enqueue(&self, names: Vec<String>) {
        for name in names {
            if let Some((namespace, name)) = name.split_once('/') {
                self.work.add(Key::namespaced(namespace, name));
            }
        }
    }
}

/// The inputs of the plan of a migration, and what this reconcile has executed so far.
pub(crate) struct MigrationObservation {
    observed: ObservedMigration,
    execution: Execution,
}

/// The planned steps for a migration.
pub(crate) enum MigrationPlan {
    /// The migration has ended and its instance no longer exists, so the migration is deleted.
    Delete,
    /// The steps are executed.
    Steps(Vec<ClusterStep>),
}

impl Reconciler for MigrationTask {
    type Observed = MigrationObservation;
    type Plan = MigrationPlan;

    async fn observe(&self, key: &Key) -> Result<Option<MigrationObservation>, ReconcileError> {
        let newest = self.context.migrations.objects.newest(key);
        self.update_queue(key, newest.as_ref());
        // A newer version has written a part of the status that this version cannot read, and continues with it. This
        // version could not write the part back unchanged.
        let Some(migration) = newest.filter(|migration| !MigrationRecord::of(migration).is_unknown()) else {
            return Ok(None);
        };
        let now = clock::now();
        let observed = self.gather(key, migration, now).await?;
        let record = MigrationRecord::of(&observed.migration);
        Ok(Some(MigrationObservation {
            execution: Execution::new(record, observed.instance.as_deref()),
            observed,
        }))
    }

    fn plan(&self, _: &Key, MigrationObservation { observed, execution }: &MigrationObservation) -> MigrationPlan {
        let facts = observed.facts();
        if is_orphaned(&facts) {
            return MigrationPlan::Delete;
        }
        MigrationPlan::Steps(step(&ClusterView {
            record: execution.record,
            ..view(&facts)
        }))
    }

    async fn execute(
        &self,
        key: &Key,
        observed: &mut MigrationObservation,
        plan: MigrationPlan,
    ) -> Result<Executed, ReconcileError> {
        let steps = match plan {
            MigrationPlan::Delete => {
                self.delete(key, &observed.observed.migration).await?;
                return Ok(Executed::Requeue(Requeue::OnChange));
            }
            MigrationPlan::Steps(steps) => steps,
        };
        let after = self.take_steps(key, observed, steps).await?;
        // The steps, or reconciles of other migrations in the meantime, may have changed the slot state.
        let uid = observed.observed.migration.uid().unwrap_or_default();
        observed.observed.slot = self.turns.state_of(&uid);
        match after {
            After::Plan => Ok(Executed::Replan),
            After::Write => self.finish(key, observed).await.map(Executed::Requeue),
            After::Deleted => Ok(Executed::Requeue(Requeue::OnChange)),
        }
    }
}

impl Queued for MigrationTask {
    async fn all(&self) -> Vec<Key> {
        self.begin().await;
        let mut keys = Vec::new();
        self.context.migrations.for_each(|key, _| keys.push(key.clone()));
        keys
    }
}

impl MigrationTask {
    /// Executes the steps that were planned for one observation.
    ///
    /// # Errors
    /// If a request to the API server fails.
    async fn take_steps(
        &self,
        key: &Key,
        observed: &mut MigrationObservation,
        steps: Vec<ClusterStep>,
    ) -> Result<After, ReconcileError> {
        let MigrationObservation { observed, execution } = observed;
        let (now, deadline) = (observed.now, observed.deadline.as_ref());
        let migration = &observed.migration;
        let mut after = After::Write;
        for step in steps {
            match step {
                ClusterStep::Confirm => {
                    let Some(instance) = &observed.instance else { break };
                    observed.pods = self.context.launchers.list(instance).await?;
                    observed.pods_confirmed = true;
                    after = After::Plan;
                }
                ClusterStep::CreatePod => {
                    let Some(instance) = &observed.instance else { break };
                    match self.create_pod(migration, instance).await {
                        Ok(pod) => {
                            observed.pods.push(pod);
                            self.context.refusals.forget(&RefusedStep::TargetPod(key.clone()));
                            after = After::Plan;
                        }
                        Err(kube::Error::Api(status)) if is_refusal(&status) => {
                            self.refused(key, migration, &status, now);
                        }
                        // The migration keeps its place, and its status still reports that it is queued.
                        Err(source) => {
                            execution.failed = Some(ReconcileError::Failed {
                                step: "the creation of the target pod",
                                source,
                            });
                        }
                    }
                }
                ClusterStep::DeletePod => self.delete_pod(migration, &observed.pods).await?,
                ClusterStep::Enter(phase) => {
                    if phase == MigrationPhase::PreparingTarget {
                        let Some(sides) = self.sides(observed) else { break };
                        execution.change.sides = Some(sides);
                    }
                    after = execution.enter(phase);
                }
                ClusterStep::Fail(failure) => {
                    execution.record.phase = Some(MigrationPhase::Failed);
                    execution.change.deadline = reason(failure, deadline);
                    execution.change.fail = Some((failure, detail(failure, migration, &observed.pods, deadline)));
                }
                ClusterStep::Abort(failure) => {
                    execution.change.abort = Some((failure, detail(failure, migration, &observed.pods, deadline)));
                }
                ClusterStep::RecordSourceGone => execution.change.source_gone = true,
                ClusterStep::RemoveFinalizer => {
                    self.remove_finalizer(key, migration).await?;
                    return Ok(After::Deleted);
                }
            }
        }
        Ok(after)
    }

    /// Writes the status after the last step. Returns the time of the next reconcile.
    ///
    /// # Errors
    /// If a request to the API server fails, or the target pod could not be created.
    async fn finish(&self, key: &Key, observed: &mut MigrationObservation) -> Result<Requeue, ReconcileError> {
        let MigrationObservation { observed, execution } = observed;
        let (now, migration, record) = (observed.now, &observed.migration, &execution.record);
        let refused = self.refused_step(key, now);
        let obstacles = observed.obstacles(refused.as_ref().map(|last| (last.message.as_str(), last.again_at)));
        execution.change.waiting = obstacles.waiting(record, now);
        if let Some(at) = may_be_over_by(migration, &execution.change, &observed.pods, now) {
            return Ok(Requeue::At(at));
        }
        self.write(key, migration, &execution.change, now).await?;
        if record.is_over() {
            self.turns.finished(&migration.uid().unwrap_or_default());
            self.turn();
            self.forget_old(key, migration).await?;
        }
        if let Some(error) = execution.failed.take() {
            return Err(error);
        }
        Ok(Requeue::OnChange.or_at(obstacles.reconcile_at(now)))
    }

    /// Returns the source and the target of a migration, which are recorded only once. Returns `None` if a part of them
    /// is unknown.
    fn sides(&self, observed: &ObservedMigration) -> Option<Sides> {
        let instance = observed.instance.as_ref()?;
        let source = self.context.launchers.nodes.pair(instance.node_name()?);
        let settings = &self.context.launchers.configuration.get().migrations;
        let view = source.as_ref().map(NodePair::view);
        Sides::of(&observed.migration, instance, &observed.pods, view.as_ref(), settings)
    }

    /// Returns the last refusal of a migration's target pod.
    fn refused_step(&self, key: &Key, now: Timestamp) -> Option<DrainRefusal> {
        self.context.refusals.of(&RefusedStep::TargetPod(key.clone()), now)
    }

    /// Handles a refusal of a migration's target pod. The condition reports the reason until there is a pod, and other
    /// migrations get the place. The next attempt follows after a back-off, or after a change that may end the refusal.
    fn refused(&self, key: &Key, migration: &VirtualMachineInstanceMigration, status: &Status, now: Timestamp) {
        let before = self.refused_step(key, now);
        if before.is_none_or(|before| before.message != status.message) {
            warn!(
                migration = %key,
                migration_uid = migration.metadata.uid,
                reason = status.message,
                "the API server refused the target pod, retrying with back-off"
            );
            self.events
                .record(migration, Severity::Warning, "FailedCreate", status.message.as_str());
        }
        self.context
            .refusals
            .note(RefusedStep::TargetPod(key.clone()), &status.message, now);
        let uid = migration.uid().unwrap_or_default();
        self.turns.withdraw(&uid);
        self.turns.observe(&uid, self.entry(migration));
        self.turn();
    }

    async fn create_pod(
        &self,
        migration: &VirtualMachineInstanceMigration,
        instance: &VirtualMachineInstance,
    ) -> kube::Result<Arc<Pod>> {
        let instance = for_target_pod(instance, migration);
        let (uid, name) = (migration.uid().unwrap_or_default(), migration.name_any());
        let earlier = self.context.migrations.of_instance(&Key::of(&instance));
        let limits = self.context.launchers.configuration.get().migrations.clone();
        let mut avoided = self.turns.full_targets(&limits);
        avoided.extend(self.context.launchers.reserved.for_others(&Key::of(&instance)));
        let arrival = PodPurpose::Arrival(TargetPodInput {
            uid: &uid,
            name: &name,
            rejected: rejected::count(migration, &self.context.launchers.of(&instance)),
            by_manifest: image_identity::may_be_unobtainable(&earlier),
            avoided: &avoided,
            leaving: &self
                .context
                .launchers
                .nodes
                .leaving(&limits.drain_taint_key, &instance.spec.tolerations),
        });
        let (pod, made) = self.context.launchers.create(&instance, arrival).await?;
        if made {
            let name = pod.name_any();
            info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, pod = name, "target pod created");
            let note = format!("Created migration target pod {name}");
            self.events
                .record(migration, Severity::Normal, "SuccessfulCreate", note);
        }
        Ok(pod)
    }

    async fn delete_pod(&self, migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> kube::Result<()> {
        let Some(pod) = pod_of(migration, pods) else {
            return Ok(());
        };
        let namespace = migration.namespace().unwrap_or_default();
        let name = pod.name_any();
        let uid = pod.uid().unwrap_or_default();
        if self
            .context
            .launchers
            .delete(&namespace, &name, PodDeletion::of(&uid))
            .await?
        {
            let note = format!("Deleted migration target pod {name}");
            self.events
                .record(migration, Severity::Normal, "SuccessfulDelete", note);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;
