//! Texts for a migration's progress and for the reasons of actions, phrased so that they change rarely.

use std::time::Duration;

use drydock_api::kubevirt::migration::{MigrationMode, MigrationProgress};
use jiff::{SignedDuration, Timestamp};

use super::{Act, ActionCause, ConvergenceAction, Monitor, Outlook, Sample};

/// Minimum time between two writes of the progress, unless the mode changes.
const BETWEEN_WRITES: SignedDuration = SignedDuration::from_secs(5);

/// A written progress report, or a candidate for the next one.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenProgress {
    /// Time of the report.
    pub at: Timestamp,
    /// The migration mode.
    pub mode: MigrationMode,
    /// The progress.
    pub progress: MigrationProgress,
}

/// Returns whether the new report is worth a write: at once if the mode has changed, else at most every five seconds if
/// anything has changed.
pub fn worth_writing(previous: Option<&WrittenProgress>, new: &WrittenProgress) -> bool {
    previous.is_none_or(|previous| {
        let since = new.at.duration_since(previous.at);
        let due = since >= BETWEEN_WRITES || since.is_negative();
        previous.mode != new.mode || (due && previous.progress != new.progress)
    })
}

/// Returns the progress as text, such as `42 %, 310 MiB left, about 7 s`, rounded to the precision that the data
/// supports.
pub fn summary(sample: &Sample, outlook: Outlook) -> String {
    let remaining = sample.remaining();
    let mut parts = Vec::new();
    if sample.data_total > 0 {
        let done = u128::from(sample.data_total.saturating_sub(remaining));
        parts.push(format!("{} %", done * 100 / u128::from(sample.data_total)));
    }
    parts.push(format!("{} left", bytes(remaining)));
    match outlook {
        Outlook::Unknown => {}
        Outlook::Ends(left) => parts.push(format!("about {}", time(left))),
        Outlook::Never => parts.push("does not converge".into()),
    }
    parts.join(", ")
}

/// Formats bytes with two significant digits.
fn bytes(value: u64) -> String {
    let mut unit = 0;
    let mut divisor = 1_u64;
    let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    while value / divisor >= 1024 && unit + 1 < names.len() {
        divisor <<= 10;
        unit += 1;
    }
    let name = names.get(unit).copied().unwrap_or_default();
    match value / divisor {
        whole @ 100.. => format!("{} {name}", whole / 10 * 10),
        whole @ 10.. => format!("{whole} {name}"),
        whole if unit == 0 => format!("{whole} {name}"),
        whole => {
            let tenth = u128::from(value % divisor) * 10 / u128::from(divisor);
            format!("{whole}.{tenth} {name}")
        }
    }
}

/// Formats a duration: to the second below ten, to five seconds below a minute, to the minute below two hours, then to
/// the hour. Rounds up, because remaining work never takes zero time.
fn time(left: Duration) -> String {
    let seconds = left.as_millis().div_ceil(1000).max(1);
    match seconds {
        0..10 => format!("{seconds} s"),
        10..=55 => format!("{} s", seconds.div_ceil(5) * 5),
        56..=7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

impl Monitor {
    /// Returns the dirty rate and the bandwidth as text.
    pub(super) fn rates(&self) -> String {
        let sent = self.bandwidth.get().map(bytes);
        match (self.dirty.get().map(bytes), sent) {
            (Some(dirty), Some(sent)) => format!("the guest dirties {dirty}/s, the bandwidth is {sent}/s"),
            (None, Some(sent)) => format!("the bandwidth is {sent}/s"),
            (_, None) => "the bandwidth is unknown".into(),
        }
    }

    /// Builds the action with its reason and sentence.
    pub(super) fn action(&self, act: Act, cause: ActionCause, sample: &Sample) -> ConvergenceAction {
        let remaining = bytes(sample.remaining());
        let why = match cause {
            ActionCause::DoesNotConverge => format!("{}: the migration does not converge", self.rates()),
            ActionCause::CompletionTimeExceeded => format!(
                "the migration has taken {} of the allowed {}, with {remaining} left ({})",
                time(self.elapsed),
                self.allowed_time(sample).map_or_else(|| "time".into(), time),
                self.rates()
            ),
            ActionCause::NoProgress => format!(
                "no progress for {}, with {remaining} left ({})",
                time(self.elapsed.saturating_sub(self.progress_at)),
                self.rates()
            ),
        };
        let what = match act {
            Act::Report => {
                "neither a pause nor post-copy can be used, so the migration continues until its time limit".into()
            }
            Act::SetDowntime(time) => format!("the maximum downtime of the guest is raised to {} ms", time.as_millis()),
            Act::Pause => "the guest is paused until it has moved".into(),
            Act::StartPostCopy => "the guest continues on the target, and the remaining memory follows".into(),
            Act::Abort => "the migration is aborted".into(),
        };
        ConvergenceAction {
            act,
            reason: cause.reason(),
            sentence: format!("{why}; {what}"),
        }
    }
}
