//! Decides when to end a migration of which libvirt has sent nothing.
//!
//! ```text
//!  source's libvirtd ── prepare ──▶ target's libvirtd ──▶ QEMU starts, and hangs
//!                    ◀ ─ ─ ─ ─ ─ no reply
//! ```
//!
//! Until the target is prepared, libvirt's job has no amount of data, and a request to abort it has no effect. If the
//! target never replies, neither does libvirt. So the source closes its session: libvirt's call fails, and the guest,
//! of which nothing has left, runs on.

use std::time::Duration;

/// Time limit for libvirt's job to send anything. As long as both sides may be prepared without the guest moving
/// ([`PhaseDeadlines::starting`](super::deadlines::PhaseDeadlines::starting)): a KubeVirt launcher waits this long for
/// its guest (`--qemu-timeout`).
const LONGEST: Duration = Duration::from_secs(240);

/// Reason of a guest that stayed: its migration sent nothing in time, because the target's libvirt or QEMU does not
/// respond.
pub const NOTHING_SENT: &str = "NothingSent";

/// Returns whether to end a migration, given the `total` bytes and the `elapsed` time of libvirt's job. `aborted`:
/// libvirt was requested to abort the job, and the job still runs.
pub fn is_stuck(total: u64, elapsed: Duration, aborted: bool) -> bool {
    total == 0 && (aborted || elapsed >= LONGEST)
}

/// Returns the human-readable reason for [`NOTHING_SENT`].
pub fn sentence() -> String {
    format!(
        "libvirt has sent no data of the guest within {} s: the target's libvirt or QEMU does not respond",
        LONGEST.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_stuck_only_while_nothing_is_sent() {
        for (total, seconds, aborted, expected) in [
            (0, 0, false, false),
            (0, 239, false, false),
            (0, 240, false, true),
            (0, 300, false, true),
            (0, 0, true, true),
            (1, 300, false, false),
            (1, 300, true, false),
            (1 << 30, 1 << 30, true, false),
        ] {
            let stuck = is_stuck(total, Duration::from_secs(seconds), aborted);
            assert_eq!(stuck, expected, "{total} bytes, {seconds} s, aborted: {aborted}");
        }
    }
}
