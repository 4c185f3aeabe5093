//! What this agent knows of its host: found by itself, or recovered from what an earlier agent
//! reported, and when to ask again.

use std::sync::Arc;

use drydock_api::{
    facts::{Fingerprint, NodeFacts},
    hypervisor::InspectionRecord,
};
use drydock_core::{
    conditions::whole_seconds,
    inspection::{Failed, History, Need, changed, need},
    labels,
    node::Failure,
};
use drydock_host::{fingerprint, inspection::Report, memory, roots::Roots};
use drydock_runtime::{Process, chain};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::{
    args::RunArgs,
    inspector::{self, InspectorError},
    metrics::Metrics,
};

/// Facts, and when and how they were found.
type Found = (NodeFacts, InspectionRecord);

/// An inspection as it ended; `None` if the process is about to stop.
pub(crate) type Ended = Option<Result<Report, InspectorError>>;

/// What is known of the host.
pub(crate) struct HostKnowledge {
    args: Arc<RunArgs>,
    process: Process,
    metrics: Metrics,
    /// By this process.
    found: Option<Found>,
    /// By an earlier one, as its Hypervisor says.
    recovered: Option<Found>,
    history: History,
    failure: Option<Failure>,
    running: Option<oneshot::Receiver<Result<Report, InspectorError>>>,
    /// The host as it was when it was last looked at.
    present: Fingerprint,
    look_again: Option<Timestamp>,
    concluded: bool,
}

impl HostKnowledge {
    /// Nothing is known yet.
    pub(crate) fn new(args: Arc<RunArgs>, process: Process, metrics: Metrics) -> Self {
        Self {
            args,
            process,
            metrics,
            found: None,
            recovered: None,
            history: History::default(),
            failure: None,
            running: None,
            present: Fingerprint::default(),
            look_again: None,
            concluded: false,
        }
    }

    /// Takes over what an earlier agent found.
    pub(crate) fn recover(&mut self, found: Option<Found>) {
        self.recovered = found;
    }

    /// The facts to go by. Those of an earlier agent count as long as nothing that they depend on
    /// has changed, or if this agent has failed to find its own.
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

    /// Why the last inspection failed, if it did.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// When to look at the host again.
    pub(crate) fn look_again(&self) -> Option<Timestamp> {
        self.look_again
    }

    /// Whether an inspection by this process has ended, well or badly.
    pub(crate) fn is_concluded(&self) -> bool {
        self.concluded
    }

    /// Judges whether the host has changed, and begins to inspect it if so. Returns whether.
    pub(crate) fn look(&mut self, now: Timestamp) -> bool {
        let every = now + self.args.fingerprint_every;
        self.look_again = Some(every);
        if self.running.is_some() {
            // What changes meanwhile is seen when it has ended.
            return false;
        }
        self.present = fingerprint::fingerprint(&Roots::default(), &inspector::programs(&self.args.host));
        match need(&self.history, &self.present, now) {
            Need::None => false,
            Need::At(retry) => {
                self.look_again = Some(retry.min(every));
                false
            }
            Need::Now(parts) => {
                info!(changed = parts.join(", "), "inspecting the host");
                self.running = Some(self.inspect());
                true
            }
        }
    }

    fn inspect(&self) -> oneshot::Receiver<Result<Report, InspectorError>> {
        let (sender, receiver) = oneshot::channel();
        let (args, stopping) = (Arc::clone(&self.args), self.process.stopping());
        self.process.spawn("inspection", async move {
            if let Some(report) = stopping
                .run_until_cancelled(inspector::inspect(&args.host, &args.capabilities()))
                .await
            {
                // Nobody listens any more only when the process stops.
                let _ = sender.send(report);
            }
        });
        receiver
    }

    /// Waits for the running inspection to end; for ever, if none runs.
    pub(crate) async fn ended(&mut self) -> Ended {
        match &mut self.running {
            Some(running) => running.await.ok(),
            None => std::future::pending().await,
        }
    }

    /// Learns from an inspection that has ended.
    pub(crate) fn conclude(&mut self, ended: Ended, now: Timestamp) {
        self.running = None;
        let Some(ended) = ended else { return };
        self.concluded = true;
        // The host may have changed while it was inspected, and after a failure it is known when
        // to try again.
        self.look_again = Some(now);
        let failure = match ended {
            Err(error) => {
                self.metrics.inspected(Err(error.reason()), 0);
                Failure {
                    reason: error.reason().into(),
                    message: chain(&error).to_string(),
                }
            }
            Ok(Report { facts, problem, took }) => {
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
                        // What the processor and the kernel say is true even so.
                        if self.recovered.is_none() {
                            self.found.get_or_insert((facts, record));
                        }
                        Failure {
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

    fn succeeded(&mut self, found: Found) {
        self.history = History {
            inspected: Some(found.1.fingerprint.clone()),
            failed: None,
        };
        self.found = Some(found);
        self.recovered = None;
        self.failure = None;
        // What the report took is given back before the agent falls idle.
        memory::trim();
    }
}
