//! Carries out [`drydock_core::migration::cluster::step`]: each migration gets its pod, its slot, its
//! sides, and an end.
//!
//! ```text
//!  migrations ─┐                                    ┌─▶ target pod, phase, sides, abort, end
//!  instances ──┼─▶ which migration ─▶ look ─▶ step ─┤
//!  pods, nodes ┘                 ▲                  └─▶ finished: its slot is free
//!                                └── who is next ◀── Turns ◀──┘
//! ```

mod turns;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration,
        migration::{MigrationPhase, TargetState},
        names::MIGRATION_FINALIZER,
    },
};
use drydock_core::{
    instance::NodeState,
    launcher_pod::{MigrationTarget, image_identity},
    migration::{
        cluster::{ClusterStep, Failure, TargetPod, step},
        deadlines::{Consequence, Deadline, Deadlines, Part, TargetPod as PodOnItsWay},
        observed::{Facts, pod_of, source, target, view},
        record::Record,
        status::{Change, Sides, Waiting, after, configuration, differs, guest, words},
    },
};
use drydock_runtime::{Event, Events, Key, KeyedWork, Process, Severity, Signal, Wake, clock, lease::Leadership};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use thiserror::Error;
use tracing::info;

use crate::{
    instances::Instances,
    launchers::{Launchers, Purpose},
    migrations::{Migrations, instance_of},
};
use turns::Turns;

/// How many migrations are looked at at a time.
pub(crate) const AT_ONCE: usize = 32;
/// So many ended migrations of an instance are kept. KubeVirt's.
const KEPT: usize = 5;
/// A phase that is over within this time is recorded, but not written by itself. Times of phases are in
/// whole seconds, so it is between two seconds and three.
const BRIEF: Duration = Duration::from_secs(3);
/// Most steps that are taken in one look: more than there are phases.
const STEPS: usize = 12;

/// Looks after all migrations.
pub(crate) struct MigrationTask {
    client: Client,
    migrations: Migrations,
    instances: Instances,
    launchers: Launchers,
    events: Events,
    deadlines: Deadlines,
    turns: Turns,
    /// When this process has made which migration's target pod, until the watch shows it.
    placed: Mutex<BTreeMap<String, Timestamp>>,
    work: KeyedWork,
}

/// What went wrong with one migration.
#[derive(Debug, Error)]
pub(crate) enum LookError {
    /// The API server did not do what was asked.
    #[error("the API server refused or did not answer")]
    Api(#[from] kube::Error),
    /// The target's pod could not be made; the migration says so.
    #[error("its target pod could not be made: {0}")]
    NoPod(String),
}

/// What is gathered of one migration.
struct Gathered {
    instance: Option<Arc<VirtualMachineInstance>>,
    instance_confirmed: bool,
    pods: Vec<Arc<Pod>>,
    pods_confirmed: bool,
    source_node: NodeState,
    target_node: NodeState,
    another: bool,
    deadline: Option<Deadline>,
}

impl MigrationTask {
    /// The task over those caches; `work` is told which migrations to look at.
    pub(crate) fn new(
        client: Client,
        migrations: Migrations,
        instances: Instances,
        launchers: Launchers,
        events: Events,
        deadlines: Deadlines,
        work: KeyedWork,
    ) -> Self {
        Self {
            client,
            migrations,
            instances,
            launchers,
            events,
            deadlines,
            turns: Turns::default(),
            placed: Mutex::default(),
            work,
        }
    }

    /// Looks at migrations while this process leads, until `process` stops. `surroundings` tells that
    /// nodes or the configuration have changed.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, surroundings: Signal) {
        let stopping = process.stopping();
        let task = Arc::new(self);
        let work = task.work.clone();
        let all = || {
            let task = Arc::clone(&task);
            async move {
                task.begin().await;
                let mut keys = Vec::new();
                task.migrations.for_each(|key, _| keys.push(key.clone()));
                keys
            }
        };
        let look = |key: Key| {
            let task = Arc::clone(&task);
            async move {
                match task.look(&key).await {
                    // Somebody was faster; the watch is about to show it.
                    Err(LookError::Api(kube::Error::Api(status))) if status.is_conflict() => Ok(Wake::OnChange),
                    result => result,
                }
            }
        };
        let sweeping = async {
            loop {
                surroundings.notified().await;
                task.turn();
                for migration in task.migrations.unfinished() {
                    task.work.add(Key::of(migration.as_ref()));
                }
            }
        };
        tokio::join!(
            work.run(&stopping, leadership, all, look),
            stopping.run_until_cancelled(sweeping),
        );
    }

    /// Begins a term: what slots there are is read from the API server itself, since caches may be
    /// behind what the last leader has granted.
    async fn begin(&self) {
        tokio::join!(
            self.migrations.answered(),
            self.instances.answered(),
            self.launchers.answered()
        );
        let mut pause = drydock_runtime::Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            match Api::<VirtualMachineInstanceMigration>::all(self.client.clone())
                .list(&ListParams::default())
                .await
            {
                Ok(list) => {
                    let found = list
                        .items
                        .iter()
                        .filter_map(|migration| self.entry(migration))
                        .collect::<Vec<_>>();
                    let limits = self.launchers.configuration.get().migrations.clone();
                    self.look_at(self.turns.begin(found, &limits, clock::now()));
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = %drydock_runtime::chain(&error), "migrations could not be listed; tried again");
                    clock::sleep_until_instant(Some(clock::Instant::now() + pause.delay())).await;
                }
            }
        }
    }

    fn entry(&self, migration: &VirtualMachineInstanceMigration) -> Option<drydock_core::migration::queue::Entry> {
        let key = Key::of(migration);
        let instance = self.instances.get(&instance_of(&key, migration))?;
        let pods = self.launchers.of(&instance);
        turns::entry(migration, &instance, pod_of(migration, &pods).map(Arc::as_ref))
    }

    /// Gives places and slots to those whose turn it is, and has them looked at.
    fn turn(&self) {
        let limits = self.launchers.configuration.get().migrations.clone();
        self.look_at(self.turns.grant(&limits, clock::now()));
    }

    fn look_at(&self, names: Vec<String>) {
        for name in names {
            if let Some((namespace, name)) = name.split_once('/') {
                self.work.add(Key::namespaced(namespace, name));
            }
        }
    }

    /// Looks at one migration and does what is to be done.
    ///
    /// # Errors
    /// If the API server does not do it; it is safe to look again.
    async fn look(&self, key: &Key) -> Result<Wake, LookError> {
        let Some(migration) = self.migrations.objects.newest(key) else {
            self.turns.missing(&format!(
                "{}/{}",
                key.namespace.as_deref().unwrap_or_default(),
                key.name
            ));
            self.turn();
            return Ok(Wake::OnChange);
        };
        let mut gathered = self.gather(key, &migration).await?;
        let uid = migration.uid().unwrap_or_default();
        let over = Record::of(&migration).is_over();
        if over {
            let goes = migration.metadata.deletion_timestamp.is_some();
            if gathered.instance.is_none() && gathered.instance_confirmed && !goes {
                self.delete(key, &migration).await?;
                return Ok(Wake::OnChange);
            }
            lock(&self.placed).remove(&uid);
        }
        let freed = over && self.turns.finished(&uid);
        if self.turns.observe(&uid, self.entry(&migration)) || freed {
            self.turn();
        }
        let now = clock::now();
        let mut change = Change::default();
        let mut entered = Vec::new();
        let mut record = Record::of(&migration);
        let mut refused = None;
        let mut made = self.placed(&uid, &gathered.pods, &migration, now);
        for _ in 0..STEPS {
            let facts = gathered.facts(&migration, &self.turns, &uid, now);
            let mut seen = view(&facts);
            seen.record = record;
            if made.is_some() {
                seen.target_pod = TargetPod::Coming;
            }
            let mut again = false;
            for step in step(&seen) {
                match step {
                    ClusterStep::Confirm => {
                        let Some(instance) = &gathered.instance else { break };
                        gathered.pods = self.launchers.list(instance).await?;
                        gathered.pods_confirmed = true;
                        again = true;
                    }
                    ClusterStep::CreatePod => {
                        let Some(instance) = &gathered.instance else { break };
                        match self.create_pod(&migration, instance).await {
                            Ok(()) => {
                                made = Some(now);
                                lock(&self.placed).insert(uid.clone(), now);
                                again = true;
                            }
                            // What the API server refuses is for people to read.
                            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                                self.turns.withdraw(&uid);
                                refused = Some(status.message);
                            }
                            Err(error) => return Err(error.into()),
                        }
                    }
                    ClusterStep::DeletePod => self.delete_pod(&migration, &gathered.pods).await?,
                    ClusterStep::Enter(phase) => {
                        if phase == MigrationPhase::PreparingTarget {
                            let Some(sides) = self.sides(&migration, &gathered) else {
                                break;
                            };
                            change.sides = Some(sides);
                        }
                        if phase == MigrationPhase::Succeeded {
                            // What was over within a moment was not written by itself.
                            let skipped = [MigrationPhase::TargetReady, MigrationPhase::Running];
                            entered.extend(skipped.into_iter().filter(|phase| Some(*phase) > record.phase));
                        }
                        record.phase = Some(phase);
                        entered.push(phase);
                        // Both sides act on what is written, so it is written before anything is read.
                        again = !matches!(
                            phase,
                            MigrationPhase::PreparingTarget | MigrationPhase::Succeeded | MigrationPhase::Failed
                        );
                    }
                    ClusterStep::Fail(failure) => {
                        record.phase = Some(MigrationPhase::Failed);
                        change.fail = Some((failure, detail(failure, &migration, &gathered)));
                    }
                    ClusterStep::Abort(failure) => {
                        change.abort = Some((failure, detail(failure, &migration, &gathered)));
                    }
                    ClusterStep::TellSourceGone => change.source_gone = true,
                    ClusterStep::RemoveFinalizer => {
                        self.remove_finalizer(key, &migration).await?;
                        return Ok(Wake::OnChange);
                    }
                }
            }
            if !again {
                break;
            }
        }
        change.enter = entered;
        change.waiting = self.waiting(&uid, &record, refused.as_deref(), &gathered);
        if let Some(at) = may_be_over_by(&migration, &change, made, &gathered.pods, now) {
            return Ok(Wake::At(at));
        }
        self.write(key, &migration, &change, now).await?;
        if record.is_over() {
            self.turns.finished(&uid);
            self.turn();
            self.forget_old(key, &migration).await?;
        }
        if let Some(refused) = refused {
            return Err(LookError::NoPod(refused));
        }
        let pending = gathered.deadline.filter(|deadline| !deadline.has_passed(now));
        Ok(Wake::OnChange.or_at(pending.map(|deadline| deadline.at)))
    }

    /// When this process has made the target pod of a migration, if the watch does not show it yet.
    fn placed(
        &self,
        uid: &str,
        pods: &[Arc<Pod>],
        migration: &VirtualMachineInstanceMigration,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut placed = lock(&self.placed);
        let made = placed.get(uid).copied()?;
        // A pod that does not show within this time is looked for.
        let shows = pod_of(migration, pods).is_some();
        if shows || made.checked_add(BRIEF).is_ok_and(|until| until <= now) {
            placed.remove(uid);
            return None;
        }
        Some(made)
    }

    async fn gather(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> kube::Result<Gathered> {
        let instance_key = instance_of(key, migration);
        let mut instance = self.instances.get(&instance_key);
        let mut instance_confirmed = false;
        if instance.is_none() {
            let api = Api::<VirtualMachineInstance>::namespaced(
                self.client.clone(),
                key.namespace.as_deref().unwrap_or_default(),
            );
            instance = api.get_opt(&instance_key.name).await?.map(Arc::new);
            instance_confirmed = instance.is_none();
        }
        let pods = instance
            .as_ref()
            .map(|instance| self.launchers.of(instance))
            .unwrap_or_default();
        let node_state = |name: Option<String>| async move {
            match name {
                Some(name) if !Record::of(migration).is_over() => self.launchers.nodes.state(&name).await,
                _ => Ok(NodeState::Unknown),
            }
        };
        let source_node = node_state(source(migration).and_then(|side| side.node.clone())).await?;
        let target_node = node_state(target(migration).and_then(|side| side.node.clone())).await?;
        let age = |migration: &VirtualMachineInstanceMigration| {
            (migration.metadata.creation_timestamp.clone(), migration.uid())
        };
        let another =
            self.migrations.of_instance(&instance_key).iter().any(|other| {
                !Record::of(other).is_over() && other.uid() != migration.uid() && age(other) < age(migration)
            });
        let deadline = self.deadline(migration, &pods);
        Ok(Gathered {
            instance,
            instance_confirmed,
            pods,
            pods_confirmed: false,
            source_node,
            target_node,
            another,
            deadline,
        })
    }

    /// When the phase that a migration is in has taken too long.
    fn deadline(&self, migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> Option<Deadline> {
        let status = migration.status.as_ref()?;
        let phase = status.phase?;
        let since = since(migration, phase)?;
        let annotations = migration.metadata.annotations.clone().unwrap_or_default();
        let (part, since) = match phase {
            MigrationPhase::Scheduling => {
                let pod = pod_of(migration, pods)?;
                let made = pod.metadata.creation_timestamp.as_ref().map_or(since, |made| made.0);
                let unschedulable = turns::is_unschedulable(pod);
                (
                    Part::TargetPod(PodOnItsWay {
                        unschedulable,
                        ready: false,
                    }),
                    made,
                )
            }
            // It moves, which may not have been written.
            _ if Record::of(migration).source.is_some() => return None,
            MigrationPhase::PreparingTarget => (Part::Preparing, since),
            MigrationPhase::TargetReady => (Part::Starting, since),
            _ => return None,
        };
        let deadline = self.deadlines.deadline(part, since, &annotations)?;
        (deadline.then == Consequence::Abort).then_some(deadline)
    }

    /// Both sides as they are named once; `None` if something of them is not known.
    fn sides(&self, migration: &VirtualMachineInstanceMigration, gathered: &Gathered) -> Option<Sides> {
        let instance = gathered.instance.as_ref()?;
        let status = instance.status.as_ref()?;
        let here = status.node_name.as_deref()?;
        let pod = |pod: &Pod| {
            Some([
                pod.spec.as_ref()?.node_name.clone()?,
                pod.metadata.name.clone()?,
                pod.metadata.uid.clone()?,
            ])
        };
        let arrives = pod_of(migration, &gathered.pods)?;
        let leaves = gathered.pods.iter().find(|candidate| {
            candidate.metadata.uid != arrives.metadata.uid
                && candidate
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.as_deref() == Some(here))
                && drydock_core::instance::ending::ended(candidate).is_none()
        })?;
        Some(Sides {
            source: pod(leaves)?,
            target: pod(arrives)?,
            guest: guest(instance, arrives),
            configuration: configuration(&self.launchers.configuration.get().migrations),
        })
    }

    /// What a migration waits for, in words that change only when the reason does.
    fn waiting(&self, uid: &str, record: &Record, refused: Option<&str>, gathered: &Gathered) -> Option<Waiting> {
        if let Some(refused) = refused {
            let quota = refused.contains("exceeded quota");
            return Some(Waiting {
                reason: if quota {
                    "RejectedByResourceQuota"
                } else {
                    "FailedCreate"
                }
                .into(),
                message: refused.into(),
            });
        }
        if record.phase == Some(MigrationPhase::Scheduling)
            && let Some(message) = gathered.unschedulable()
        {
            return Some(Waiting {
                reason: "TargetPodUnschedulable".into(),
                message,
            });
        }
        if record.has_sides() {
            return None;
        }
        let wait = self.turns.wait(uid)?;
        Some(Waiting {
            reason: wait.reason.as_str().into(),
            message: wait.to_string(),
        })
    }

    async fn create_pod(
        &self,
        migration: &VirtualMachineInstanceMigration,
        instance: &VirtualMachineInstance,
    ) -> kube::Result<()> {
        let mut instance = instance.clone();
        // What the instance itself selects has precedence.
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
        let arrival = Purpose::Arrival(MigrationTarget {
            uid: &uid,
            name: &name,
            by_manifest: image_identity::may_be_unobtainable(&earlier),
            full: &self.turns.full_targets(&limits),
            leaving: &self
                .launchers
                .nodes
                .leaving(&limits.drain_taint_key, &instance.spec.tolerations),
        });
        let (pod, made) = self.launchers.create(&instance, arrival).await?;
        if made {
            info!(migration = %Key::of(migration), pod, "its target pod is made");
            let note = format!("Created migration target pod {pod}");
            self.tell(migration, Severity::Normal, "SuccessfulCreate", &note);
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
            self.tell(migration, Severity::Normal, "SuccessfulDelete", &note);
        }
        Ok(())
    }

    /// Writes the controller's part of the status, if the migration is still as it was looked at.
    async fn write(
        &self,
        key: &Key,
        migration: &VirtualMachineInstanceMigration,
        change: &Change,
        now: Timestamp,
    ) -> kube::Result<()> {
        let wanted = after(migration, change, now);
        if !differs(migration, &wanted) {
            return Ok(());
        }
        let apply = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstanceMigration",
            "metadata": {
                "name": migration.name_any(),
                "uid": migration.uid(),
                "resourceVersion": migration.resource_version(),
            },
            "status": wanted,
        });
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        let answer = self
            .api(key)
            .patch_status(&migration.name_any(), &parameters, &Patch::Apply(apply))
            .await?;
        self.migrations.objects.remember(key, answer);
        self.announce(migration, change);
        Ok(())
    }

    /// Events of what was written.
    fn announce(&self, migration: &VirtualMachineInstanceMigration, change: &Change) {
        if let Some((failure, detail)) = &change.fail {
            let note = words(*failure, detail);
            info!(migration = %Key::of(migration), reason = failure.reason(), "{note}");
            self.tell(migration, Severity::Warning, "FailedMigration", &note);
        }
        // That the target prepares is told by its agent.
        if change.enter.contains(&MigrationPhase::Succeeded) {
            let node = target(migration)
                .and_then(|side| side.node.as_deref())
                .unwrap_or_default();
            info!(migration = %Key::of(migration), node, "it has moved");
            let note = "Source node reported migration succeeded";
            self.tell(migration, Severity::Normal, "SuccessfulMigration", note);
        }
    }

    async fn remove_finalizer(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> kube::Result<()> {
        let mut finalizers = migration.finalizers().to_vec();
        finalizers.retain(|name| name != MIGRATION_FINALIZER);
        let patch = json!({"metadata": {
            "uid": migration.uid(), "finalizers": finalizers, "resourceVersion": migration.resource_version(),
        }});
        let parameters = PatchParams {
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let result = self
            .api(key)
            .patch(&migration.name_any(), &parameters, &Patch::Merge(patch))
            .await;
        self.migrations.objects.forget(key);
        match result {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Deletes the oldest of an instance's ended migrations, but for the newest [`KEPT`].
    async fn forget_old(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> kube::Result<()> {
        let mut ended: Vec<_> = self
            .migrations
            .of_instance(&instance_of(key, migration))
            .into_iter()
            .filter(|other| other.uid() == migration.uid() || Record::of(other).is_over())
            .collect();
        ended.sort_by_key(|other| (other.metadata.creation_timestamp.clone(), other.uid()));
        let surplus = ended.len().saturating_sub(KEPT);
        for old in ended.iter().take(surplus) {
            self.delete(&Key::of(old.as_ref()), old).await?;
        }
        Ok(())
    }

    async fn delete(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> kube::Result<()> {
        // The watch may not have shown yet that it was deleted.
        let newest = self.migrations.objects.newest(key);
        if newest.is_none_or(|newest| newest.metadata.deletion_timestamp.is_some()) {
            return Ok(());
        }
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: migration.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api(key).delete(&migration.name_any(), &parameters).await {
            Ok(answer) => {
                // It stays as long as its finalizer does.
                if let Some(deleted) = answer.left() {
                    self.migrations.objects.remember(key, deleted);
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn api(&self, key: &Key) -> Api<VirtualMachineInstanceMigration> {
        Api::namespaced(self.client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    fn tell(&self, migration: &VirtualMachineInstanceMigration, severity: Severity, reason: &'static str, note: &str) {
        self.events.publish(Event {
            regarding: migration.object_ref(&()),
            related: None,
            severity,
            reason: reason.into(),
            action: "Migrate".into(),
            note: note.into(),
        });
    }
}

impl Gathered {
    fn facts<'a>(
        &'a self,
        migration: &'a VirtualMachineInstanceMigration,
        turns: &Turns,
        uid: &str,
        now: Timestamp,
    ) -> Facts<'a> {
        Facts {
            migration,
            instance: self.instance.as_deref(),
            instance_confirmed: self.instance_confirmed,
            pods: &self.pods,
            pods_confirmed: self.pods_confirmed,
            source_node: self.source_node,
            target_node: self.target_node,
            another: self.another,
            may_place: turns.may_place(uid),
            has_slot: turns.has_slot(uid),
            overdue: self.deadline.as_ref().is_some_and(|deadline| deadline.has_passed(now)),
        }
    }

    /// What the scheduler says of a target pod that no node takes.
    fn unschedulable(&self) -> Option<String> {
        self.pods.iter().find_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
            (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a migration first reached a phase, in whole seconds.
fn since(migration: &VirtualMachineInstanceMigration, phase: MigrationPhase) -> Option<Timestamp> {
    let mut transitions = migration.status.as_ref()?.phase_transition_timestamps.iter();
    let reached = transitions.find(|transition| transition.phase == phase)?;
    Some(reached.phase_transition_timestamp)
}

/// When at the latest a phase has to be written that may be over within the next moment: the guest moves,
/// or its target's pod starts. Nobody can do anything about it until then; what there is to say beside
/// the phase is said at once.
fn may_be_over_by(
    migration: &VirtualMachineInstanceMigration,
    change: &Change,
    made: Option<Timestamp>,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Timestamp> {
    if change.abort.is_some() || change.source_gone || change.fail.is_some() || change.waiting.is_some() {
        return None;
    }
    let began = match change.enter.as_slice() {
        [MigrationPhase::TargetReady] => since(migration, MigrationPhase::PreparingTarget)?,
        [.., MigrationPhase::Running] => source(migration)?.start_timestamp?,
        // Its first word: one that waited for its turn has been told of already.
        [MigrationPhase::Pending, MigrationPhase::Scheduling] => match made {
            Some(made) => made,
            None => pod_of(migration, pods)?.metadata.creation_timestamp.as_ref()?.0,
        },
        _ => return None,
    };
    began.checked_add(BRIEF).ok().filter(|at| *at > now)
}

/// What is known beyond the failure itself: what a side has said, or which deadline has passed.
fn detail(failure: Failure, migration: &VirtualMachineInstanceMigration, gathered: &Gathered) -> String {
    let status = migration.status.clone().unwrap_or_default();
    let source = status.source.unwrap_or_default();
    let target = status.target.unwrap_or_default();
    let said = match failure {
        Failure::Overdue => gathered.deadline.as_ref().map(|deadline| deadline.sentence.clone()),
        Failure::GuestStayed | Failure::GuestEnded => {
            let refused = target.message.filter(|_| target.state == Some(TargetState::Refused));
            refused.or(source.message)
        }
        // A target that was lost without a word: what the source's libvirt says of that.
        Failure::TargetLost => target.message.or(source.message),
        Failure::TargetRefused | Failure::LostOnTarget => target.message,
        _ => None,
    };
    said.unwrap_or_default()
}
