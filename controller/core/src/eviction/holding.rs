//! How long an eviction is held that would be granted once its guest has moved.
//!
//! ```text
//!  asked ──── held ────▶ 8 s: refused ── 5 s ──▶ asked again ──── held ────▶ ...
//!             └─ its guest moves within that time: granted at that instant
//!  asked ─▶ its guest will not: refused at once ── 5 s ──▶ asked again ── held ─▶ it moves: granted
//! ```
//!
//! What a guest moves after between two holds is only granted when its drainer asks again. So one that will not have
//! moved by the end of the hold is refused while nothing is lost by it, so that the next hold begins the sooner.

use std::time::Duration;

/// How long an eviction is held at most: longer than most guests take to move, and below the time
/// that API servers give the webhook.
pub const HOLD: Duration = Duration::from_secs(8);
/// What a drain asks for is known so long after its first eviction: which guests it marks, and who goes first.
pub const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// Whether an eviction is held on that has been held for so long, if its guest is expected to have moved so much later.
///
/// A guest that is half as slow again as expected is still waited for. A drainer that is told too early waits for what is
/// left of its five seconds; one whose guest moves just after the hold waits for all of them.
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
