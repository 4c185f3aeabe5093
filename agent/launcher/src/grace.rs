//! Division of the grace period.
//!
//! ```text
//! SIGTERM                             destroy      kill   give up  SIGKILL by the kubelet
//!    ├── press power button repeatedly ──┼── half ────┼─ quarter ┼─────────┤
//!    0                                grace - margin                     grace
//! ```

use std::time::Duration;

/// Points in time in a grace period, relative to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grace {
    /// libvirt destroys the guest, which has not shut down in time.
    pub(crate) destroy: Duration,
    /// QEMU is killed, because libvirt has not destroyed the guest in time.
    pub(crate) kill: Duration,
    /// The pod ends and takes QEMU along, because nothing else helped.
    pub(crate) give_up: Duration,
}

impl Grace {
    /// Divides a grace period of `seconds`. A tenth of it, at least 2 s and at most 10 s, is reserved for destroying
    /// the guest and reporting its end. Without a grace period the guest is destroyed at once.
    pub(crate) fn divide(seconds: u64) -> Self {
        /// How long destroying may take without a grace period.
        const UNBOUNDED: Duration = Duration::from_secs(10);
        let whole = Duration::from_secs(seconds);
        let margin = (whole / 10).clamp(Duration::from_secs(2), Duration::from_secs(10));
        let destroy = whole.saturating_sub(margin);
        let left = if whole.is_zero() { UNBOUNDED } else { whole - destroy };
        Self {
            destroy,
            kill: destroy + left / 2,
            give_up: destroy + left * 3 / 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Grace;

    #[test]
    fn the_margin_grows_with_the_period() {
        let millis = |grace: Grace| [grace.destroy, grace.kill, grace.give_up].map(|at| at.as_millis());
        assert_eq!(millis(Grace::divide(0)), [0, 5000, 7500]);
        assert_eq!(millis(Grace::divide(1)), [0, 500, 750]);
        assert_eq!(millis(Grace::divide(2)), [0, 1000, 1500]);
        assert_eq!(millis(Grace::divide(10)), [8000, 9000, 9500]);
        assert_eq!(millis(Grace::divide(30)), [27000, 28500, 29250]);
        assert_eq!(millis(Grace::divide(180)), [170_000, 175_000, 177_500]);
    }

    #[test]
    fn forced_end_is_within_the_grace_period() {
        for seconds in [1, 2, 3, 5, 30, 60, 3600, 1 << 40] {
            let grace = Grace::divide(seconds);
            assert!(grace.destroy <= grace.kill && grace.kill <= grace.give_up);
            assert!(grace.give_up < Duration::from_secs(seconds), "{seconds}");
        }
    }
}
