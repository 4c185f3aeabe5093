//! Division of the grace period into the steps of a guest's end.
//!
//! ```text
//! SIGTERM                             destroy      kill   give up  SIGKILL by the kubelet
//!    ├── press power button repeatedly ──┼── half ────┼─ quarter ┼─────────┤
//!    0                                grace - margin                     grace
//! ```

use std::time::Duration;

/// Times within a grace period, relative to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grace {
    /// Time at which libvirt destroys a guest that has not shut down.
    pub(crate) destroy: Duration,
    /// Time at which QEMU is killed if libvirt has not destroyed the guest.
    pub(crate) kill: Duration,
    /// Time at which the pod ends together with QEMU if all else has failed.
    pub(crate) give_up: Duration,
}

impl Grace {
    /// Divides a grace period of `seconds`.
    ///
    /// A tenth of the period, but at least 2 s and at most 10 s, is reserved for destroying the guest and reporting its
    /// end. Without a grace period, the guest is destroyed at once.
    pub(crate) fn divide(seconds: u64) -> Self {
        /// Time for destroying the guest if there is no grace period.
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
