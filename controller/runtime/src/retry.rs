//! Delays between retries.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Delays that double up to a ceiling, each shortened by a random amount of up to one half, so that processes that
/// failed together do not retry together.
///
/// # Guarantees
/// Each delay is greater than zero if the first one is, at most the ceiling, and at least half of the delay without
/// jitter. The same seed yields the same delays.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    ceiling: Duration,
    whole: Duration,
    chance: SplitMix,
}

impl Backoff {
    /// Creates a back-off with delays from `first` up to `ceiling` and a random seed.
    pub fn new(first: Duration, ceiling: Duration) -> Self {
        // The standard library seeds its hash maps randomly: sufficient for a delay, and no extra dependency.
        Self::seeded(first, ceiling, RandomState::new().hash_one(0u8))
    }

    /// Like [`Backoff::new`], with a given seed; for tests.
    pub fn seeded(first: Duration, ceiling: Duration, seed: u64) -> Self {
        let first = first.min(ceiling);
        Self {
            first,
            ceiling,
            whole: first,
            chance: SplitMix(seed),
        }
    }

    /// Returns the next delay and doubles the one after it.
    pub fn delay(&mut self) -> Duration {
        let whole = self.whole;
        self.whole = whole.saturating_mul(2).min(self.ceiling);
        whole.mul_f64(0.5 + self.chance.fraction() / 2.0)
    }

    /// Restarts at the first delay; to be called after a success.
    pub fn reset(&mut self) {
        self.whole = self.first;
    }

    /// Returns whether no delay was taken since the creation or the last [`reset`](Self::reset).
    pub fn is_reset(&self) -> bool {
        self.whole == self.first
    }
}

/// Returns `span` lengthened by a random amount of up to 10 %, for periodic work that many processes do at the same
/// interval.
pub fn jittered(span: Duration) -> Duration {
    span.mul_f64(1.0 + SplitMix(RandomState::new().hash_one(0u8)).fraction() / 10.0)
}

/// Sebastiano Vigna's SplitMix64: small, and good enough to spread delays.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// Returns a number in the range [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub(crate) fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
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
