//! Keeps virtual machines off nodes whose agent is unresponsive.
//!
//! An agent renews its Lease every ten seconds. A Lease that has not changed for forty seconds, by this process's own
//! clock, is stale: its node's `kubevirt.io/schedulable` becomes false, with an event. The agent sets it back once it
//! responds again. [`UnresponsiveAgents`] provides this state to other tasks, also for nodes whose Node object was deleted:
//! only together with an unresponsive agent does the deletion prove that no guest runs there.
//!
//! A watch whose connection has died without an end shows no renewals, so a Lease is read before its staleness changes a
//! node or proves that it is gone.

use std::sync::Arc;

use drydock_api::{
    labels::{FALSE, SCHEDULABLE, TRUE},
    leases::{NODE_LEASE_NAMESPACE, STALE_AFTER},
    node_reference,
    reasons::events::NODE_UNRESPONSIVE,
};
use drydock_core::instance::AgentSign;
use drydock_runtime::{
    AssumeCache, Backoff, CacheChange, Event, Events, Key, Process, Severity, Trigger, Watch, WatchStarter, chain,
    clock::{self, Instant},
    lease::{LeaderTerm, Leadership, Staleness},
};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client, ResourceExt, api::Patch};
use parking_lot::Mutex;
use serde_json::json;
use tracing::{info, warn};

use crate::{metrics::ControllerMetrics, requests::patching};

/// The parts of a Lease that change with a renewal.
type Stamp = (Option<String>, Option<MicroTime>);

/// The agents that are unresponsive. Clones share the state.
#[derive(Clone)]
pub(crate) struct UnresponsiveAgents {
    staleness: Arc<Mutex<Staleness<Stamp>>>,
    on_change: Arc<dyn Fn() + Send + Sync>,
    /// Notified when a read has shown what the watch has not.
    corrected: Trigger,
}

impl UnresponsiveAgents {
    /// Starts without any known Lease. `on_change` is called when the set of unresponsive agents changes.
    pub(crate) fn new(on_change: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            staleness: Arc::new(Mutex::new(Staleness::new(STALE_AFTER))),
            on_change: Arc::new(on_change),
            corrected: Trigger::new(),
        }
    }

    /// Creates the state after a list that showed no Leases.
    #[cfg(test)]
    pub(crate) fn without_leases() -> Self {
        let unresponsive = Self::new(|| ());
        unresponsive.staleness.lock().restart(Instant::now());
        unresponsive
    }

    /// Returns whether the agent of this node may be alive. It counts as unresponsive if its Lease is stale or absent.
    pub(crate) fn sign(&self, node: &str) -> AgentSign {
        let (known, now) = (self.staleness.lock(), Instant::now());
        if known.is_stale(node, now) || known.is_absent(node, now) {
            AgentSign::Unresponsive
        } else {
            AgentSign::MayLive
        }
    }

    /// Returns whether the agent of this node may be alive. That it is unresponsive is confirmed by reading its Lease.
    ///
    /// # Errors
    /// If the Lease cannot be read: then the agent may be alive.
    pub(crate) async fn confirmed_sign(&self, leases: &Api<Lease>, node: &str) -> kube::Result<AgentSign> {
        if self.sign(node) == AgentSign::MayLive {
            return Ok(AgentSign::MayLive);
        }
        let read = leases.get_opt(node).await?;
        let stamp = read.as_ref().map(stamp_of);
        if self.staleness.lock().confirm(node, stamp, Instant::now()) {
            return Ok(AgentSign::Unresponsive);
        }
        self.corrected.notify();
        Ok(AgentSign::MayLive)
    }

    /// Returns whether the agent of this node has failed to renew its Lease in time.
    pub(crate) fn contains(&self, node: &str) -> bool {
        self.staleness.lock().is_stale(node, Instant::now())
    }
}

/// Updates the labels of nodes whose agent is unresponsive.
pub(crate) struct LivenessTask {
    api: Api<Node>,
    leases: Api<Lease>,
    nodes: AssumeCache<Node>,
    unresponsive: UnresponsiveAgents,
    changed: Trigger,
    leadership: Leadership,
    events: Events,
    metrics: ControllerMetrics,
    process: Process,
}

impl LivenessTask {
    /// Starts watching the Leases. `changed` is also notified of changes of `nodes`.
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        (nodes, changed): (AssumeCache<Node>, Trigger),
        unresponsive: UnresponsiveAgents,
        events: Events,
        metrics: ControllerMetrics,
        (process, leadership): (Process, Leadership),
    ) -> Self {
        let (observed, news) = (unresponsive.clone(), changed.clone());
        let leases = Watch::<Lease>::namespaced(client.clone(), NODE_LEASE_NAMESPACE, "agents' leases")
            .prune(|lease| {
                lease.metadata.annotations = None;
                lease.metadata.labels = None;
            })
            .on_change(move |change| observe(&mut observed.staleness.lock(), change, &news));
        watches.start(leases);
        Self {
            leases: agents_leases(&client),
            api: Api::all(client),
            nodes,
            unresponsive,
            changed,
            leadership,
            events,
            metrics,
            process,
        }
    }

    /// Reconciles whenever a Lease becomes stale, while this process leads, until it stops.
    pub(crate) async fn run(mut self) {
        let stopping = self.process.stopping();
        while let Some(term) = stopping.run_until_cancelled(self.leadership.elected()).await {
            stopping.run_until_cancelled(self.watch_over(term)).await;
        }
    }

    /// Reconciles whenever a Lease becomes stale, until the term ends.
    async fn watch_over(&self, term: LeaderTerm) {
        let mut backoff = Backoff::new(STALE_AFTER / 40, STALE_AFTER);
        let (mut before, mut absence_before) = (Vec::new(), None);
        loop {
            let now = Instant::now();
            let (stale, next, next_absence) = {
                let staleness = self.unresponsive.staleness.lock();
                (
                    staleness.stale(now).map(str::to_owned).collect::<Vec<_>>(),
                    staleness.next(now),
                    staleness.next_absence(now),
                )
            };
            self.metrics
                .unresponsive
                .set(i64::try_from(stale.len()).unwrap_or(i64::MAX));
            // If the next absence is another one than before, or none, the previous one has begun to count.
            if stale != before || next_absence != absence_before {
                (self.unresponsive.on_change)();
            }
            absence_before = next_absence;
            let mut wake = [next, next_absence].into_iter().flatten().min();
            match self.mark_unschedulable(&stale, &term).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    warn!(error = %chain(&error), "a node with an unresponsive agent could not be made unschedulable");
                    let retry = now + backoff.delay();
                    wake = Some(wake.map_or(retry, |wake| wake.min(retry)));
                }
            }
            before = stale;
            tokio::select! {
                () = term.lost().cancelled() => return,
                () = self.changed.notified() => {}
                () = self.unresponsive.corrected.notified() => {}
                () = clock::sleep_until_instant(wake) => {}
            }
        }
    }

    /// Makes each of these nodes unschedulable, unless it already is, or its agent turns out to be alive.
    async fn mark_unschedulable(&self, stale: &[String], term: &LeaderTerm) -> kube::Result<()> {
        for name in stale {
            let Some(node) = self.nodes.shown().get(&Key::cluster(name)) else {
                continue;
            };
            if node.labels().get(SCHEDULABLE).map(String::as_str) != Some(TRUE)
                || self.unresponsive.confirmed_sign(&self.leases, name).await? == AgentSign::MayLive
                || !term.is_valid()
            {
                continue;
            }
            let patch = json!({"metadata": {"labels": {SCHEDULABLE: FALSE}}});
            let parameters = patching();
            match self.api.patch_metadata(name, &parameters, &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => continue,
                result => result?,
            };
            info!(node = name, "agent unresponsive, node takes no virtual machines");
            self.metrics.became_unresponsive.inc();
            let note = format!(
                "the node's agent has not renewed its Lease for {} s: no virtual machines are sent here until it does",
                STALE_AFTER.as_secs()
            );
            let regarding = node_reference(name, node.uid());
            self.events.publish(Event::new(
                regarding,
                "Watch",
                Severity::Warning,
                NODE_UNRESPONSIVE,
                note,
            ));
        }
        Ok(())
    }
}

/// Returns the API of the agents' Leases.
pub(crate) fn agents_leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), NODE_LEASE_NAMESPACE)
}

fn stamp_of(lease: &Lease) -> Stamp {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.clone());
    (holder, spec.and_then(|spec| spec.renew_time.clone()))
}

/// Records one change of a Lease.
fn observe(staleness: &mut Staleness<Stamp>, change: &CacheChange<Lease>, news: &Trigger) {
    match change {
        CacheChange::Object {
            key, new: Some(lease), ..
        } => {
            let first = staleness.next(Instant::now()).is_none();
            staleness.observe(&key.name, stamp_of(lease), Instant::now());
            if first {
                news.notify();
            }
        }
        CacheChange::Object { key, new: None, .. } => {
            staleness.forget(&key.name, Instant::now());
            news.notify();
        }
        // Renewals may have been missed while the watch was broken, so no agent counts as unresponsive yet.
        CacheChange::SyncState(state) if state.is_clear() => {
            staleness.restart(Instant::now());
            news.notify();
        }
        CacheChange::SyncState(_) => staleness.blind(),
        CacheChange::Unreadable { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::{
        EventMetrics, Reporter, SyncState, WatchProblem,
        fake::{ApiServer, api_server, candidate, keep_elected},
    };
    use http::Method;
    use serde_json::Value;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failing_lease_watch_marks_no_agent_as_unresponsive() {
        let unresponsive = UnresponsiveAgents::new(|| ());
        let apply = |change: CacheChange<Lease>| observe(&mut unresponsive.staleness.lock(), &change, &Trigger::new());
        let mut lease = Lease::default();
        lease.metadata.name = Some("n1".into());
        apply(CacheChange::Object {
            key: Key::cluster("n1"),
            old: None,
            new: Some(Arc::new(lease)),
        });
        tokio::time::advance(STALE_AFTER).await;
        assert!(unresponsive.contains("n1"));
        // The API server is unavailable for a while, so renewals are not seen.
        apply(CacheChange::SyncState(SyncState {
            synced: true,
            problem: Some(WatchProblem::Failing("connection refused".into())),
        }));
        tokio::time::advance(STALE_AFTER).await;
        assert!(!unresponsive.contains("n1"));
        apply(CacheChange::SyncState(SyncState {
            synced: true,
            problem: None,
        }));
        assert!(!unresponsive.contains("n1"), "it has its whole time again");
        tokio::time::advance(STALE_AFTER).await;
        assert!(unresponsive.contains("n1"));
    }

    #[tokio::test(start_paused = true)]
    async fn agent_is_unresponsive_once_the_lease_is_stale_or_absent() {
        let unresponsive = UnresponsiveAgents::new(|| ());
        let apply = |change: CacheChange<Lease>| observe(&mut unresponsive.staleness.lock(), &change, &Trigger::new());
        let clear = || {
            CacheChange::SyncState(SyncState {
                synced: true,
                problem: None,
            })
        };
        let lease = || {
            let mut lease = Lease::default();
            lease.metadata.name = Some("n1".into());
            Arc::new(lease)
        };
        assert_eq!(unresponsive.sign("n1"), AgentSign::MayLive, "nothing was listed");
        tokio::time::advance(STALE_AFTER).await;
        assert_eq!(unresponsive.sign("n1"), AgentSign::MayLive, "nor is it by now");
        apply(clear());
        tokio::time::advance(STALE_AFTER).await;
        assert_eq!(
            unresponsive.sign("n1"),
            AgentSign::Unresponsive,
            "there is no Lease of it"
        );
        apply(CacheChange::Object {
            key: Key::cluster("n1"),
            old: None,
            new: Some(lease()),
        });
        assert_eq!(unresponsive.sign("n1"), AgentSign::MayLive, "it has a Lease by now");
        tokio::time::advance(STALE_AFTER).await;
        assert_eq!(
            unresponsive.sign("n1"),
            AgentSign::Unresponsive,
            "which it has not renewed"
        );
        apply(CacheChange::Object {
            key: Key::cluster("n1"),
            old: Some(lease()),
            new: None,
        });
        assert_eq!(
            unresponsive.sign("n1"),
            AgentSign::MayLive,
            "it may make the Lease again"
        );
        tokio::time::advance(STALE_AFTER).await;
        assert_eq!(unresponsive.sign("n1"), AgentSign::Unresponsive);
    }

    /// A task that leads, over nodes of which `b` alone is unschedulable, and API servers for its requests and its events.
    /// The watch has shown a Lease of each agent.
    async fn fixture(names: &[&str]) -> (LivenessTask, LeaderTerm, ApiServer, ApiServer) {
        let ((client, server), (for_events, events)) = (api_server(), api_server());
        let process = Process::new();
        let (mut leadership, lease_server) = candidate(&process, Trigger::new());
        process.spawn("lease", keep_elected(lease_server));
        let term = leadership.elected().await;
        let node = |name: &&str| {
            let schedulable = if *name == "b" { FALSE } else { TRUE };
            let metadata = json!({"name": name, "uid": name, "labels": {SCHEDULABLE: schedulable}});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let reporter = Reporter {
            component: "drydock-controller",
            instance: "test".into(),
        };
        let unresponsive = UnresponsiveAgents::without_leases();
        for name in names {
            let change = CacheChange::Object {
                key: Key::namespaced(NODE_LEASE_NAMESPACE, name),
                old: None,
                new: Some(Arc::new(serde_json::from_value(lease_at(name, 0)).unwrap())),
            };
            observe(&mut unresponsive.staleness.lock(), &change, &Trigger::new());
        }
        let task = LivenessTask {
            leases: agents_leases(&client),
            api: Api::all(client),
            nodes: AssumeCache::filled(names.iter().map(node)),
            unresponsive,
            changed: Trigger::new(),
            leadership,
            events: Events::start(&process, for_events, reporter, &EventMetrics::default()),
            metrics: ControllerMetrics::default(),
            process,
        };
        (task, term, server, events)
    }

    /// The Lease of an agent that was renewed in this second.
    fn lease_at(name: &str, second: u8) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": NODE_LEASE_NAMESPACE},
            "spec": {"holderIdentity": "agent", "renewTime": format!("2026-05-01T10:00:{second:02}.000000Z")},
        })
    }

    async fn serve_lease(server: &mut ApiServer, name: &str, second: u8) {
        let request = server.next_request().await;
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASE_NAMESPACE}/leases/{name}");
        assert_eq!((&request.method, request.path()), (&Method::GET, path.as_str()));
        request.with(&lease_at(name, second));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_of_unresponsive_agents_become_unschedulable() {
        let (task, term, mut server, mut events) = fixture(&["a", "b", "deleted", "c"]).await;
        tokio::time::sleep(STALE_AFTER).await;
        let stale = ["a", "b", "absent", "deleted", "c"].map(str::to_owned);
        let served = async {
            serve_lease(&mut server, "a", 0).await;
            let request = server.next_request().await;
            assert_eq!(request.path(), "/api/v1/nodes/a");
            assert_eq!(request.body, json!({"metadata": {"labels": {SCHEDULABLE: FALSE}}}));
            request.with(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}));
            serve_lease(&mut server, "deleted", 0).await;
            let request = server.next_request().await;
            assert_eq!(request.path(), "/api/v1/nodes/deleted");
            request.refuse(404, "NotFound");
            serve_lease(&mut server, "c", 0).await;
            server.next_request().await.refuse(500, "InternalError");
        };
        let (result, ()) = tokio::join!(task.mark_unschedulable(&stale, &term), served);
        assert!(result.is_err(), "the third is tried again");
        let event = events.next_request().await;
        assert_eq!(
            (&event.body["reason"], &event.body["regarding"]["name"]),
            (&json!(NODE_UNRESPONSIVE), &json!("a"))
        );
        assert_eq!(task.metrics.became_unresponsive.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn agent_with_unwatched_renewals_stays_schedulable() {
        let (task, term, mut server, _events) = fixture(&["a"]).await;
        let served = async {
            // Each verdict costs one read, and the next one is due once the renewal that it showed is stale.
            for second in [1, 2, 3] {
                tokio::time::sleep(STALE_AFTER).await;
                serve_lease(&mut server, "a", second).await;
                assert!(server.is_left_alone_for(STALE_AFTER / 2).await);
                assert_eq!(task.unresponsive.sign("a"), AgentSign::MayLive);
            }
            // Where it cannot be read, nothing follows from it, until it can.
            server.next_request().await.refuse(500, "InternalError");
            serve_lease(&mut server, "a", 3).await;
            let request = server.next_request().await;
            assert_eq!((&request.method, request.path()), (&Method::PATCH, "/api/v1/nodes/a"));
        };
        tokio::select! {
            () = task.watch_over(term) => panic!("the term lasts"),
            () = served => {}
        }
    }
}
