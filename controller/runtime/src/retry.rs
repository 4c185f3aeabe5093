//! Delays between retries.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Delays that double up to a ceiling, each shortened by a random amount of up to one half, so that processes that
/// failed together do not retry together.
///
/// # Guarantees
/// Each delay is greater than zero if the first one is, at most the ceiling, and at least half of the delay without
/// jitter. The same seed yields the same delays.
#[derive(Debug)]
pub struct Backoff {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
    ceiling: Duration,
    is_reset: bool,
}

impl Backoff {
    /// Creates a back-off with delays from `first` up to `ceiling` and a random seed.
    pub fn new(first: Duration, ceiling: Duration) -> Self {
        Self::of(builder(first, ceiling), ceiling)
    }

    /// Like [`Backoff::new`], with a given seed; for tests.
    #[cfg(test)]
    pub fn seeded(first: Duration, ceiling: Duration, seed: u64) -> Self {
        Self::of(builder(first, ceiling).with_jitter_seed(seed), ceiling)
    }

    fn of(builder: ExponentialBuilder, ceiling: Duration) -> Self {
        Self {
            builder,
            delays: builder.build(),
            ceiling,
            is_reset: true,
        }
    }

    /// Returns the next delay and doubles the one after it.
    pub fn delay(&mut self) -> Duration {
        self.is_reset = false;
        // The iterator is unlimited, so `ceiling` is never used.
        self.delays.next().unwrap_or(self.ceiling)
    }

    /// Restarts at the first delay; to be called after a success.
    pub fn reset(&mut self) {
        self.delays = self.builder.build();
        self.is_reset = true;
    }

    /// Returns whether no delay was taken since the creation of the back-off or the last [`reset`](Self::reset).
    pub fn is_reset(&self) -> bool {
        self.is_reset
    }
}

/// Returns a builder of delays. `backon` lengthens each delay by a random amount of at most the delay itself.
fn builder(first: Duration, ceiling: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(first.min(ceiling) / 2)
        .with_max_delay(ceiling / 2)
        .with_factor(2.0)
        .without_max_times()
        .with_jitter()
}

/// Returns `span` lengthened by a random amount of up to 10 %, for periodic work that many processes do at the same
/// interval.
pub fn jittered(span: Duration) -> Duration {
    span.mul_f64(1.0 + fastrand::f64() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::{Backoff, jittered};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn starts_over_after_a_reset() {
        let mut backoff = Backoff::seeded(Duration::from_millis(500), Duration::from_secs(30), 7);
        assert!(backoff.is_reset());
        for _ in 0..20 {
            backoff.delay();
        }
        assert!(backoff.delay() >= Duration::from_secs(15));
        backoff.reset();
        assert!(backoff.is_reset());
        assert!(backoff.delay() <= Duration::from_millis(500));
    }

    #[test]
    fn two_processes_do_not_wait_alike() {
        let delays = |_| Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).delay();
        assert_ne!(delays(0), delays(1));
        let span = jittered(Duration::from_secs(10));
        assert!(span >= Duration::from_secs(10) && span <= Duration::from_secs(11));
    }

    proptest! {
        #[test]
        fn every_delay_is_between_half_and_whole(
            first in 1u64..10_000, ceiling in 1u64..100_000, seed: u64, tries in 1u32..70,
        ) {
            let (first, ceiling) = (Duration::from_millis(first), Duration::from_millis(ceiling));
            let mut backoff = Backoff::seeded(first, ceiling, seed);
            let mut same = Backoff::seeded(first, ceiling, seed);
            for attempt in 0..tries {
                let whole = first.saturating_mul(2u32.saturating_pow(attempt)).min(ceiling);
                let delay = backoff.delay();
                prop_assert!(delay >= whole / 2 && delay <= whole, "{delay:?} of {whole:?}");
                prop_assert_eq!(delay, same.delay());
            }
        }
    }
}
