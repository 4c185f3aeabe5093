//! Durations in Go's text format, which Kubernetes' APIs use.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a Go duration that is not negative (`48h0m0s`, `1h30m`, `300ms`).
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let unsigned = text.starts_with(|c: char| c.is_ascii_digit());
    let duration: SignedDuration = text.parse().ok().filter(|_| unsigned)?;
    Duration::try_from(duration).ok()
}
