//! What this agent knows about its host, either from its own inspection or recovered from an earlier agent's report,
//! and when to inspect again.

use std::sync::Arc;

use drydock_api::{
    facts::{FactsFingerprint, NodeFacts},
    hypervisor::InspectionRecord,
};
use drydock_core::{
    conditions::whole_seconds,
    inspection::{Failed, History, Need, changed, need},
    labels,
    node::InspectionFailure,
};
use drydock_host::{fingerprint, inspection::InspectionReport, memory, roots::Roots};
use drydock_runtime::{Process, chain, clock};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::{
    args::AgentRunArgs,
    inspector::{self, InspectorError},
    metrics::AgentMetrics,
};

/// Facts, and the record of the inspection that found them.
type InspectedFacts = (NodeFacts, InspectionRecord);

/// The result of an inspection; `None` if the process is about to stop.
pub(crate) type InspectionResult = Option<Result<InspectionReport, InspectorError>>;

/// Knowledge about the host.
pub(crate) struct HostKnowledge {
    args: Arc<AgentRunArgs>,
    process: Process,
    metrics: AgentMetrics,
    /// Found by this process.
    found: Option<InspectedFacts>,
    /// Found by an earlier process, read from its Hypervisor.
    recovered: Option<InspectedFacts>,
    history: History,
    failure: Option<InspectionFailure>,
    running: Option<oneshot::Receiver<Result<InspectionReport, InspectorError>>>,
    /// Fingerprint of the host at the last check.
    present: FactsFingerprint,
    /// When to check again, independent of how the wall clock is set.
    next_check: Option<clock::Instant>,
    concluded: bool,
}

impl HostKnowledge {
    /// Creates the state without any knowledge.
    pub(crate) fn new(args: Arc<AgentRunArgs>, process: Process, metrics: AgentMetrics) -> Self {
        Self {
            args,
            process,
            metrics,
            found: None,
            recovered: None,
            history: History::default(),
            failure: None,
            running: None,
            present: FactsFingerprint::default(),
            next_check: None,
            concluded: false,
        }
    }

    /// Adopts the facts of an earlier agent.
    pub(crate) fn recover(&mut self, found: Option<InspectedFacts>) {
        self.recovered = found;
    }

    /// Returns the facts to use. Facts of an earlier agent are used while nothing that they depend on has changed, or
    /// if this agent's own inspection has failed.
    pub(crate) fn facts(&self) -> Option<(&NodeFacts, &InspectionRecord)> {
        let recovered = || {
            self.recovered
                .as_ref()
                .filter(|(_, record)| self.failure.is_some() || changed(&record.fingerprint, &self.present).is_empty())
        };
        self.found
            .as_ref()
            .or_else(recovered)
            .map(|(facts, record)| (facts, record))
    }

    /// Returns why the last inspection failed, if it did.
    pub(crate) fn failure(&self) -> Option<&InspectionFailure> {
        self.failure.as_ref()
    }

    /// Returns when to check the host again.
    pub(crate) fn next_check(&self) -> Option<clock::Instant> {
        self.next_check
    }

    /// Returns whether an inspection by this process has ended, successfully or not.
    pub(crate) fn is_concluded(&self) -> bool {
        self.concluded
    }

    /// Checks whether the host has changed, and starts an inspection if so. Returns whether it started one.
    pub(crate) fn check(&mut self, now: Timestamp) -> bool {
        let interval = self.args.fingerprint_interval;
        self.next_check = Some(clock::Instant::now() + interval);
        if self.running.is_some() {
            // Changes in the meantime are detected once it has ended.
            return false;
        }
        self.present = fingerprint::fingerprint(&Roots::default(), &inspector::programs(&self.args.host));
        match need(&self.history, &self.present, now) {
            Need::None => false,
            Need::At(retry) => {
                self.next_check = Some(clock::Instant::now() + clock::until(retry, now).min(interval));
                false
            }
            Need::Now(parts) => {
                info!(changed = parts.join(", "), "inspecting the host");
                self.running = Some(self.inspect());
                true
            }
        }
    }

    fn inspect(&self) -> oneshot::Receiver<Result<InspectionReport, InspectorError>> {
        let (sender, receiver) = oneshot::channel();
        let (args, stopping) = (Arc::clone(&self.args), self.process.stopping());
        self.process.spawn("inspection", async move {
            if let Some(report) = stopping
                .run_until_cancelled(inspector::inspect(&args.host, &args.capabilities()))
                .await
            {
                // The receiver is dropped only when the process stops.
                let _ = sender.send(report);
            }
        });
        receiver
    }

    /// Waits for the running inspection to end, or for ever if none runs.
    pub(crate) async fn ended(&mut self) -> InspectionResult {
        match &mut self.running {
            Some(running) => running.await.ok(),
            None => std::future::pending().await,
        }
    }

    /// Processes the result of an inspection.
    pub(crate) fn conclude(&mut self, ended: InspectionResult, now: Timestamp) {
        self.running = None;
        let Some(ended) = ended else { return };
        self.concluded = true;
        // Check again at once: the host may have changed during the inspection, and after a failure the check
        // schedules the retry.
        self.next_check = Some(clock::Instant::now());
        let failure = match ended {
            Err(error) => {
                self.metrics.inspected(Err(error.reason()), 0);
                InspectionFailure {
                    reason: error.reason().into(),
                    message: chain(&error).to_string(),
                }
            }
            Ok(InspectionReport { facts, problem, took }) => {
                let took_milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                let record = InspectionRecord {
                    at: whole_seconds(now),
                    took_milliseconds,
                    fingerprint: self.present.clone(),
                    stale: false,
                };
                match problem.filter(|_| labels::is_supported(&facts.architecture)) {
                    None => {
                        info!(milliseconds = took_milliseconds, "the host is inspected");
                        self.metrics.inspected(Ok(()), took_milliseconds);
                        self.succeeded((facts, record));
                        return;
                    }
                    Some(problem) => {
                        self.metrics.inspected(Err(problem.reason()), took_milliseconds);
                        // The facts from the processor and the kernel are valid even so.
                        if self.recovered.is_none() {
                            self.found.get_or_insert((facts, record));
                        }
                        InspectionFailure {
                            reason: problem.reason().into(),
                            message: problem.to_string(),
                        }
                    }
                }
            }
        };
        warn!(reason = %failure.reason, "{}", failure.message);
        self.failure = Some(failure);
        let times = self.history.failed.as_ref().map_or(0, |failed| failed.times) + 1;
        self.history.failed = Some(Failed {
            times,
            at: now,
            fingerprint: self.present.clone(),
        });
    }

    fn succeeded(&mut self, found: InspectedFacts) {
        self.history = History {
            inspected: Some(found.1.fingerprint.clone()),
            failed: None,
        };
        self.found = Some(found);
        self.recovered = None;
        self.failure = None;
        // Returns the memory of the report before the agent goes idle.
        memory::trim();
    }
}
