//! The clocks. Only this module of the project reads the wall clock.
//!
//! Decisions take the time as an argument. Durations (a deadline, the age of a Lease) are measured with [`Instant`],
//! which cannot be set; times shown to users or stored in API objects come from [`now`].

use jiff::Timestamp;
use std::time::Duration;

/// A point in monotonic time. Under a paused test clock it only advances on request.
pub use tokio::time::Instant;

/// Returns the current wall-clock time.
#[expect(
    clippy::disallowed_methods,
    reason = "only this function reads the clock; all other code receives the time"
)]
pub fn now() -> Timestamp {
    #[cfg(any(test, feature = "fake"))]
    if let Some(now) = test_clock::now() {
        return now;
    }
    Timestamp::now()
}

/// Sleeps until wall-clock time `at`; forever if `at` is `None`, not at all if `at` has passed.
///
/// # Caveats
/// The duration is computed once, from the current wall clock. If the clock is set in the meantime, the sleep ends
/// early or late by the same amount. A reconcile loop tolerates this: it plans again and gets a new wake-up time.
pub async fn sleep_until(at: Option<Timestamp>) {
    match at {
        Some(at) => tokio::time::sleep(until(at, now())).await,
        None => std::future::pending().await,
    }
}

/// Sleeps until `at` by the monotonic clock; forever if `at` is `None`.
pub async fn sleep_until_instant(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns the present wall-clock time of `at`, or the present time if `at` has passed.
pub fn wall_clock(at: Instant) -> Timestamp {
    let left = at.saturating_duration_since(Instant::now());
    now().checked_add(left).unwrap_or(Timestamp::MAX)
}

/// Returns the duration from `now` until `at`; zero if `at` has passed.
pub fn until(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}

/// The wall clock of tests.
#[cfg(any(test, feature = "fake"))]
pub mod test_clock {
    use std::cell::Cell;

    use jiff::{SignedDuration, Timestamp};

    use super::Instant;

    thread_local! {
        static BEGAN: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
    }

    /// Makes the wall clock of this thread follow the monotonic clock as long as this value exists.
    ///
    /// The wall clock also follows a paused monotonic clock, so the result of a test does not depend on how long it
    /// takes.
    #[derive(Debug)]
    pub struct FollowedClock(());

    impl FollowedClock {
        /// Makes the wall clock follow the monotonic clock from now on.
        #[must_use]
        pub fn follow() -> Self {
            BEGAN.set(Some((super::now(), Instant::now())));
            Self(())
        }

        /// Sets the wall clock forward, or back if `by` is negative.
        pub fn shift(&self, by: SignedDuration) {
            BEGAN.set(BEGAN.get().map(|(wall, instant)| (wall + by, instant)));
        }
    }

    impl Drop for FollowedClock {
        fn drop(&mut self) {
            BEGAN.set(None);
        }
    }

    /// Returns the time of the followed clock, if this thread follows one.
    pub(super) fn now() -> Option<Timestamp> {
        let (wall, instant) = BEGAN.get()?;
        let passed = SignedDuration::try_from(instant.elapsed()).unwrap_or(SignedDuration::MAX);
        wall.checked_add(passed).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Instant, now, sleep_until, sleep_until_instant, test_clock, until};
    use jiff::{SignedDuration, Timestamp};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn followed_clock_advances_with_the_paused_clock() {
        let minute = Duration::from_secs(60);
        let passed = {
            let _clock = test_clock::FollowedClock::follow();
            let before = now();
            tokio::time::advance(minute).await;
            now().duration_since(before)
        };
        assert_eq!(Duration::try_from(passed).unwrap(), minute);
        let before = now();
        tokio::time::advance(minute).await;
        assert!(now().duration_since(before) < passed, "the clock is still followed");
    }

    #[test]
    fn a_time_that_has_passed_is_now() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(until(now - SignedDuration::from_secs(5), now), Duration::ZERO);
        assert_eq!(until(now + SignedDuration::from_secs(5), now), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_ends_at_the_given_time_and_never_without_a_time() {
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
