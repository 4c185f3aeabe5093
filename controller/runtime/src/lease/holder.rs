//! A Lease that is renewed as the heartbeat of its holder.
//!
//! ```text
//!  idle ──take_over()──▶ take ──done──▶ renew ⟲ periodically
//!                                       renew ──missing──▶ make ──done──▶ renew
//!                                       renew, make ──conflict──▶ read ──still ours──▶ renew
//!                                                                 read ──missing──▶ make
//!                                                                 read ──another holder──▶ idle
//! ```

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::{LeaseRecord, RequestOutcome, outcome, taken_by};
use crate::{Backoff, Process, Trigger, clock};

/// The Lease to hold, and its parameters.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// The holder's identity. Unique to this process; a successor on this machine must not use it either.
    pub identity: String,
    /// Interval of renewals.
    pub renew_every: Duration,
    /// Time after a renewal for which the Lease counts as held.
    pub duration: Duration,
    /// The field manager of writes.
    pub field_manager: &'static str,
}

/// The known holder of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HolderState {
    /// This process does not hold the Lease and has not tried to take it.
    #[default]
    NotTaken,
    /// This process is about to take the Lease.
    Taking,
    /// This process holds the Lease.
    Ours,
    /// Another process holds the Lease: this process has to stop acting, and no longer renews the Lease.
    By(String),
}

/// Holds a Lease. Clones share one state.
///
/// # Guarantees
/// - Taking and renewing the Lease are one request each.
/// - This process never renews a Lease of another holder: a renewal carries the resource version.
/// - A deleted Lease is created again while this process holds it.
///
/// # Assumptions
/// The caller of [`take_over`](Self::take_over) is entitled to the Lease (it holds an exclusive lock): the Lease is
/// taken regardless of its holder.
#[derive(Clone, Debug)]
pub struct LeaseHolder(Arc<Mutex<HolderState>>, Trigger);

impl LeaseHolder {
    /// Prepares to hold the Lease, and sends nothing until [`take_over`](Self::take_over).
    ///
    /// `changed` is notified whenever the holder changes.
    pub fn start(process: &Process, client: Client, holding: Holding, changed: &Trigger) -> Self {
        let holder = Self(Arc::default(), Trigger::new());
        let keeper = LeaseKeeper {
            api: Api::namespaced(client, &holding.namespace),
            holding,
            holder: holder.clone(),
            changed: changed.clone(),
            retry: Backoff::new(Duration::from_millis(500), Duration::from_secs(5)),
            failing: false,
        };
        let stopping = process.stopping();
        process.spawn_critical("keeping the lease", async move {
            stopping.run_until_cancelled(keeper.run()).await;
        });
        holder
    }

    /// Takes the Lease regardless of its holder, and renews it from now on.
    pub fn take_over(&self) {
        let mut held = self.0.lock();
        if *held != HolderState::Ours {
            *held = HolderState::Taking;
        }
        drop(held);
        self.1.notify();
    }

    /// Returns the known holder.
    pub fn held(&self) -> HolderState {
        self.0.lock().clone()
    }
}

/// The next action on the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NextAction {
    Idle,
    Take,
    /// Create the Lease, which was deleted while this process held it. If another process has created it in the
    /// meantime, that process holds it.
    Make,
    Renew {
        version: String,
    },
    Read,
}

/// Time of the next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    /// At the time of the next renewal.
    InTime,
    /// After a delay, because of a failure or a conflict.
    Later,
}

/// Returns the action that follows this response to `phase`, and when to perform it.
fn next(phase: NextAction, result: RequestOutcome, identity: &str) -> (NextAction, When) {
    match (phase, result) {
        (NextAction::Idle, _) => (NextAction::Idle, When::Now),
        // The read was necessary because another client has changed the Lease, which may happen again before each
        // renewal.
        (NextAction::Read, RequestOutcome::Done(LeaseRecord { holder, version, .. })) if holder == identity => {
            (NextAction::Renew { version }, When::Later)
        }
        (_, RequestOutcome::Done(LeaseRecord { holder, version, .. })) if holder == identity => {
            (NextAction::Renew { version }, When::InTime)
        }
        (_, RequestOutcome::Done(_)) => (NextAction::Idle, When::Now),
        // Both actions create the Lease if necessary, so a 404 means that the namespace is missing.
        (phase @ (NextAction::Take | NextAction::Make), RequestOutcome::Missing) => (phase, When::Later),
        // Another client has created the Lease and deleted it again, or deletes it after each change.
        (NextAction::Read, RequestOutcome::Missing) => (NextAction::Make, When::Later),
        (_, RequestOutcome::Missing) => (NextAction::Make, When::Now),
        (NextAction::Take, RequestOutcome::Conflict) => (NextAction::Take, When::Later),
        (_, RequestOutcome::Conflict) => (NextAction::Read, When::Now),
        (phase, RequestOutcome::Unknown(_)) => (phase, When::Later),
    }
}

/// Performs the actions.
struct LeaseKeeper {
    api: Api<Lease>,
    holding: Holding,
    holder: LeaseHolder,
    changed: Trigger,
    retry: Backoff,
    failing: bool,
}

impl LeaseKeeper {
    async fn run(mut self) {
        let mut phase = NextAction::Idle;
        let mut at = None;
        loop {
            tokio::select! {
                () = self.holder.1.notified() => {
                    if phase != NextAction::Idle {
                        continue;
                    }
                    phase = NextAction::Take;
                }
                () = clock::sleep_until_instant(at) => {}
            }
            if phase == NextAction::Idle {
                continue;
            }
            let began = Instant::now();
            let result = self.execute(&phase).await;
            self.log(&phase, &result);
            let when;
            (phase, when) = next(phase, result, &self.holding.identity);
            at = match when {
                When::Now if phase == NextAction::Idle => None,
                When::Now => Some(began),
                When::InTime => Some(began + self.holding.renew_every),
                When::Later => Some(Instant::now() + self.retry.delay().min(self.holding.renew_every)),
            };
        }
    }

    async fn execute(&mut self, phase: &NextAction) -> RequestOutcome {
        let Holding {
            name,
            renew_every,
            field_manager,
            ..
        } = &self.holding;
        let within = (*renew_every).max(Duration::from_secs(5));
        let outcome = match phase {
            NextAction::Idle => return RequestOutcome::Unknown("there is nothing to do".into()),
            NextAction::Take => {
                let params = PatchParams::apply(field_manager).force();
                outcome(within, self.api.patch(name, &params, &Patch::Apply(self.whole()))).await
            }
            NextAction::Make => {
                let field_manager = Some((*field_manager).to_owned());
                let params = PostParams {
                    field_manager,
                    ..PostParams::default()
                };
                outcome(within, self.api.create(&params, &self.whole())).await
            }
            NextAction::Renew { version } => {
                let params = PatchParams {
                    field_manager: Some((*field_manager).to_owned()),
                    ..PatchParams::default()
                };
                let renewal = json!({
                    "metadata": {"resourceVersion": version},
                    "spec": {"renewTime": MicroTime(clock::now())},
                });
                outcome(within, self.api.patch(name, &params, &Patch::Merge(renewal))).await
            }
            NextAction::Read => outcome(within, self.api.get(name)).await,
        };
        if let RequestOutcome::Unknown(reason) = &outcome
            && !self.failing
        {
            tracing::warn!(lease = name, reason, "could not renew the Lease, retrying");
            self.failing = true;
        }
        outcome
    }

    /// Returns the complete Lease, as the actions take and make write it.
    fn whole(&self) -> Lease {
        let holding = &self.holding;
        Lease {
            metadata: ObjectMeta {
                namespace: Some(holding.namespace.clone()),
                name: Some(holding.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(taken_by(&holding.identity, holding.duration)),
        }
    }

    /// Publishes the current holder.
    fn log(&mut self, phase: &NextAction, result: &RequestOutcome) {
        let lease = &self.holding.name;
        let current = match result {
            RequestOutcome::Done(LeaseRecord { holder, .. }) if *holder == self.holding.identity => HolderState::Ours,
            RequestOutcome::Done(LeaseRecord { holder, .. }) => HolderState::By(holder.clone()),
            RequestOutcome::Missing if !matches!(phase, NextAction::Take | NextAction::Make) => {
                tracing::warn!(lease, "the Lease was deleted, creating it again");
                return;
            }
            RequestOutcome::Missing | RequestOutcome::Conflict | RequestOutcome::Unknown(_) => return,
        };
        if self.failing {
            tracing::info!(lease, "the Lease can be renewed again");
            self.failing = false;
        }
        self.retry.reset();
        let mut held = self.holder.0.lock();
        if *held == current {
            return;
        }
        match &current {
            HolderState::By(holder) => tracing::warn!(lease, holder, "another process holds the Lease"),
            _ => tracing::info!(lease, identity = self.holding.identity, "holding the Lease"),
        }
        *held = current;
        drop(held);
        self.changed.notify();
    }
}

#[cfg(test)]
mod tests;
