//! The agents of all nodes, as far as migrations are concerned.
//!
//! Both sides decide as agents do, by [`source::step`] and [`target::step`]. They act on a [`ScaleGuest`], which moves
//! without libvirt.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use drydock_api::{
    AGENT_FIELD_MANAGER,
    kubevirt::{
        VirtualMachineInstanceMigration,
        migration::{MigrationMode, MigrationProgress, MigrationSource, MigrationTarget, SourceState, TargetState},
    },
};
use drydock_core::{
    drain::guest_steps::memory,
    migration::{
        convergence::{WrittenProgress, worth_writing},
        record::MigrationRecord,
        source::{self, SourceStep},
        target::{self, TargetStep},
    },
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::ObjectReference, events::v1::Event};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    agents::open_gate,
    heartbeats::microseconds,
    kubelets::{Kubelets, whole_seconds},
    latest::Latest,
    requests::Requests,
    simulated_guest::ScaleGuest,
};

/// Interval at which an agent measures a guest during its migration.
const MEASURED_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failed write.
const RETRY: Duration = Duration::from_millis(200);

/// The duration of migrations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveSpeed {
    /// Fixed part of the duration, independent of the guest's size.
    pub(crate) fixed: Duration,
    /// Transfer rate of the guest's memory, in MiB per second, which adds to the fixed part.
    pub(crate) rate: Option<u64>,
    /// Maximum deviation of the duration, in percent, evenly distributed.
    pub(crate) spread: u64,
}

impl MoveSpeed {
    /// Returns the duration of the migration with this UID, of a guest of this size.
    ///
    /// The duration is the same each time for the same migration.
    fn duration(self, uid: &str, bytes: u64) -> Duration {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let parts = 100_000 + self.spread * 1000;
        let least = parts - 2 * self.spread * 1000;
        let part = least + hasher.finish() % (parts - least + 1);
        let memory = self.rate.map(|rate| Duration::from_millis(bytes * 1000 / (rate << 20)));
        (self.fixed + memory.unwrap_or_default()).mul_f64(f64::from(u32::try_from(part).unwrap_or(100_000)) / 100_000.0)
    }
}

/// Both sides of all migrations.
pub(crate) struct SimulatedAgents {
    requests: Arc<Requests>,
    latest: Arc<Latest>,
    kubelets: Arc<Kubelets>,
    speed: MoveSpeed,
    /// Notifiers of the changes of each migration, by its UID.
    known: Mutex<HashMap<String, watch::Sender<u64>>>,
}

/// A migration, which its two sides share.
struct SimulatedMove {
    all: Arc<SimulatedAgents>,
    uid: String,
    news: watch::Sender<u64>,
    guest: Mutex<ScaleGuest>,
}

impl SimulatedAgents {
    /// Creates the agents; they do nothing before [`Self::run`].
    pub(crate) fn new(
        requests: &Arc<Requests>,
        latest: &Arc<Latest>,
        kubelets: &Arc<Kubelets>,
        speed: MoveSpeed,
    ) -> Self {
        Self {
            requests: Arc::clone(requests),
            latest: Arc::clone(latest),
            kubelets: Arc::clone(kubelets),
            speed,
            known: Mutex::default(),
        }
    }

    /// Serves all migrations forever.
    pub(crate) async fn run(self: &Arc<Self>) {
        let mut changes = self.latest.migrations.subscribe();
        while let Ok(uid) = changes.recv().await {
            let mut known = self.known.lock();
            let Some(migration) = self.latest.migrations.get(&uid) else {
                known.remove(&uid);
                continue;
            };
            if let Some(news) = known.get(&uid) {
                news.send_modify(|number| *number += 1);
            } else if MigrationRecord::of(&migration).has_sides() && !MigrationRecord::of(&migration).is_over() {
                let news = watch::Sender::new(0);
                known.insert(uid.clone(), news.clone());
                let mover = Arc::new(SimulatedMove {
                    all: Arc::clone(self),
                    uid,
                    news,
                    guest: Mutex::new(ScaleGuest::here()),
                });
                tokio::spawn(Arc::clone(&mover).source());
                tokio::spawn(mover.target());
            }
        }
    }
}

impl SimulatedMove {
    fn newest(&self) -> Option<Arc<VirtualMachineInstanceMigration>> {
        self.all.latest.migrations.get(&self.uid)
    }

    /// Returns the duration of the migration.
    fn duration(&self, migration: &VirtualMachineInstanceMigration) -> Duration {
        let source = migration.source();
        let pod = source.and_then(|source| source.pod_uid.as_deref());
        let instance = pod.and_then(|pod| self.all.latest.instances.get(&self.all.latest.instance_of(pod)?));
        self.all
            .speed
            .duration(&self.uid, instance.as_deref().map_or(0, memory))
    }

    /// Reads or changes the guest, without a notification.
    fn with<R>(&self, apply: impl FnOnce(&mut ScaleGuest) -> R) -> R {
        apply(&mut self.guest.lock())
    }

    /// Changes the guest, and notifies both sides.
    fn change(&self, change: impl FnOnce(&mut ScaleGuest)) {
        self.with(change);
        self.news.send_modify(|number| *number += 1);
    }

    /// Runs the source's agent, until the migration is over and the agent has nothing left to do.
    async fn source(self: Arc<Self>) {
        let mut news = self.news.subscribe();
        let mut moving: Option<(Instant, Timestamp)> = None;
        let mut reported: Option<WrittenProgress> = None;
        loop {
            news.borrow_and_update();
            let Some(migration) = self.newest() else { return };
            let record = MigrationRecord::of(&migration);
            let steps = source::step(&self.with(|guest| guest.source_view(record)));
            let mut failed = false;
            for step in &steps {
                if let SourceStep::Report(state) = step
                    && let Err(error) = self.report_source(&migration, *state).await
                {
                    failed = !gone(&error);
                    complain(&error);
                    break;
                }
                self.with(|guest| guest.source_does(*step));
                match step {
                    SourceStep::Start => {
                        self.record_event(&migration, "Migrating").await;
                        moving = Some((Instant::now() + self.duration(&migration), Timestamp::now()));
                        self.news.send_modify(|number| *number += 1);
                    }
                    SourceStep::Report(SourceState::Migrating) => self.with(ScaleGuest::is_due),
                    SourceStep::Report(SourceState::Stopped | SourceState::HandedOver) => {
                        self.record_event(&migration, "Migrated").await;
                    }
                    SourceStep::Abort => moving = None,
                    _ => {}
                }
            }
            if !steps.is_empty() && !failed {
                continue;
            }
            if record.is_over() && record.source_is_settled() && moving.is_none() {
                return;
            }
            let arrives = moving.map(|(at, _)| at);
            tokio::select! {
                _ = news.changed() => {}
                () = until(arrives) => {
                    if let Some((_, began)) = moving.take() {
                        self.arrived(&migration, began);
                    }
                }
                () = tokio::time::sleep(RETRY), if failed => {}
                () = tokio::time::sleep(MEASURED_EVERY), if moving.is_some() => {
                    self.measure(&migration, &mut reported).await;
                }
            }
        }
    }

    /// Records that the guest has arrived on its target, and notifies both agents and the source's kubelet at once.
    fn arrived(&self, migration: &VirtualMachineInstanceMigration, began: Timestamp) {
        let status = migration.status.clone().unwrap_or_default();
        let (source, target) = (status.source.unwrap_or_default(), status.target.unwrap_or_default());
        let line = json!({
            "kind": "moved", "migration": migration.name_any(), "instance": migration.spec.vmi_name,
            "source": source.node, "target": target.node, "began": seconds(began), "ended": seconds(Timestamp::now()),
        });
        println!("{line}");
        self.change(ScaleGuest::arrives);
        self.all.kubelets.guest_left(&source.pod_uid.unwrap_or_default());
    }

    /// Runs the target's agent, until the migration is over and the agent has nothing left to do.
    async fn target(self: Arc<Self>) {
        let mut news = self.news.subscribe();
        loop {
            news.borrow_and_update();
            let Some(migration) = self.newest() else { return };
            let record = MigrationRecord::of(&migration);
            let steps = target::step(&self.with(|guest| guest.target_view(record)));
            let mut failed = false;
            for step in &steps {
                if *step == TargetStep::Show {
                    self.show(&migration).await;
                }
                if let TargetStep::Report(state) = step
                    && let Err(error) = self.report_target(&migration, *state).await
                {
                    failed = !gone(&error);
                    complain(&error);
                    break;
                }
                self.with(|guest| guest.target_does(*step));
            }
            // If the only step is `Show`, the source has to report the next state.
            let acted = steps.iter().any(|step| *step != TargetStep::Show);
            if acted && !failed {
                continue;
            }
            if record.is_over() && record.target_is_settled() {
                return;
            }
            tokio::select! {
                _ = news.changed() => {}
                () = tokio::time::sleep(RETRY), if failed => {}
            }
        }
    }

    async fn report_source(&self, migration: &VirtualMachineInstanceMigration, state: SourceState) -> kube::Result<()> {
        let before = migration.source().cloned();
        let mut side = before.unwrap_or_default();
        side.state = Some(state);
        match state {
            SourceState::Migrating => {
                side.fingerprint = Some(fingerprint(&self.uid, "source"));
                side.start_timestamp = Some(whole_seconds());
                side.mode = Some(MigrationMode::PreCopy);
            }
            SourceState::Stayed => {
                side.reason = Some("Aborted".into());
                side.message = Some("Live migration has been aborted".into());
            }
            SourceState::Halted
            | SourceState::Released
            | SourceState::Stopped
            | SourceState::HandedOver
            | SourceState::Ended
            | SourceState::Unknown => {}
        }
        self.write_source(migration, side).await
    }

    /// Reports the guest's progress at the agents' reporting interval.
    async fn measure(&self, migration: &VirtualMachineInstanceMigration, reported: &mut Option<WrittenProgress>) {
        let now = Timestamp::now();
        let side = migration.source().cloned();
        let Some(side) = side.filter(|_| self.with(|guest| guest.moves())) else {
            return;
        };
        let since = side.start_timestamp.unwrap_or(now);
        let sent = now.duration_since(since).unsigned_abs().as_secs() << 23;
        let written = WrittenProgress {
            at: now,
            mode: MigrationMode::PreCopy,
            progress: MigrationProgress {
                summary: format!("{} MiB sent", sent >> 20),
                data_total: 96 << 20,
                data_processed: sent,
                data_remaining: (96_u64 << 20).saturating_sub(sent),
                ..MigrationProgress::default()
            },
        };
        if !worth_writing(reported.as_ref(), &written) {
            return;
        }
        let first = reported.is_none();
        *reported = Some(written.clone());
        if first {
            return;
        }
        let side = MigrationSource {
            progress: Some(written.progress),
            ..side
        };
        if let Err(error) = self.write_source(migration, side).await {
            complain(&error);
        }
    }

    async fn report_target(&self, migration: &VirtualMachineInstanceMigration, state: TargetState) -> kube::Result<()> {
        let before = migration.target().cloned();
        let side = before.unwrap_or_default();
        let node = side.node.clone().unwrap_or_default();
        let mut own = MigrationTarget {
            node: None,
            pod: None,
            pod_uid: None,
            state: Some(state),
            ..side
        };
        if state == TargetState::Prepared {
            own.fingerprint = Some(fingerprint(&self.uid, "target"));
            own.address = Some("100.64.0.1:7001".parse().map_err(|_| invalid("address"))?);
        }
        let gate = async {
            if state == TargetState::Running {
                self.show(migration).await;
            }
        };
        let (written, ()) = tokio::join!(self.write(migration, &node, "target", json!({"target": own})), gate);
        written?;
        if state == TargetState::Prepared {
            self.record_event(migration, "PreparingTarget").await;
        }
        Ok(())
    }

    /// Opens the readiness gate of the pod in which the guest has arrived, unless the gate is open.
    async fn show(&self, migration: &VirtualMachineInstanceMigration) {
        let side = migration.target().cloned().unwrap_or_default();
        let pod = side.pod_uid.as_deref().and_then(|uid| self.all.latest.pods.get(uid));
        if let Some(pod) = pod
            && let Err(error) = open_gate(
                &self.all.requests,
                &self.all.latest,
                &side.node.unwrap_or_default(),
                &pod,
            )
            .await
        {
            complain(&error);
        }
    }

    async fn write_source(
        &self,
        migration: &VirtualMachineInstanceMigration,
        side: MigrationSource,
    ) -> kube::Result<()> {
        let node = side.node.clone().unwrap_or_default();
        let own = MigrationSource {
            node: None,
            pod: None,
            pod_uid: None,
            ..side
        };
        self.write(migration, &node, "source", json!({"source": own})).await
    }

    async fn write(
        &self,
        migration: &VirtualMachineInstanceMigration,
        node: &str,
        side: &str,
        status: Value,
    ) -> kube::Result<()> {
        let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
        let patch = Patch::Apply(json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": name, "uid": migration.uid()},
            "status": status,
        }));
        let parameters = PatchParams::apply(&format!("{AGENT_FIELD_MANAGER}-{side}")).force();
        let mut response: VirtualMachineInstanceMigration = self
            .all
            .requests
            .agent_patches_status(node, (&namespace, &name), &parameters, &patch)
            .await?;
        response.managed_fields_mut().clear();
        self.all.latest.migrations.store_response(response);
        Ok(())
    }

    /// Creates the event that an agent publishes for a migration.
    async fn record_event(&self, migration: &VirtualMachineInstanceMigration, reason: &str) {
        let status = migration.status.clone().unwrap_or_default();
        let (source, target) = (status.source.unwrap_or_default(), status.target.unwrap_or_default());
        let node = match reason {
            "PreparingTarget" => target.node,
            _ => source.node,
        };
        let (node, namespace) = (node.unwrap_or_default(), migration.namespace().unwrap_or_default());
        let event: Result<Event, _> = serde_json::from_value(json!({
            "metadata": {"name": format!("{}.{}", migration.name_any(), reason.to_lowercase()), "namespace": namespace},
            "eventTime": microseconds(Timestamp::now()), "type": "Normal", "reason": reason, "action": "Migrate",
            "note": reason, "reportingController": "drydock-agent", "reportingInstance": node,
            "regarding": ObjectReference {
                kind: Some("VirtualMachineInstance".into()),
                api_version: Some("kubevirt.io/v1".into()),
                namespace: Some(namespace.clone()),
                name: Some(migration.spec.vmi_name.clone()),
                ..ObjectReference::default()
            },
        }));
        if let Ok(event) = event
            && let Err(error) = self.all.requests.agent_creates(&node, &namespace, &event).await
        {
            complain(&error);
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

fn complain(error: &kube::Error) {
    eprintln!("a simulated agent failed: {error}");
}

fn invalid(what: &'static str) -> kube::Error {
    kube::Error::Service(what.into())
}

/// Returns a value in the format of a SHA-256.
fn fingerprint(uid: &str, side: &str) -> String {
    let mut text = String::new();
    for part in 0..4_u8 {
        let mut hasher = DefaultHasher::new();
        (uid, side, part).hash(&mut hasher);
        text.push_str(&format!("{:016x}", hasher.finish()));
    }
    text
}

/// Returns a time as seconds since the epoch.
fn seconds(at: Timestamp) -> f64 {
    Duration::try_from(at.duration_since(Timestamp::UNIX_EPOCH)).map_or(0.0, |since| since.as_secs_f64())
}
