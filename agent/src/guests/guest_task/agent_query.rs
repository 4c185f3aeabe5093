//! Queries the guest agent when its channel connects, when it may have new information, and again if it did not
//! respond.

use std::time::Duration;

use drydock_core::{
    access_credentials,
    guest::{GuestAgent, freeze},
    guest_agent::{self, Replies},
};
use drydock_host::domain::{CallError, DomainHandle};
use drydock_runtime::{Backoff, clock};

use super::{ConnectedGuest, GuestTask, facts};

/// Minimum and maximum delay before an unresponsive agent is queried again.
///
/// The agent of a guest that starts on a busy node responds later. Each query takes as long as libvirt waits for the
/// response.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Schedule of queries to the guest agent.
#[derive(Default)]
pub(super) struct AgentQuery {
    is_due: bool,
    retry: Option<clock::Instant>,
    backoff: Option<Backoff>,
}

impl AgentQuery {
    /// Records whether the agent's channel is connected. A connected agent may have new information.
    pub(super) fn channel_is(&mut self, connected: bool) {
        *self = Self {
            is_due: connected,
            ..Self::default()
        };
    }

    /// Returns the time of the next retry, if any.
    pub(super) fn retry(&self) -> Option<clock::Instant> {
        self.retry
    }

    /// Returns whether a query is due now, and marks it as done.
    fn begin(&mut self, now: clock::Instant) -> bool {
        let retried = self.retry.take_if(|at| *at <= now).is_some();
        std::mem::take(&mut self.is_due) || retried
    }

    fn no_response(&mut self, now: clock::Instant) {
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(RETRY.0, RETRY.1));
        self.retry = Some(now + backoff.delay());
    }
}

impl GuestTask {
    /// Queries the agent of a running guest if a query is due. A missing agent is no error: only a query reveals it.
    pub(super) async fn query_agent(&self, handle: &DomainHandle, known: &mut ConnectedGuest) {
        if !known.agent_query.begin(clock::Instant::now()) {
            return;
        }
        known.agent = match handle.guest_info().await {
            Ok(info) => Some(facts::guest_agent(info, self.inquire(handle, known).await)),
            // The agent has responded that it cannot do this now.
            Err(CallError::Refused(_)) => {
                self.inquire(handle, known).await;
                Some(
                    self.instance()
                        .status
                        .as_ref()
                        .map(GuestAgent::of_report)
                        .unwrap_or_default(),
                )
            }
            // libvirt emits no event when the agent responds again.
            Err(CallError::AgentUnresponsive(_)) => {
                known.agent_query.no_response(clock::Instant::now());
                None
            }
            Err(_) => None,
        };
    }

    /// Queries two properties of the guest agent.
    ///
    /// The properties are whether the agent has the commands that KubeVirt requires and, if the file systems are
    /// recorded as frozen, whether they still are.
    async fn inquire(&self, handle: &DomainHandle, known: &mut ConnectedGuest) -> Option<bool> {
        let instance = self.instance();
        let frozen = instance.status.as_ref().is_some_and(freeze::is_frozen);
        let mut replies = Replies::default();
        for command in [Some(guest_agent::INFO), frozen.then_some(guest_agent::FREEZE_STATUS)] {
            let Some(command) = command else { continue };
            if let Ok(reply) = handle.agent_command(&guest_agent::message(command)).await {
                replies.add(command, &reply);
            }
        }
        known.is_thawed |= replies.is_frozen() == Some(false);
        replies.is_supported(&access_credentials::required_commands(&instance.spec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_without_a_response_is_queried_less_and_less_often() {
        let (mut query, mut now) = (AgentQuery::default(), clock::Instant::now());
        assert!(!query.begin(now), "its channel is not connected");
        query.channel_is(true);
        assert!(query.begin(now));
        assert!(!query.begin(now), "once for each connection");
        let mut waits = Vec::new();
        for _ in 0..8 {
            query.no_response(now);
            let at = query.retry().unwrap();
            assert!(!query.begin(now));
            waits.push(at - now);
            now = at;
            assert!(query.begin(now));
        }
        assert!(waits.iter().all(|wait| *wait <= RETRY.1), "{waits:?}");
        assert!(waits[7] > waits[0], "{waits:?}");
        query.no_response(now);
        query.channel_is(false);
        assert_eq!(query.retry(), None, "nothing is there that could respond");
    }
}
