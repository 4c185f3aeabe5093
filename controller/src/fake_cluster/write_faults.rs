//! Runs a task's scenario once for each write and each kind of failure, and once for each write that is outstanding
//! when the leadership is lost. The cluster has to end in the same state as without failures.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use drydock_runtime::{
    EventMetrics, Events, Process, Reporter, Requeue,
    clock::test_clock::FollowedClock,
    fake::{ApiServer, ReceivedRequest, WriteFault, api_server},
};
use http::Method;
use kube::Client;
use serde_json::Value;

use super::{FakeCluster, REPLACEMENT};
use crate::reconciler::ReconcileError;

/// Maximum number of reconciles until a scenario is settled. All scenarios need far fewer, and a hot loop would need
/// far more.
const MAX_ROUNDS: usize = 60;
/// Maximum wait for each further event at the end of a scenario.
const EVENTS_WITHIN: Duration = Duration::from_secs(2);

/// Time at which a task wants to reconcile again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// After a back-off, because the reconcile has failed.
    Failed,
    /// At a certain time.
    At,
    /// On the next change.
    OnChange,
}

impl Again {
    /// Returns the earlier one of two times.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
            (Self::At, _) | (_, Self::At) => Self::At,
            _ => Self::OnChange,
        }
    }
}

impl From<Result<Requeue, ReconcileError>> for Again {
    fn from(result: Result<Requeue, ReconcileError>) -> Self {
        match result {
            Err(_) => Self::Failed,
            Ok(Requeue::At(_)) => Self::At,
            Ok(Requeue::OnChange) => Self::OnChange,
        }
    }
}

/// A scenario: a task in a cluster, and the actions of other components.
pub(crate) trait Scenario: Sized {
    /// Creates the task with empty caches, as a new process does.
    fn start(client: Client, events: Events) -> Self;

    /// Updates the caches with the state of the cluster, like the watches.
    fn show(&self, cluster: &FakeCluster);

    /// Begins a leadership term.
    async fn begin(&self) {}

    /// Reconciles once.
    async fn reconcile(&self) -> Again;

    /// Performs the actions of other components, such as the scheduler and agents, once the task has nothing more to
    /// do.
    fn act(_: &mut FakeCluster) {}

    /// Ends the back-off from refusals.
    fn end_back_off(&self) {}

    /// Returns whether a creation or deletion has to be executed as often as without a fault.
    fn is_counted(_change: &str) -> bool {
        true
    }

    /// Removes parts of an object that may differ in the end, such as a history.
    fn normalize(_object: &mut Value) {}

    /// Returns state that the task keeps in memory and that has to be the same in the end, such as slots.
    fn kept(&self) -> String {
        String::new()
    }

    /// Returns whether another task repeats a write that fails.
    fn is_repeated_by_others(_write: &str) -> bool {
        false
    }

    /// Returns whether another process may record an event once more.
    fn is_recorded_again_elsewhere(_reason: &str) -> bool {
        false
    }

    /// Returns the reason of the event that reports the refusal of a write, if the product guarantees such a report.
    fn refusal_event(_write: &str) -> Option<&'static str> {
        None
    }

    /// Returns whether the status reports the refusal of a write, if the product guarantees that.
    fn reports_refusal(_write: &str, _cluster: &FakeCluster) -> bool {
        true
    }
}

/// Fault that is injected at the write with a number.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// The write with this number fails.
    Fault(usize, WriteFault),
    /// The leadership is lost while the write is outstanding.
    LeadershipLost {
        number: usize,
        executed: bool,
        /// Whether another process leads in the next term.
        elsewhere: bool,
    },
}

impl Trouble {
    fn fault(self) -> Option<(usize, WriteFault)> {
        match self {
            Self::Fault(number, fault) => Some((number, fault)),
            _ => None,
        }
    }
}

/// Outcome of a scenario.
struct Outcome {
    objects: BTreeMap<String, Value>,
    kept: String,
    writes: Vec<String>,
    /// Executed creations and deletions, sorted by name.
    changes: Vec<String>,
    events: Vec<String>,
    replaced: Option<String>,
}

/// A running scenario.
struct Run<S> {
    scenario: S,
    cluster: FakeCluster,
    server: ApiServer,
    events_server: ApiServer,
    events: Vec<String>,
    process: Process,
    trouble: Trouble,
}

/// Outcome of one reconcile.
struct Round {
    /// Time of the next reconcile; `None` if the leadership was lost.
    again: Option<Again>,
    /// Whether the injected failure has occurred.
    has_failed: bool,
}

fn start<S: Scenario>() -> (S, ApiServer, ApiServer, Process) {
    let ((client, server), (for_events, events_server)) = (api_server(), api_server());
    let process = Process::new();
    let reporter = Reporter {
        component: "drydock-controller",
        instance: "test".into(),
    };
    let events = Events::start(&process, for_events, reporter, &EventMetrics::default());
    (S::start(client, events), server, events_server, process)
}

impl<S: Scenario> Run<S> {
    fn new(cluster: FakeCluster, trouble: Trouble) -> Self {
        let (scenario, server, events_server, process) = start::<S>();
        scenario.show(&cluster);
        Self {
            scenario,
            cluster,
            server,
            events_server,
            events: Vec::new(),
            process,
            trouble,
        }
    }

    /// Returns the injected fault and its write, for messages.
    fn shown(&self) -> String {
        let number = match self.trouble {
            Trouble::None => return "without a fault".into(),
            Trouble::Fault(number, _) | Trouble::LeadershipLost { number, .. } => number,
        };
        let write = self.cluster.writes.get(number);
        format!(
            "{:?} of {}",
            self.trouble,
            write.map_or("a write to come", String::as_str)
        )
    }

    /// Reconciles once, after the start of a term if `begins`, and serves the requests.
    async fn reconcile(&mut self, begins: bool) -> Round {
        let Self {
            scenario,
            cluster,
            server,
            events_server,
            events,
            trouble,
            ..
        } = self;
        let mut has_failed = false;
        let mut reconciling = pin!(async {
            if begins {
                scenario.begin().await;
            }
            scenario.reconcile().await
        });
        loop {
            let request = tokio::select! {
                biased;
                event = events_server.next_request() => {
                    note(events, event);
                    continue;
                }
                again = &mut reconciling => return Round { again: Some(again), has_failed },
                request = server.next_request() => request,
            };
            let request = match *trouble {
                Trouble::LeadershipLost { number, executed, .. } => match cluster.cut(request, number, executed) {
                    None => {
                        return Round {
                            again: None,
                            has_failed: true,
                        };
                    }
                    Some(request) => request,
                },
                _ => request,
            };
            has_failed |= cluster.serve(request, trouble.fault());
        }
    }

    /// Makes another process lead.
    fn begin_elsewhere(&mut self) {
        self.process.stop();
        (self.scenario, self.server, self.events_server, self.process) = start::<S>();
    }

    /// Reconciles until neither the task nor other components do anything more.
    async fn settle(mut self) -> Outcome {
        let mut begins = true;
        for _ in 0..MAX_ROUNDS {
            let before = self.cluster.writes.len();
            let round = self.reconcile(begins).await;
            begins = round.again.is_none();
            match (round.again, self.trouble) {
                (None, Trouble::LeadershipLost { elsewhere: true, .. }) => self.begin_elsewhere(),
                (Some(again), _) if round.has_failed => self.check_failed(again),
                _ => {}
            }
            let is_quiet =
                before == self.cluster.writes.len() && matches!(round.again, Some(Again::OnChange | Again::At));
            let before = self.cluster.snapshot();
            if is_quiet {
                S::act(&mut self.cluster);
            }
            let is_settled = is_quiet && before == self.cluster.snapshot();
            self.scenario.show(&self.cluster);
            self.scenario.end_back_off();
            if is_settled {
                return self.end().await;
            }
        }
        panic!("{}: never settled: {:#?}", self.shown(), self.cluster.writes);
    }

    /// Checks the result of the reconcile with the failed write.
    fn check_failed(&self, again: Again) {
        let Trouble::Fault(number, fault) = self.trouble else {
            return;
        };
        let write = &self.cluster.writes[number];
        let shown = self.shown();
        // The watch will show the change of another writer, or the own write.
        let is_followed_by_a_change = matches!(fault, WriteFault::Conflict | WriteFault::LostResponse);
        let is_repeated = again != Again::OnChange || is_followed_by_a_change;
        assert!(
            is_repeated || S::is_repeated_by_others(write),
            "{shown}: is never repeated"
        );
        if fault == WriteFault::Refused {
            assert!(S::reports_refusal(write, &self.cluster), "{shown}: is not reported");
        }
    }

    async fn end(mut self) -> Outcome {
        while let Ok(event) = tokio::time::timeout(EVENTS_WITHIN, self.events_server.next_request()).await {
            note(&mut self.events, event);
        }
        let mut changes = self.cluster.changes.clone();
        changes.retain(|change| S::is_counted(change));
        changes.sort();
        let mut objects = self.cluster.snapshot();
        objects.values_mut().for_each(S::normalize);
        Outcome {
            objects,
            kept: self.scenario.kept(),
            writes: self.cluster.writes.clone(),
            replaced: self.cluster.replaced.clone(),
            changes,
            events: self.events,
        }
    }
}

/// Runs a scenario that starts with `cluster`. Without a fault, its writes have to be `expected`. Then runs it with
/// each fault at each of these writes.
pub(crate) async fn check_each_write<S: Scenario>(cluster: impl Fn() -> FakeCluster, expected: &[&str]) {
    let _clock = FollowedClock::follow();
    let usual = Run::<S>::new(cluster(), Trouble::None).settle().await;
    assert_eq!(usual.writes, expected);
    for (number, write) in usual.writes.iter().enumerate() {
        for fault in WriteFault::ALL {
            check::<S>(&cluster, &usual, write, Trouble::Fault(number, fault)).await;
        }
        for (executed, elsewhere) in [(false, false), (false, true), (true, false), (true, true)] {
            let lost = Trouble::LeadershipLost {
                number,
                executed,
                elsewhere,
            };
            check::<S>(&cluster, &usual, write, lost).await;
        }
    }
}

/// Runs a scenario with this fault at this write, and compares the outcome with the usual one.
async fn check<S: Scenario>(cluster: impl Fn() -> FakeCluster, usual: &Outcome, write: &str, trouble: Trouble) {
    let shown = format!("{trouble:?} of {write}");
    let outcome = Run::<S>::new(cluster(), trouble).settle().await;
    let fault = trouble.fault().map(|(_, fault)| fault);
    let written = &outcome.writes;
    assert!(
        written.len() <= usual.writes.len() * 2 + 4,
        "{shown}: too many writes: {written:#?}"
    );
    if let Some(replaced) = &outcome.replaced {
        let object = outcome.objects.get(replaced);
        let is_there = object.is_some_and(|object| object["metadata"]["uid"] == REPLACEMENT);
        assert!(is_there, "{shown}: the replacement was deleted");
        return;
    }
    for (path, object) in &usual.objects {
        assert_eq!(
            outcome.objects.get(path),
            Some(object),
            "{shown}: {path} after {written:#?}"
        );
    }
    let others = outcome.objects.keys().filter(|path| !usual.objects.contains_key(*path));
    assert_eq!(
        others.collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "{shown}: objects too many"
    );
    assert_eq!(outcome.changes, usual.changes, "{shown}: creations and deletions");
    assert_eq!(outcome.kept, usual.kept, "{shown}: what is kept in memory");
    let refusal = fault
        .filter(|fault| *fault == WriteFault::Refused)
        .and_then(|_| S::refusal_event(write));
    if let Some(refusal) = refusal {
        assert!(
            outcome.events.iter().any(|reason| reason == refusal),
            "{shown}: no event {refusal}"
        );
    }
    let count = |events: &[String], reason: &String| events.iter().filter(|other| *other == reason).count();
    for reason in outcome.events.iter().filter(|reason| Some(reason.as_str()) != refusal) {
        let (seen, expected) = (count(&outcome.events, reason), count(&usual.events, reason));
        let is_elsewhere = matches!(trouble, Trouble::LeadershipLost { elsewhere: true, .. });
        let is_repeated = is_elsewhere && S::is_recorded_again_elsewhere(reason);
        assert!(
            seen <= expected + usize::from(is_repeated),
            "{shown}: event {reason} {seen} times instead of {expected}"
        );
    }
}

/// Records an event, and accepts it.
fn note(events: &mut Vec<String>, event: ReceivedRequest) {
    if event.method == Method::POST {
        events.push(event.body["reason"].as_str().unwrap_or_default().to_owned());
    }
    let stored = event.body.clone();
    event.with(&stored);
}
