//! The deadline of the call that a connection's thread is making.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Time after a call's deadline within which the call must notice that the relay has closed the connection.
pub(crate) const MARGIN: Duration = Duration::from_secs(5);

/// A call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDeadline {
    /// Human-readable name of the call.
    pub(crate) call: &'static str,
    /// Time after which the call is overdue.
    pub(crate) at: Instant,
}

/// Returns the name of the call whose deadline passed first, or `None` when the thread has ended.
pub(crate) async fn overdue(mut deadlines: watch::Receiver<Option<CallDeadline>>) -> Option<&'static str> {
    loop {
        let deadline = *deadlines.borrow_and_update();
        let changed = match deadline {
            None => deadlines.changed().await,
            Some(CallDeadline { call, at }) => tokio::select! {
                changed = deadlines.changed() => changed,
                () = sleep_until(at) => return Some(call),
            },
        };
        if changed.is_err() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_call_that_is_overdue_is_named() {
        let (sender, receiver) = watch::channel(None);
        let waiting = overdue(receiver);
        tokio::pin!(waiting);
        for call in [None, Some("first"), Some("second")] {
            let at = Instant::now() + Duration::from_secs(10);
            sender.send_replace(call.map(|call| CallDeadline { call, at }));
            let early = tokio::time::timeout(Duration::from_secs(9), &mut waiting).await;
            assert!(early.is_err(), "{early:?}");
        }
        assert_eq!(waiting.await, Some("second"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_has_ended_is_not_overdue() {
        let (sender, receiver) = watch::channel(Some(CallDeadline {
            call: "any",
            at: Instant::now() + Duration::from_secs(1),
        }));
        drop(sender);
        assert_eq!(overdue(receiver).await, None);
    }
}
