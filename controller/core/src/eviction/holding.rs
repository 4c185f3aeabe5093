//! Decides how long an eviction request is held open until its guest has moved.
//!
//! ```text
//!  request ──── held ────▶ 8 s: refused ── 5 s ──▶ next request ──── held ────▶ ...
//!               └─ its guest moves within that time: granted at that instant
//!  request ─▶ its guest will not: refused at once ── 5 s ──▶ next request ── held ─▶ it moves: granted
//! ```
//!
//! If a guest finishes between two holds, its eviction is granted only at the drainer's next request. So a request
//! whose guest will not have moved by the end of the hold is refused early, which starts the next hold sooner.

use std::time::Duration;

/// Maximum time for which an eviction is held: longer than most guests take to move, and shorter than the API server's
/// webhook timeout.
pub const HOLD: Duration = Duration::from_secs(8);
/// Time for which a replica waits for the leader to delete the PDB of a pod that may go, before it does so itself.
pub const RELEASED_WITHIN: Duration = Duration::from_millis(250);
/// Time limit for the deletion of a pod whose guest has migrated away, after which the eviction is granted all the
/// same: a kubelet takes half a second when it is otherwise idle, and some seconds on a node whose processors are fully
/// used.
pub const GONE_WITHIN: Duration = Duration::from_secs(4);
/// Time limit for the whole review of an eviction: the hold, the end of the pod, and half a second. The limit is
/// shorter than the webhook's `timeoutSeconds` (13), since an API server allows an eviction if the webhook does not
/// respond.
pub const REVIEW_DEADLINE: Duration = HOLD
    .saturating_add(GONE_WITHIN)
    .saturating_add(Duration::from_millis(500));
/// Time between the first eviction of a drain and the moment when its extent is known: which guests are marked, and
/// their order.
pub const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// Returns whether to keep holding an eviction, given how long it has been held and the estimated time until its guest
/// has moved.
///
/// Keeps holding for a guest that may take half as long again as estimated. A drainer that is refused too early waits
/// for the rest of its five seconds; if its guest moves just after the hold, the drainer waits for the full five
/// seconds.
pub fn is_worth_holding(held: Duration, left: Option<Duration>) -> bool {
    left.is_none_or(|left| left.saturating_mul(3) / 2 <= HOLD.saturating_sub(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_is_held_for_a_guest_that_will_have_moved_by_then() {
        let seconds = Duration::from_secs_f64;
        for (held, left, expected) in [
            (0.0, None, true),
            (7.9, None, true),
            (0.0, Some(0.0), true),
            (0.0, Some(5.3), true),
            (0.0, Some(5.4), false),
            (1.0, Some(4.6), true),
            (1.0, Some(4.7), false),
            (1.0, Some(f64::from(u32::MAX)), false),
        ] {
            let worth = is_worth_holding(seconds(held), left.map(seconds));
            assert_eq!(worth, expected, "held for {held} s, {left:?} s left");
        }
    }
}
