//! Executes [`drydock_core::migration::cluster::step`]: each migration gets its target pod, its slot, its sides, and
//! an end.
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

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPhase};
use drydock_core::{
    drain::DrainRefusal,
    launcher_pod::{TargetPodInput, image_identity},
    migration::{
        cluster::{ClusterStep, step},
        deadlines::PhaseDeadlines,
        observed::{pod_of, view},
        queue::entry,
        record::MigrationRecord,
        rejected::{self, rejected},
    },
};
use drydock_runtime::{
    Event, Events, Key, Process, Requeue, Severity, Trigger, WorkQueue, clock, is_refusal, lease::Leadership,
    list_readable,
};
use execution::{After, Execution};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource, ResourceExt, core::Status};
use observe::{ObservedMigration, detail, may_be_over_by, reason};
use parking_lot::Mutex;
use slot_scheduler::SlotScheduler;
use tracing::{info, warn};
use trimming::Trimming;

use crate::{
    instances::Instances,
    launchers::{Launchers, PodPurpose},
    migrations::{Migrations, instance_of},
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    refusals::{RefusedStep, StepRefusals},
    requests::api_of,
};
pub(crate) use metrics::SlotMetrics;

/// How many migrations are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 32;
/// A phase that is over within this time is recorded, but not written by itself. Times of phases are in
/// whole seconds, so it is between two seconds and three.
const STATUS_COALESCE: Duration = Duration::from_secs(3);

/// Reconciles all migrations.
pub(crate) struct MigrationTask {
    client: Client,
    migrations: Migrations,
    instances: Instances,
    launchers: Launchers,
    events: Events,
    deadlines: PhaseDeadlines,
    turns: SlotScheduler,
    /// When this process created the target pod of a migration, by the migration's UID, until the watch shows the
    /// pod.
    placed: Mutex<BTreeMap<String, Timestamp>>,
    refusals: StepRefusals,
    trimming: Trimming,
    work: WorkQueue,
}

impl MigrationTask {
    /// Creates the task over these caches; `refusals` are those of the process, `work` is the queue of migrations to
    /// reconcile.
    pub(crate) fn new(
        client: Client,
        migrations: Migrations,
        instances: Instances,
        launchers: Launchers,
        events: Events,
        deadlines: PhaseDeadlines,
        (refusals, work): (StepRefusals, WorkQueue),
    ) -> Self {
        Self {
            client,
            migrations,
            instances,
            launchers,
            events,
            deadlines,
            turns: SlotScheduler::default(),
            placed: Mutex::default(),
            refusals,
            trimming: Trimming::new(),
            work,
        }
    }

    /// Exports the slots of migrations in `metrics` while this process leads.
    pub(crate) fn export(&self, metrics: &SlotMetrics, leadership: &Leadership) {
        let configuration = self.launchers.configuration.clone();
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
                for migration in self.migrations.depending_on_nodes() {
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

    /// Begins a term, with the slots that the last leader has granted.
    async fn begin(&self) {
        self.trimming.active();
        tokio::join!(
            self.migrations.wait_until_synced(),
            self.instances.wait_until_synced(),
            self.launchers.wait_until_synced()
        );
        self.rebuild_slots().await;
    }

    /// Reads the granted slots from the API server, since caches may lag behind the grants of the last leader. Retries
    /// until it responds.
    async fn rebuild_slots(&self) {
        let mut pause = drydock_runtime::Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            match list_readable::<VirtualMachineInstanceMigration>(self.client.clone()).await {
                Ok(migrations) => {
                    let found = migrations
                        .iter()
                        .filter_map(|migration| self.entry(migration))
                        .collect();
                    let limits = self.launchers.configuration.get().migrations.clone();
                    self.enqueue(self.turns.begin(found, &limits, clock::now()));
                    return;
                }
                Err(error) => {
                    warn!(error = %drydock_runtime::chain(&error), "list of migrations failed, retrying");
                    clock::sleep_until_instant(Some(clock::Instant::now() + pause.delay())).await;
                }
            }
        }
    }

    fn entry(
        &self,
        migration: &VirtualMachineInstanceMigration,
    ) -> Option<drydock_core::migration::queue::QueuedMigration> {
        let key = Key::of(migration);
        let instance = self.instances.get(&instance_of(&key, migration));
        let pods = instance
            .as_ref()
            .map(|instance| self.launchers.of(instance))
            .unwrap_or_default();
        let now = clock::now();
        let refused = self
            .refused_step(&key, now)
            .is_some_and(|refused| now < refused.again_at);
        entry(
            migration,
            instance.as_deref(),
            pod_of(migration, &pods).map(Arc::as_ref),
            refused,
            now,
        )
    }

    /// Returns the migrations of the same instance that were reconciled before and have not begun.
    fn queued_beside(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> Vec<Key> {
        let all = self.migrations.of_instance(&instance_of(key, migration)).into_iter();
        all.filter(|other| {
            let record = MigrationRecord::of(other);
            record.phase.is_some() && !record.has_sides()
        })
        .map(|other| Key::of(other.as_ref()))
        .collect()
    }

    /// Grants places and slots to the next migrations, and enqueues these.
    fn turn(&self) {
        let limits = self.launchers.configuration.get().migrations.clone();
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

/// A migration, what its plan depends on, and what this reconcile has executed so far.
pub(crate) struct MigrationObservation {
    now: Timestamp,
    migration: VirtualMachineInstanceMigration,
    observed: ObservedMigration,
    execution: Execution,
}

/// What is to be done for a migration.
pub(crate) enum MigrationPlan {
    /// It has ended, and its instance no longer exists: delete it.
    Delete,
    /// Execute these steps.
    Steps(Vec<ClusterStep>),
}

impl Reconciler for MigrationTask {
    type Observed = MigrationObservation;
    type Plan = MigrationPlan;

    async fn observe(&self, key: &Key) -> Result<Option<MigrationObservation>, ReconcileError> {
        let Some(migration) = self.migrations.objects.newest(key) else {
            self.turns.missing(&key.to_string());
            self.turn();
            self.refusals.forget(&RefusedStep::TargetPod(key.clone()));
            return Ok(None);
        };
        let now = clock::now();
        let observed = self.gather(key, &migration, now).await?;
        let uid = migration.uid().unwrap_or_default();
        let record = MigrationRecord::of(&migration);
        let over = record.is_over();
        if over {
            self.placed.lock().remove(&uid);
        } else {
            self.trimming.active();
        }
        if record.phase.is_none() {
            // It may precede those that are queued already.
            for queued in self.queued_beside(key, &migration) {
                self.work.add(queued);
            }
        }
        let freed = over && self.turns.finished(&uid);
        if self.turns.observe(&uid, self.entry(&migration)) || freed {
            self.turn();
        }
        if over || (observed.rejected.is_none() && pod_of(&migration, &observed.pods).is_some()) {
            self.refusals.forget(&RefusedStep::TargetPod(key.clone()));
        }
        // A newer version has written a part that this one cannot read, and continues with it. This one could not
        // write the part back as it is.
        if record.is_unknown() {
            return Ok(None);
        }
        let made = self.placed(&uid, &observed.pods, &migration, now);
        Ok(Some(MigrationObservation {
            now,
            execution: Execution::new(record, &observed, made),
            migration,
            observed,
        }))
    }

    fn plan(&self, _: &Key, observed: &MigrationObservation) -> MigrationPlan {
        let MigrationObservation {
            now,
            migration,
            observed,
            execution,
        } = observed;
        let goes = migration.metadata.deletion_timestamp.is_some();
        if execution.record.is_over() && observed.instance_confirmed && observed.instance.is_none() && !goes {
            return MigrationPlan::Delete;
        }
        let uid = migration.metadata.uid.as_deref().unwrap_or_default();
        let facts = observed.facts(migration, &self.turns, uid, *now);
        MigrationPlan::Steps(step(&execution.observed(view(&facts))))
    }

    async fn execute(
        &self,
        key: &Key,
        observed: &mut MigrationObservation,
        plan: MigrationPlan,
    ) -> Result<Executed, ReconcileError> {
        let steps = match plan {
            MigrationPlan::Delete => {
                self.delete(key, &observed.migration).await?;
                return Ok(Executed::Requeue(Requeue::OnChange));
            }
            MigrationPlan::Steps(steps) => steps,
        };
        match self.take_steps(key, observed, steps).await? {
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
        self.migrations.for_each(|key, _| keys.push(key.clone()));
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
        let MigrationObservation {
            now,
            migration,
            observed,
            execution,
        } = observed;
        let mut after = After::Write;
        for step in steps {
            match step {
                ClusterStep::Confirm => {
                    let Some(instance) = &observed.instance else { break };
                    observed.pods = self.launchers.list(instance).await?;
                    observed.pods_confirmed = true;
                    after = After::Plan;
                }
                ClusterStep::CreatePod => {
                    let Some(instance) = &observed.instance else { break };
                    match self.create_pod(migration, instance).await {
                        Ok(()) => {
                            execution.made = Some(*now);
                            self.placed.lock().insert(migration.uid().unwrap_or_default(), *now);
                            self.refusals.forget(&RefusedStep::TargetPod(key.clone()));
                            after = After::Plan;
                        }
                        Err(kube::Error::Api(status)) if is_refusal(&status) => {
                            self.refused(key, migration, &status, *now);
                        }
                        // It keeps its place, and its status still reports that it is queued.
                        Err(source) => {
                            execution.failed = Some(ReconcileError::Failed {
                                step: "creation of its target pod",
                                source,
                            });
                        }
                    }
                }
                ClusterStep::DeletePod => self.delete_pod(migration, &observed.pods).await?,
                ClusterStep::Enter(phase) => {
                    if phase == MigrationPhase::PreparingTarget {
                        let Some(sides) = self.sides(migration, observed) else {
                            break;
                        };
                        execution.change.sides = Some(sides);
                    }
                    after = execution.enter(phase);
                }
                ClusterStep::Fail(failure) => {
                    execution.record.phase = Some(MigrationPhase::Failed);
                    execution.change.deadline = reason(failure, observed);
                    execution.change.fail = Some((failure, detail(failure, migration, observed)));
                }
                ClusterStep::Abort(failure) => {
                    execution.change.abort = Some((failure, detail(failure, migration, observed)));
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

    /// Writes the status after the last step. Returns when to reconcile again.
    ///
    /// # Errors
    /// If a request to the API server fails, or the target pod could not be created.
    async fn finish(&self, key: &Key, observed: &mut MigrationObservation) -> Result<Requeue, ReconcileError> {
        let MigrationObservation {
            now,
            migration,
            observed,
            execution,
        } = observed;
        let (now, record, made) = (*now, execution.record, execution.made);
        let change = &mut execution.change;
        let uid = migration.uid().unwrap_or_default();
        let refused = self.refused_step(key, now);
        let text = refused.as_ref().map(|refused| refused.message.as_str());
        change.waiting = self.waiting(&uid, &record, text, observed);
        if let Some(at) = may_be_over_by(migration, change, made, &observed.pods, now) {
            return Ok(Requeue::At(at));
        }
        self.write(key, migration, change, now).await?;
        if record.is_over() {
            self.turns.finished(&uid);
            self.turn();
            self.forget_old(key, migration).await?;
        }
        if let Some(error) = execution.failed.take() {
            return Err(error);
        }
        let deadline = observed.deadline.as_ref().filter(|deadline| !deadline.has_passed(now));
        let retry = refused.map(|refused| refused.again_at).filter(|at| now < *at);
        let another_pod = observed
            .rejected
            .as_ref()
            .map(|rejected| rejected.again_at)
            .filter(|at| now < *at);
        Ok(Requeue::OnChange
            .or_at(deadline.map(|deadline| deadline.at))
            .or_at(observed.pending.wake)
            .or_at(another_pod)
            .or_at(retry))
    }

    /// Returns the last refusal of a migration's target pod.
    fn refused_step(&self, key: &Key, now: Timestamp) -> Option<DrainRefusal> {
        self.refusals.of(&RefusedStep::TargetPod(key.clone()), now)
    }

    /// Handles a refusal of a migration's target pod. The condition reports the reason until there is a pod, the
    /// place goes to other migrations, and the next attempt follows after a back-off or a change of what may have refused
    /// it.
    fn refused(&self, key: &Key, migration: &VirtualMachineInstanceMigration, status: &Status, now: Timestamp) {
        let before = self.refused_step(key, now);
        if before.is_none_or(|before| before.message != status.message) {
            warn!(migration = %key, migration_uid = migration.metadata.uid, reason = status.message, "target pod refused, retrying with back-off");
            self.record_event(migration, Severity::Warning, "FailedCreate", &status.message);
        }
        self.refusals
            .note(RefusedStep::TargetPod(key.clone()), &status.message, now);
        let uid = migration.uid().unwrap_or_default();
        self.turns.withdraw(&uid);
        self.turns.observe(&uid, self.entry(migration));
        self.turn();
    }

    /// Returns when this process created the target pod of a migration, if the watch does not show it yet.
    fn placed(
        &self,
        uid: &str,
        pods: &[Arc<Pod>],
        migration: &VirtualMachineInstanceMigration,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut placed = self.placed.lock();
        let made = placed.get(uid).copied()?;
        // A pod that the watch does not show within this time is read from the API server.
        let shows = pod_of(migration, pods).is_some() && rejected(migration, pods).is_none();
        let is_recent = made <= now && made.checked_add(STATUS_COALESCE).is_ok_and(|until| now < until);
        if shows || !is_recent {
            placed.remove(uid);
            return None;
        }
        Some(made)
    }

    async fn create_pod(
        &self,
        migration: &VirtualMachineInstanceMigration,
        instance: &VirtualMachineInstance,
    ) -> kube::Result<()> {
        let mut instance = instance.clone();
        // The node selector of the instance itself has precedence.
        for (key, value) in &migration.spec.added_node_selector {
            instance
                .spec
                .node_selector
                .entry(key.clone())
                .or_insert_with(|| value.clone());
        }
        let (uid, name) = (migration.uid().unwrap_or_default(), migration.name_any());
        let earlier = self.migrations.of_instance(&Key::of(&instance));
        let limits = self.launchers.configuration.get().migrations.clone();
        let mut avoided = self.turns.full_targets(&limits);
        avoided.extend(self.launchers.reserved.for_others(&Key::of(&instance)));
        let arrival = PodPurpose::Arrival(TargetPodInput {
            uid: &uid,
            name: &name,
            rejected: rejected::count(migration, &self.launchers.of(&instance)),
            by_manifest: image_identity::may_be_unobtainable(&earlier),
            avoided: &avoided,
            leaving: &self
                .launchers
                .nodes
                .leaving(&limits.drain_taint_key, &instance.spec.tolerations),
        });
        let (pod, made) = self.launchers.create(&instance, arrival).await?;
        if made {
            info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, pod, "target pod created");
            let note = format!("Created migration target pod {pod}");
            self.record_event(migration, Severity::Normal, "SuccessfulCreate", &note);
        }
        Ok(())
    }

    async fn delete_pod(&self, migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> kube::Result<()> {
        let Some(pod) = pod_of(migration, pods) else {
            return Ok(());
        };
        let namespace = migration.namespace().unwrap_or_default();
        let name = pod.name_any();
        if self
            .launchers
            .delete_in(&namespace, &name, &pod.uid().unwrap_or_default())
            .await?
        {
            let note = format!("Deleted migration target pod {name}");
            self.record_event(migration, Severity::Normal, "SuccessfulDelete", &note);
        }
        Ok(())
    }

    fn api(&self, key: &Key) -> Api<VirtualMachineInstanceMigration> {
        api_of(&self.client, key)
    }

    fn record_event(
        &self,
        migration: &VirtualMachineInstanceMigration,
        severity: Severity,
        reason: &'static str,
        note: &str,
    ) {
        let regarding = migration.object_ref(&());
        self.events
            .publish(Event::new(regarding, "Migrate", severity, reason, note));
    }
}

#[cfg(test)]
mod tests;
