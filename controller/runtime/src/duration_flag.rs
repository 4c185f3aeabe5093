//! Durations in command-line flags.

use std::time::Duration;

use jiff::SignedDuration;
use thiserror::Error;

/// Maximum duration of a flag.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The value of a flag is not a duration, or is too long.
#[derive(Debug, Error)]
#[error("not a duration from 0s to 168h, such as 500ms, 30s, 5m or 1h30m")]
pub struct InvalidDuration;

/// Parses the value of a duration flag.
///
/// The notation is that of Go's `time.ParseDuration`, which flags of Kubernetes components use: numbers with the units
/// `ms`, `s`, `m` and `h`. `0` needs no unit.
///
/// # Errors
/// If the value is not a duration, is negative, or is more than 168 h.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let begins = text.starts_with(|first: char| first.is_ascii_digit());
    let parsed = text.parse::<SignedDuration>().ok().filter(|_| begins);
    let duration = parsed.and_then(|parsed| Duration::try_from(parsed).ok());
    duration.filter(|duration| *duration <= LONGEST).ok_or(InvalidDuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_go_notation() {
        for (text, milliseconds) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("500ms", Some(500)),
            ("30s", Some(30_000)),
            ("1.5s", Some(1500)),
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("1h0m10s", Some(3_610_000)),
            ("168h", Some(604_800_000)),
            ("168h1ms", None),
            ("-1s", None),
            ("5", None),
            ("", None),
            ("s", None),
            ("soon", None),
            ("PT5S", None),
            ("99999999999999999999h", None),
        ] {
            let parsed = parse_duration(text).ok().map(|parsed| parsed.as_millis());
            assert_eq!(parsed, milliseconds, "{text:?}");
        }
    }
}
