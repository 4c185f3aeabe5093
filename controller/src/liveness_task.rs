//! Keeps virtual machines off nodes whose agent is unresponsive.
//!
//! An agent renews its Lease every ten seconds. A Lease that has not changed for forty seconds, by this process's own
//! clock, is stale: the label `kubevirt.io/schedulable` of its node becomes false, with an event. The agent resets the
//! label once it works again. [`UnresponsiveAgents`] provides this state to other tasks, also for nodes whose Node
//! object was deleted: the deletion proves that no guest runs on the node only if the agent is unresponsive as well.
//!
//! A watch whose connection has broken unnoticed shows no renewals. A Lease is therefore read before its staleness
//! changes a node or proves that the node no longer exists.

use std::{sync::Arc, time::Duration};

use drydock_api::{
    labels::{FALSE, SCHEDULABLE, TRUE},
    leases::{NODE_LEASE_NAMESPACE, STALE_AFTER},
    reasons::events::NODE_UNRESPONSIVE,
};
use drydock_core::instance::AgentSign;
use drydock_runtime::{
    AssumeCache, CacheChange, EventRecorder, Events, Key, Severity, Trigger, Watch, WatchStarter,
    clock::Instant,
    lease::{LeaderTerm, Staleness},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client, ResourceExt, api::Patch};
use parking_lot::Mutex;
use serde_json::json;
use tracing::info;

use crate::{
    metrics::ControllerMetrics,
    reconciler::triggered::Triggered,
    requests::{patching, unless_missing},
};

/// Parts of a Lease that change with a renewal: holder and renewal time.
type Stamp = (Option<String>, Option<MicroTime>);

/// Set of unresponsive agents. Clones share the state.
#[derive(Clone)]
pub(crate) struct UnresponsiveAgents {
    staleness: Arc<Mutex<Staleness<Stamp>>>,
    on_change: Arc<dyn Fn() + Send + Sync>,
    /// Notified when the task has to reconcile: a Lease has changed, or a read has returned a state that the watch has
    /// not shown.
    changed: Trigger,
}

impl UnresponsiveAgents {
    /// Starts without any known Lease. `on_change` is called when the set of unresponsive agents changes.
    pub(crate) fn new(on_change: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            staleness: Arc::new(Mutex::new(Staleness::new(STALE_AFTER))),
            on_change: Arc::new(on_change),
            changed: Trigger::new(),
        }
    }

    /// Notifies `changed` when the task has to reconcile.
    pub(crate) fn notifying(mut self, changed: Trigger) -> Self {
        self.changed = changed;
        self
    }

    /// Creates the state after a list without Leases.
    #[cfg(test)]
    pub(crate) fn without_leases() -> Self {
        let unresponsive = Self::new(|| ());
        unresponsive.staleness.lock().restart(Instant::now());
        unresponsive
    }

    /// Returns whether the agent of this node may be alive. An agent is unresponsive if its Lease is stale or absent.
    pub(crate) fn sign(&self, node: &str) -> AgentSign {
        let (known, now) = (self.staleness.lock(), Instant::now());
        if known.is_stale(node, now) || known.is_absent(node, now) {
            AgentSign::Unresponsive
        } else {
            AgentSign::MayLive
        }
    }

    /// Returns whether the agent of this node may be alive. An unresponsive agent is confirmed by reading its Lease.
    ///
    /// # Errors
    /// If the Lease cannot be read. The agent may be alive in this case.
    pub(crate) async fn confirmed_sign(&self, leases: &Api<Lease>, node: &str) -> kube::Result<AgentSign> {
        if self.sign(node) == AgentSign::MayLive {
            return Ok(AgentSign::MayLive);
        }
        let read = leases.get_opt(node).await?;
        let stamp = read.as_ref().map(stamp_of);
        if self.staleness.lock().confirm(node, stamp, Instant::now()) {
            return Ok(AgentSign::Unresponsive);
        }
        self.changed.notify();
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
    events: EventRecorder,
    metrics: ControllerMetrics,
}

/// State that is kept between reconciles.
#[derive(Debug, Default)]
pub(crate) struct KeptLiveness {
    stale: Vec<String>,
    next_absence: Option<Instant>,
    /// Time at which the next Lease becomes stale or is known to be absent.
    due: Option<Instant>,
}

impl Triggered for LivenessTask {
    type Kept = KeptLiveness;
    const NAME: &'static str = "liveness";
    const RETRY: (Duration, Duration) = (Duration::from_secs(1), STALE_AFTER);
    const FAILURE: &'static str = "a node with an unresponsive agent could not be made unschedulable";

    /// No wait is needed: only a Lease that was shown can be stale, and only a node that was shown is changed.
    async fn wait_until_synced(&self) {}

    async fn reconcile(&self, kept: &mut KeptLiveness, term: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
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
        // A different or missing next absence means that the previous one now counts.
        if stale != kept.stale || next_absence != kept.next_absence {
            (self.unresponsive.on_change)();
        }
        *kept = KeptLiveness {
            stale,
            next_absence,
            due: [next, next_absence].into_iter().flatten().min(),
        };
        self.mark_unschedulable(&kept.stale, || term.is_valid()).await?;
        Ok(None)
    }

    fn due(kept: &KeptLiveness) -> Option<Instant> {
        kept.due
    }
}

impl LivenessTask {
    /// Starts the watch of the Leases.
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        nodes: AssumeCache<Node>,
        unresponsive: UnresponsiveAgents,
        events: &Events,
        metrics: ControllerMetrics,
    ) -> Self {
        let observed = unresponsive.clone();
        let leases = Watch::<Lease>::namespaced(client.clone(), NODE_LEASE_NAMESPACE, "agents' leases")
            .prune(|lease| {
                lease.metadata.annotations = None;
                lease.metadata.labels = None;
            })
            .on_change(move |change| observe(&mut observed.staleness.lock(), change, &observed.changed));
        watches.start(leases);
        Self {
            leases: agents_leases(&client),
            api: Api::all(client),
            nodes,
            unresponsive,
            events: events.recorder("Watch"),
            metrics,
        }
    }

    /// Makes each of these nodes unschedulable as long as this process `leads`, unless the node already is or its agent
    /// turns out to be alive.
    ///
    /// # Errors
    /// The first error of a request to the API server, after the other nodes were handled.
    async fn mark_unschedulable(&self, stale: &[String], leads: impl Fn() -> bool) -> kube::Result<()> {
        let mut result = Ok(());
        for name in stale {
            let Some(node) = self.nodes.shown().get(&Key::cluster(name)) else {
                continue;
            };
            // A node that cannot be marked does not delay the others.
            result = result.and(self.mark(name, &node, &leads).await);
        }
        result
    }

    async fn mark(&self, name: &str, node: &Node, leads: &impl Fn() -> bool) -> kube::Result<()> {
        if node.labels().get(SCHEDULABLE).map(String::as_str) != Some(TRUE)
            || self.unresponsive.confirmed_sign(&self.leases, name).await? == AgentSign::MayLive
            || !leads()
        {
            return Ok(());
        }
        let patch = json!({"metadata": {"labels": {SCHEDULABLE: FALSE}}});
        let response = self.api.patch_metadata(name, &patching(), &Patch::Merge(patch)).await;
        if unless_missing(response)?.is_none() {
            return Ok(());
        }
        info!(
            node = name,
            "the agent is unresponsive, the node accepts no new virtual machines"
        );
        self.metrics.became_unresponsive.inc();
        let note = format!(
            "the node's agent has not renewed its Lease for {} s: the node accepts no new virtual machines until the \
             Lease is renewed",
            STALE_AFTER.as_secs()
        );
        self.events.record(node, Severity::Warning, NODE_UNRESPONSIVE, note);
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

/// Records a change of a Lease.
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use drydock_runtime::{
        EventMetrics, Process, Reporter, SyncState, WatchProblem, WorkQueueMetrics,
        fake::{ApiServer, ReceivedRequest, api_server, candidate, keep_elected, keep_elected_while},
    };
    use http::Method;
    use serde_json::Value;

    use super::*;
    use crate::{
        fake_cluster::{
            FakeCluster,
            write_faults::{Again, Scenario, check_each_write},
        },
        reconciler::triggered::{keep_reconciling, run},
    };

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
        // The API server is unavailable for a while, so renewals are not shown.
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

    /// Returns a task like [`task_over`], the term in which it leads, and API servers for its requests and its events.
    async fn fixture(names: &[&str]) -> (LivenessTask, LeaderTerm, ApiServer, ApiServer) {
        let ((client, server), (for_events, events_server)) = (api_server(), api_server());
        let process = Process::new();
        let (mut leadership, lease_server) = candidate(&process, Trigger::new());
        process.spawn("lease", keep_elected(lease_server));
        let term = leadership.elected().await;
        let reporter = Reporter {
            component: "drydock-controller",
            instance: "test".into(),
        };
        let events = Events::start(&process, for_events, reporter, &EventMetrics::default());
        (task_over(names, client, &events), term, server, events_server)
    }

    /// Returns a task with nodes of which only `b` is unschedulable. The watch has shown a Lease of each agent.
    fn task_over(names: &[&str], client: Client, events: &Events) -> LivenessTask {
        let node = |name: &&str| {
            let schedulable = if *name == "b" { FALSE } else { TRUE };
            let metadata = json!({"name": name, "uid": name, "labels": {SCHEDULABLE: schedulable}});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
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
        LivenessTask {
            leases: agents_leases(&client),
            api: Api::all(client),
            nodes: AssumeCache::filled(names.iter().map(node)),
            unresponsive,
            events: events.recorder("Watch"),
            metrics: ControllerMetrics::default(),
        }
    }

    /// Returns the Lease of an agent that was renewed in this second.
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
        let (result, ()) = tokio::join!(task.mark_unschedulable(&stale, || term.is_valid()), served);
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
            // Each stale Lease costs one read. The next read is due when the renewal that this one has returned is
            // stale.
            for second in [1, 2, 3] {
                tokio::time::sleep(STALE_AFTER).await;
                serve_lease(&mut server, "a", second).await;
                assert!(server.is_left_alone_for(STALE_AFTER / 2).await);
                assert_eq!(task.unresponsive.sign("a"), AgentSign::MayLive);
            }
            // If a Lease cannot be read, nothing is changed until it can be read.
            server.next_request().await.refuse(500, "InternalError");
            serve_lease(&mut server, "a", 3).await;
            let request = server.next_request().await;
            assert_eq!((&request.method, request.path()), (&Method::PATCH, "/api/v1/nodes/a"));
        };
        let metrics = WorkQueueMetrics::default().of_reconciler(LivenessTask::NAME);
        let reconciles = keep_reconciling(&task, &task.unresponsive.changed, &term, &metrics);
        tokio::select! {
            () = reconciles => panic!("the term lasts"),
            () = served => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn node_that_cannot_be_marked_holds_up_no_other() {
        for is_read in [true, false] {
            let (task, term, mut server, _events) = fixture(&["a", "c"]).await;
            tokio::time::sleep(STALE_AFTER).await;
            let stale = ["a", "c"].map(str::to_owned);
            let served = async {
                if is_read {
                    serve_lease(&mut server, "a", 0).await;
                }
                server.next_request().await.refuse(403, "Forbidden");
                serve_lease(&mut server, "c", 0).await;
                let request = server.next_request().await;
                assert_eq!(request.path(), "/api/v1/nodes/c");
                request.with(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c"}}));
            };
            let (result, ()) = tokio::join!(task.mark_unschedulable(&stale, || term.is_valid()), served);
            assert!(result.is_err(), "the first is tried again");
        }
    }

    /// A scenario with two nodes whose agents are unresponsive.
    struct Silence(LivenessTask);

    impl Scenario for Silence {
        fn start(client: Client, events: Events) -> Self {
            Self(task_over(&["a", "c"], client, &events))
        }

        fn show(&self, cluster: &FakeCluster) {
            self.0.nodes.show(cluster.all("nodes"));
        }

        async fn begin(&self) {
            tokio::time::sleep(STALE_AFTER).await;
        }

        async fn reconcile(&self) -> Again {
            let stale = ["a", "c"].map(str::to_owned);
            match self.0.mark_unschedulable(&stale, || true).await {
                Ok(()) => Again::OnChange,
                Err(_) => Again::Failed,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn marks_of_two_nodes_survive_each_write_fault() {
        let node = |name: &str| json!({"metadata": {"name": name, "uid": name, "labels": {SCHEDULABLE: TRUE}}});
        let leases = "/apis/coordination.k8s.io/v1/namespaces/drydock-nodes/leases";
        assert!(leases.contains(NODE_LEASE_NAMESPACE));
        let cluster = || {
            FakeCluster::with([
                ("/api/v1/nodes", node("a")),
                ("/api/v1/nodes", node("c")),
                (leases, lease_at("a", 0)),
                (leases, lease_at("c", 0)),
            ])
        };
        check_each_write::<Silence>(cluster, &["PATCH nodes/a", "PATCH nodes/c"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_node_is_marked_after_the_leadership_was_lost() {
        let requests = ["GET a", "PATCH a", "GET c", "PATCH c"];
        let kind = |request: &ReceivedRequest| {
            let name = request.path().rsplit('/').next().unwrap_or_default();
            format!("{} {name}", request.method)
        };
        for lost_at in 0..requests.len() {
            let ((client, mut server), (for_events, _events)) = (api_server(), api_server());
            let process = Process::new();
            let (leadership, lease_server) = candidate(&process, Trigger::new());
            let reporter = Reporter {
                component: "drydock-controller",
                instance: "test".into(),
            };
            let events = Events::start(&process, for_events, reporter, &EventMetrics::default());
            let task = task_over(&["a", "c"], client, &events);
            let leads = Arc::new(AtomicBool::new(true));
            let changed = task.unresponsive.changed.clone();
            let metrics = WorkQueueMetrics::default();
            let running = run(task, changed, leadership.clone(), process.clone(), metrics);
            let served = |request: ReceivedRequest, expected: &str| {
                assert_eq!(kind(&request), expected, "lost at {}", requests[lost_at]);
                let name = expected.rsplit(' ').next().unwrap_or_default();
                request.with(&lease_at(name, 0));
            };
            let test = async {
                for expected in &requests[..lost_at] {
                    served(server.next_request().await, expected);
                }
                let outstanding = server.next_request().await;
                leads.store(false, Ordering::Relaxed);
                while leadership.term().is_some() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                served(outstanding, requests[lost_at]);
                assert!(server.is_left_alone_for(Duration::from_secs(600)).await);
                leads.store(true, Ordering::Relaxed);
                for expected in requests {
                    served(server.next_request().await, expected);
                }
                process.stop();
            };
            tokio::select! {
                ((), ()) = async { tokio::join!(running, test) } => {}
                () = keep_elected_while(lease_server, Arc::clone(&leads)) => {}
            }
        }
    }
}
