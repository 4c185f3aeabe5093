//! Knowledge of this agent about its host, and the time of the next inspection.
//!
//! The facts come from the agent's own inspection or are recovered from the report of an earlier agent.

use std::sync::Arc;

use drydock_api::{facts::NodeFacts, hypervisor::InspectionRecord};
use drydock_core::{
    conditions::whole_seconds,
    inspection::{InspectedFacts, KnownFacts, Need},
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

/// The result of an inspection; `None` if the process is about to stop.
pub(crate) type InspectionResult = Option<Result<InspectionReport, InspectorError>>;

/// Knowledge about the host.
pub(crate) struct HostKnowledge {
    args: Arc<AgentRunArgs>,
    process: Process,
    metrics: AgentMetrics,
    known: KnownFacts,
    running: Option<oneshot::Receiver<Result<InspectionReport, InspectorError>>>,
    /// Time of the next check, independent of changes to the wall clock.
    next_check: Option<clock::Instant>,
}

impl HostKnowledge {
    /// Creates the state without any facts.
    pub(crate) fn new(args: Arc<AgentRunArgs>, process: Process, metrics: AgentMetrics) -> Self {
        Self {
            args,
            process,
            metrics,
            known: KnownFacts::default(),
            running: None,
            next_check: None,
        }
    }

    /// Adopts the facts of an earlier agent.
    pub(crate) fn recover(&mut self, found: Option<InspectedFacts>) {
        self.known.recover(found);
    }

    /// Returns the facts that are currently in use.
    pub(crate) fn facts(&self) -> Option<(&NodeFacts, &InspectionRecord)> {
        self.known.facts()
    }

    /// Returns the failure of the last inspection; `None` if it did not fail.
    pub(crate) fn failure(&self) -> Option<&InspectionFailure> {
        self.known.failure()
    }

    /// Returns the time of the next check of the host.
    pub(crate) fn next_check(&self) -> Option<clock::Instant> {
        self.next_check
    }

    /// Returns whether an inspection by this process has ended, successfully or not.
    pub(crate) fn is_concluded(&self) -> bool {
        self.known.has_ended()
    }

    /// Checks whether the host has changed and, if so, starts an inspection. Returns whether an inspection was started.
    pub(crate) fn check(&mut self, now: Timestamp) -> bool {
        let interval = self.args.fingerprint_interval;
        self.next_check = Some(clock::Instant::now() + interval);
        if self.running.is_some() {
            // Changes during the inspection are detected by the check after its end.
            return false;
        }
        let present = fingerprint::fingerprint(&Roots::default(), &inspector::programs(&self.args.host));
        match self.known.check(present, now) {
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

    /// Waits for the running inspection to end, or forever if none is running.
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
        // The host is checked again at once: it may have changed during the inspection, and after a failure the check
        // schedules the retry.
        self.next_check = Some(clock::Instant::now());
        let (failure, incomplete) = match ended {
            Err(error) => {
                self.metrics.inspected(Err(error.reason()), 0);
                let failure = InspectionFailure {
                    reason: error.reason().into(),
                    message: chain(&error).to_string(),
                };
                (failure, None)
            }
            Ok(InspectionReport { facts, problem, took }) => {
                let took_milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                let record = InspectionRecord {
                    at: whole_seconds(now),
                    took_milliseconds,
                    fingerprint: self.known.present().clone(),
                    stale: false,
                };
                let Some(problem) = problem.filter(|_| labels::is_supported(&facts.architecture)) else {
                    info!(milliseconds = took_milliseconds, "the host was inspected");
                    self.metrics.inspected(Ok(()), took_milliseconds);
                    self.known.succeed((facts, record));
                    // Returns the memory of the report before the agent goes idle.
                    memory::trim();
                    return;
                };
                self.metrics.inspected(Err(problem.reason()), took_milliseconds);
                let failure = InspectionFailure {
                    reason: problem.reason().into(),
                    message: problem.to_string(),
                };
                // The facts from the processor and the kernel are valid despite the problem.
                (failure, Some((facts, record)))
            }
        };
        warn!(reason = %failure.reason, "{}", failure.message);
        self.known.fail(failure, incomplete, now);
    }
}

#[cfg(test)]
mod tests;
