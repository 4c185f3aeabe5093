//! Consecutive failures to start, and the delay of the next start.
//!
//! Only an instance whose guest never ran counts. An instance that was evicted before its guest ran does not count,
//! since nothing is wrong with it. An instance that its kubelet evicted counts even if its guest ran: it exceeded its
//! resources, or its node lacks resources, and either may continue.

use std::time::Duration;

use drydock_api::kubevirt::{Phase, RunStrategy, VirtualMachineInstance, machine::StartFailure};
use jiff::Timestamp;

use super::{instance_of::fingerprint, reached_running, was_evicted, was_evicted_by_kubelet};
use crate::conditions::whole_seconds;

/// The first delay; the n-th is n² times as long.
const FIRST: Duration = Duration::from_secs(10);
/// The maximum delay, including the random part.
const LONGEST: Duration = Duration::from_secs(300);

/// Returns the failures so far, including the present instance's; `None` once a guest ran, and for machines that do
/// not start without a request.
pub(super) fn start_failure(
    strategy: RunStrategy,
    before: Option<&StartFailure>,
    own: Option<&VirtualMachineInstance>,
    now: Timestamp,
) -> Option<StartFailure> {
    if matches!(strategy, RunStrategy::Manual | RunStrategy::Halted) {
        return None;
    }
    let Some(instance) = own else {
        return before.cloned();
    };
    let phase = instance.phase();
    let is_over = phase.is_some_and(Phase::is_final);
    let counts_anyway = is_over && was_evicted_by_kubelet(instance);
    if reached_running(instance) && !counts_anyway {
        return None;
    }
    let uid = instance.metadata.uid.as_ref();
    let counted = before.is_some_and(|before| before.last_failed_vmi_uid.as_ref() == uid);
    if !is_over || (was_evicted(instance) && !counts_anyway) || counted {
        return before.cloned();
    }
    let count = before
        .map_or(0, |before| before.consecutive_fail_count)
        .saturating_add(1);
    let wait = wait(count, uid.map_or("", String::as_str));
    Some(StartFailure {
        consecutive_fail_count: count,
        last_failed_vmi_uid: uid.cloned(),
        retry_after_timestamp: Some(whole_seconds(now).0.checked_add(wait).unwrap_or(Timestamp::MAX)),
    })
}

/// Returns whether `after` counts one more failure than `before`.
pub(super) fn is_start_failure(before: Option<&StartFailure>, after: &StartFailure) -> bool {
    before.map_or(0, |before| before.consecutive_fail_count) < after.consecutive_fail_count
}

/// Returns the delay of the next start after `count` failures: 10 s × count², plus up to half of that, at most 300 s.
/// The random part is derived from the failed instance's UID, so that machines that failed together do not start
/// together and that repeated calls return the same value.
fn wait(count: u32, uid: &str) -> Duration {
    let whole = FIRST.saturating_mul(count.saturating_mul(count)).min(LONGEST);
    let thousandths = u32::try_from(fingerprint(uid.as_bytes()) % 501).unwrap_or(0);
    let more = whole.saturating_mul(thousandths) / 1000;
    Duration::from_secs((whole + more).min(LONGEST).as_secs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_wait_is_ten_seconds_times_the_square() {
        for (count, least, most) in [(1, 10, 15), (2, 40, 60), (3, 90, 135), (4, 160, 240), (5, 250, 300)] {
            let wait = wait(count, "u1").as_secs();
            assert!((least..=most).contains(&wait), "{count}: {wait}");
        }
        assert_eq!(wait(6, "u1"), LONGEST);
        assert_eq!(wait(u32::MAX, "u1"), LONGEST);
    }

    #[test]
    fn machines_that_failed_together_do_not_come_back_together() {
        let waits: std::collections::BTreeSet<_> = (0..20).map(|uid| wait(4, &format!("uid-{uid}"))).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }

    proptest! {
        #[test]
        fn more_failures_never_wait_less(count in 1u32..50, one: u64, other: u64) {
            let (one, other) = (format!("{one:x}"), format!("{other:x}"));
            prop_assert!(wait(count, &one) <= wait(count + 1, &other));
        }
    }
}
