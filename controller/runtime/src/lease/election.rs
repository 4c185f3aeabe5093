//! Who leads: the decisions of one candidate, without waiting and without network.
//!
//! # Why two never lead at once
//! Let a leader's last confirmed write have been *sent* at `s`. It leads until `s + renew_within`, by its own clock, and
//! renews long before. The API server took that write in at `s` or later, and another candidate saw it later still. That
//! candidate takes the Lease over only when it has seen no change for `duration`, which is longer than `renew_within`,
//! and its write names the version it saw: a renewal that came in between makes it fail. A write whose answer is lost
//! makes nobody leader. So the two times cannot meet as long as the clocks run equally fast to within
//! `duration / renew_within` (a half more, by default).
//!
//! Deleting the Lease object defeats this for who has never seen it; who has, waits as long as if it had been renewed.

use std::time::Duration;
use tokio::time::Instant;

/// The times that candidates go by. All candidates for one Lease should have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// How long others wait for a renewal.
    pub(super) duration: Duration,
    /// How long the leader leads after a renewal: less than `duration`.
    pub(super) renew_within: Duration,
    /// How often the leader renews and others look.
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

/// The Lease as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Empty if it is free.
    pub(super) holder: String,
    /// How long its holder wants others to wait.
    pub(super) duration: Duration,
    /// How often it changed hands.
    pub(super) transitions: i32,
    /// Changes with every write.
    pub(super) version: String,
}

/// What to ask of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    /// Make the Lease, held by us.
    Create,
    /// Become its holder, if it is still this version.
    Take {
        version: String,
        transitions: i32,
    },
    /// Renew it, if it is still this version.
    Renew {
        version: String,
    },
    /// Make it free, if it is still this version.
    Release {
        version: String,
    },
}

/// What the API server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The Lease is like this (after the write, if it was one).
    Is(Record),
    Missing,
    /// It is another version, or was made by somebody else meanwhile.
    Conflict,
    /// It may have been done, or not.
    Unknown,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Ask(Action),
    Wait(Instant),
}

/// One candidate.
#[derive(Clone, Debug)]
pub(super) struct Election {
    identity: String,
    terms: Terms,
    seen: Seen,
    /// When the last write that is known to have made or kept us holder was sent.
    confirmed: Option<Instant>,
    /// When to ask again.
    next: Instant,
}

/// What is known of the Lease.
#[derive(Clone, Debug)]
enum Seen {
    /// Nothing certain now: read it.
    Unsure {
        /// What was last known, for the time of its last change.
        last: Option<(Record, Instant)>,
    },
    /// There is none. Who saw one before makes a new one only from `free_at` on.
    Missing { free_at: Instant },
    /// It is like this since we saw it change.
    Is { record: Record, since: Instant },
}

impl Election {
    /// A candidate that knows nothing yet.
    pub(super) fn new(identity: String, terms: Terms, now: Instant) -> Self {
        Self {
            identity,
            terms,
            seen: Seen::Unsure { last: None },
            confirmed: None,
            next: now,
        }
    }

    /// Until when we lead, if we do.
    pub(super) fn leads_until(&self, now: Instant) -> Option<Instant> {
        let until = self.confirmed? + self.terms.renew_within;
        (now < until).then_some(until)
    }

    /// What to do at `now`. To be asked again after each answer and at the time that it names.
    pub(super) fn step(&self, now: Instant) -> Step {
        if now < self.next {
            return Step::Wait(self.next);
        }
        Step::Ask(match &self.seen {
            Seen::Unsure { .. } => Action::Read,
            Seen::Missing { free_at } if now >= *free_at => Action::Create,
            Seen::Missing { .. } => Action::Read,
            Seen::Is { record, .. } if self.leads_until(now).is_some() && record.holder == self.identity => {
                Action::Renew {
                    version: record.version.clone(),
                }
            }
            Seen::Is { record, since } if self.is_free(record, *since, now) => {
                let changes_hands = record.holder != self.identity;
                let transitions = record.transitions.saturating_add(changes_hands.into());
                Action::Take {
                    version: record.version.clone(),
                    transitions,
                }
            }
            Seen::Is { .. } => Action::Read,
        })
    }

    /// Takes in the answer to `action`, which was sent at `sent` and answered at `now`.
    pub(super) fn answered(&mut self, action: &Action, answer: Answer, sent: Instant, now: Instant) {
        let later = now + self.terms.retry_every;
        match answer {
            Answer::Is(record) => {
                let written = *action != Action::Read;
                if record.holder == self.identity {
                    if written {
                        self.confirmed = Some(sent);
                        self.next = sent + self.terms.retry_every;
                    } else {
                        // A write of ours whose answer was lost. Only a write that is answered counts.
                        self.next = now;
                    }
                } else {
                    self.confirmed = None;
                    let free = !written && record.holder.is_empty();
                    self.next = if free { now } else { later };
                }
                self.saw(record, now);
                if let (Seen::Is { record, since }, false) = (&self.seen, written) {
                    // Do not look again and again just before it gets free: take it at that moment.
                    self.next = self.next.min((*since + self.patience(record)).max(now));
                }
            }
            Answer::Missing => {
                // Whoever deleted it, its holder may not know yet.
                let seen_before = match &self.seen {
                    Seen::Unsure { last: None } => None,
                    Seen::Missing { free_at } => Some(*free_at),
                    Seen::Unsure {
                        last: Some((record, _)),
                    }
                    | Seen::Is { record, .. } => Some(
                        now + if record.holder.is_empty() {
                            Duration::ZERO
                        } else {
                            self.patience(record)
                        },
                    ),
                };
                let free_at = seen_before.unwrap_or(now);
                self.confirmed = None;
                self.seen = Seen::Missing { free_at };
                // A write that finds nothing cannot even be made: there is no such namespace.
                self.next = if *action == Action::Read {
                    later.min(free_at.max(now))
                } else {
                    later
                };
            }
            Answer::Conflict => {
                self.unsure();
                self.next = now;
            }
            Answer::Unknown => {
                // The version may have moved on; a renewal may simply be sent again, and a conflict would tell.
                if !matches!(action, Action::Renew { .. }) {
                    self.unsure();
                }
                self.next = later;
            }
        }
    }

    /// Another candidate has made the Lease free: it is read now and not at the next regular time.
    pub(super) fn released(&mut self, now: Instant) {
        if self.leads_until(now).is_none() {
            self.next = now;
        }
    }

    /// Leads no longer, of its own will; what to send so that another need not wait.
    pub(super) fn resign(&mut self, now: Instant) -> Option<Action> {
        let leads = self.leads_until(now).is_some();
        self.confirmed = None;
        match &self.seen {
            Seen::Is { record, .. } if leads && record.holder == self.identity => Some(Action::Release {
                version: record.version.clone(),
            }),
            _ => None,
        }
    }

    fn saw(&mut self, record: Record, now: Instant) {
        let last = match &self.seen {
            Seen::Is { record, since } => Some((&record.version, *since)),
            Seen::Unsure { last } => last.as_ref().map(|(record, since)| (&record.version, *since)),
            Seen::Missing { .. } => None,
        };
        let since = last
            .filter(|(version, _)| **version == record.version)
            .map_or(now, |(_, since)| since);
        self.seen = Seen::Is { record, since };
    }

    fn unsure(&mut self) {
        let last = match std::mem::replace(&mut self.seen, Seen::Unsure { last: None }) {
            Seen::Is { record, since } => Some((record, since)),
            Seen::Unsure { last } => last,
            Seen::Missing { .. } => None,
        };
        self.seen = Seen::Unsure { last };
    }

    /// How long the Lease must not change until it is free.
    fn patience(&self, record: &Record) -> Duration {
        self.terms.duration.max(record.duration)
    }

    fn is_free(&self, record: &Record, since: Instant, now: Instant) -> bool {
        record.holder.is_empty() || record.holder == self.identity || now >= since + self.patience(record)
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
