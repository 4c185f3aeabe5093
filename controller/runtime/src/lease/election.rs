//! Leader election: the decisions of one candidate, without waiting or network access.
//!
//! # Why two never lead at once
//! Let `s` be the time at which a leader *sent* its last confirmed write. It leads until `s + renew_within` on its own
//! clock, and renews long before. The API server executed that write at `s` or later, and any other candidate observed
//! it later still. A candidate takes the Lease over only after it has observed no change for `duration`, which is
//! longer than `renew_within`, and its write carries the resource version that it observed: it fails if a renewal came
//! first. A write whose response is lost makes no candidate the leader. Terms of two candidates therefore cannot
//! overlap as long as their clocks run equally fast to within the factor `duration / renew_within` (1.5 by default).
//!
//! Deleting the Lease breaks mutual exclusion for a candidate that has never observed it. Candidates that have observed
//! it still wait for the full duration.

use super::{LeaseRecord, RequestOutcome};
use std::time::Duration;
use tokio::time::Instant;

/// The timing of the election. All candidates for a Lease should use the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Time for which others wait for a renewal.
    pub(super) duration: Duration,
    /// Time for which the leader leads after a renewal. Less than `duration`.
    pub(super) renew_within: Duration,
    /// Interval at which the leader renews and others read the Lease.
    pub(super) retry_every: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            retry_every: Duration::from_secs(2),
        }
    }
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseRequest {
    Read,
    /// Create the Lease with this candidate as the holder.
    Create,
    /// Become the holder, if the version is unchanged.
    Take {
        version: String,
        transitions: i32,
    },
    /// Renew the Lease, if the version is unchanged.
    Renew {
        version: String,
    },
    /// Release the Lease, if the version is unchanged.
    Release {
        version: String,
    },
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ElectionStep {
    Send(LeaseRequest),
    Wait(Instant),
}

/// The state of one candidate.
#[derive(Clone, Debug)]
pub(super) struct Election {
    identity: String,
    terms: Terms,
    seen: KnownLease,
    /// Send time of the last confirmed write that made or kept this candidate the holder.
    confirmed: Option<Instant>,
    /// When to send the next request.
    next: Instant,
}

/// The known state of the Lease.
#[derive(Clone, Debug)]
enum KnownLease {
    /// Unknown: the Lease has to be read.
    Unsure {
        /// The last known state, for the time of its last change.
        last: Option<(LeaseRecord, Instant)>,
    },
    /// The Lease does not exist. A candidate that has seen one before creates a new one only from `free_at` on.
    Missing { free_at: Instant },
    /// The Lease has had this state since `since`, when the change was observed.
    Is { record: LeaseRecord, since: Instant },
}

impl Election {
    /// Creates a candidate that does not know the state of the Lease.
    pub(super) fn new(identity: String, terms: Terms, now: Instant) -> Self {
        Self {
            identity,
            terms,
            seen: KnownLease::Unsure { last: None },
            confirmed: None,
            next: now,
        }
    }

    /// Returns the end of this candidate's leadership; `None` if it does not lead.
    pub(super) fn leads_until(&self, now: Instant) -> Option<Instant> {
        let until = self.confirmed? + self.terms.renew_within;
        (now < until).then_some(until)
    }

    /// Returns the step to take at `now`. To be called after each response and at the returned time.
    pub(super) fn step(&self, now: Instant) -> ElectionStep {
        if now < self.next {
            return ElectionStep::Wait(self.next);
        }
        ElectionStep::Send(match &self.seen {
            KnownLease::Unsure { .. } => LeaseRequest::Read,
            KnownLease::Missing { free_at } if now >= *free_at => LeaseRequest::Create,
            KnownLease::Missing { .. } => LeaseRequest::Read,
            KnownLease::Is { record, .. } if self.leads_until(now).is_some() && record.holder == self.identity => {
                LeaseRequest::Renew {
                    version: record.version.clone(),
                }
            }
            KnownLease::Is { record, since } if self.is_free(record, *since, now) => {
                let changes_hands = record.holder != self.identity;
                let transitions = record.transitions.saturating_add(changes_hands.into());
                LeaseRequest::Take {
                    version: record.version.clone(),
                    transitions,
                }
            }
            KnownLease::Is { .. } => LeaseRequest::Read,
        })
    }

    /// Processes the response to `action`, which was sent at `sent` and whose response arrived at `now`.
    pub(super) fn complete(&mut self, action: &LeaseRequest, response: RequestOutcome, sent: Instant, now: Instant) {
        let later = now + self.terms.retry_every;
        match response {
            RequestOutcome::Done(record) => {
                let written = *action != LeaseRequest::Read;
                if record.holder == self.identity {
                    if written {
                        self.confirmed = Some(sent);
                        self.next = sent + self.terms.retry_every;
                    } else {
                        // The response to a write of this candidate was lost. Only a confirmed write counts.
                        self.next = now;
                    }
                } else {
                    self.confirmed = None;
                    let free = !written && record.holder.is_empty();
                    self.next = if free { now } else { later };
                }
                self.saw(record, now);
                if let (KnownLease::Is { record, since }, false) = (&self.seen, written) {
                    // Just before the Lease becomes free, the candidate does not read it repeatedly, but takes it at
                    // that moment.
                    self.next = self.next.min((*since + self.patience(record)).max(now));
                }
            }
            RequestOutcome::Missing => {
                // The holder may not have noticed the deletion yet.
                let seen_before = match &self.seen {
                    KnownLease::Unsure { last: None } => None,
                    KnownLease::Missing { free_at } => Some(*free_at),
                    KnownLease::Unsure {
                        last: Some((record, _)),
                    }
                    | KnownLease::Is { record, .. } => Some(
                        now + if record.holder.is_empty() {
                            Duration::ZERO
                        } else {
                            self.patience(record)
                        },
                    ),
                };
                let free_at = seen_before.unwrap_or(now);
                self.confirmed = None;
                self.seen = KnownLease::Missing { free_at };
                // If a write also returns 404, the namespace is missing.
                self.next = if *action == LeaseRequest::Read {
                    later.min(free_at.max(now))
                } else {
                    later
                };
            }
            RequestOutcome::Conflict => {
                self.unsure();
                self.next = now;
            }
            RequestOutcome::Unknown(_) => {
                // The version may have changed. A renewal can be repeated, since a conflict would reveal the change.
                if !matches!(action, LeaseRequest::Renew { .. }) {
                    self.unsure();
                }
                self.next = later;
            }
        }
    }

    /// Handles the release of the Lease by another candidate: reads the Lease now instead of at the next regular time.
    pub(super) fn released(&mut self, now: Instant) {
        if self.leads_until(now).is_none() {
            self.next = now;
        }
    }

    /// Ends the leadership voluntarily.
    ///
    /// Returns the request that releases the Lease, so that other candidates need not wait.
    pub(super) fn resign(&mut self, now: Instant) -> Option<LeaseRequest> {
        let leads = self.leads_until(now).is_some();
        self.confirmed = None;
        match &self.seen {
            KnownLease::Is { record, .. } if leads && record.holder == self.identity => Some(LeaseRequest::Release {
                version: record.version.clone(),
            }),
            _ => None,
        }
    }

    fn saw(&mut self, record: LeaseRecord, now: Instant) {
        let last = match &self.seen {
            KnownLease::Is { record, since } => Some((&record.version, *since)),
            KnownLease::Unsure { last } => last.as_ref().map(|(record, since)| (&record.version, *since)),
            KnownLease::Missing { .. } => None,
        };
        let since = last
            .filter(|(version, _)| **version == record.version)
            .map_or(now, |(_, since)| since);
        self.seen = KnownLease::Is { record, since };
    }

    fn unsure(&mut self) {
        let last = match std::mem::replace(&mut self.seen, KnownLease::Unsure { last: None }) {
            KnownLease::Is { record, since } => Some((record, since)),
            KnownLease::Unsure { last } => last,
            KnownLease::Missing { .. } => None,
        };
        self.seen = KnownLease::Unsure { last };
    }

    /// Returns how long the Lease must remain unchanged before it is free.
    fn patience(&self, record: &LeaseRecord) -> Duration {
        self.terms.duration.max(record.duration)
    }

    fn is_free(&self, record: &LeaseRecord, since: Instant, now: Instant) -> bool {
        record.holder.is_empty() || record.holder == self.identity || now >= since + self.patience(record)
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
