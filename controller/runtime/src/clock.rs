//! The clocks. The one place of the project that reads the time of day.
//!
//! Decisions take the time as an argument. What measures a span (a deadline, a lease's age) uses [`Instant`], which no
//! one can set; what people read, or what an API object carries, uses [`now`].

use jiff::Timestamp;
use std::time::Duration;

/// A point on the clock that only goes forward. Under a paused test clock it stands still until told to move.
pub use tokio::time::Instant;

/// The time of day.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock; everyone else is given the time"
)]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Sleeps until the time of day is `at`; for ever if there is none, at once if it has passed.
///
/// # Caveats
/// The time to wait is computed once, by the clock as it is now: if somebody sets the clock meanwhile, the sleep ends
/// early or late by as much. A reconcile loop does not mind: it plans again and is told again when to wake.
pub async fn sleep_until(at: Option<Timestamp>) {
    match at {
        Some(at) => tokio::time::sleep(until(at, now())).await,
        None => std::future::pending().await,
    }
}

/// Sleeps until `at` by the monotonic clock; for ever if there is none.
pub async fn sleep_until_instant(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// How long it is from `now` until `at`; nothing if that has passed.
pub fn until(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::{Instant, now, sleep_until, sleep_until_instant, until};
    use jiff::{SignedDuration, Timestamp};
    use std::time::Duration;

    #[test]
    fn a_time_that_has_passed_is_now() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(until(now - SignedDuration::from_secs(5), now), Duration::ZERO);
        assert_eq!(until(now + SignedDuration::from_secs(5), now), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn sleeps_until_the_time_and_for_ever_without_one() {
        let start = Instant::now();
        sleep_until(Some(now() + SignedDuration::from_secs(60))).await;
        let slept = start.elapsed();
        assert!(
            slept > Duration::from_secs(50) && slept <= Duration::from_millis(60_001),
            "{slept:?}"
        );

        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, sleep_until(None)).await.is_err());
        assert!(tokio::time::timeout(hour, sleep_until_instant(None)).await.is_err());
    }
}
