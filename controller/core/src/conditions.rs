//! Conditions whose transition time changes only with their status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is unknown whether the condition holds.
    Unknown,
}

impl ConditionStatus {
    /// Returns the API's string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Returns the condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns whether the condition of this type is `True`.
pub fn holds(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
}

/// Returns a condition in its current state. Its transition time is that of `previous` if the status is the same.
pub fn condition(
    previous: &[Condition],
    type_: &str,
    status: ConditionStatus,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> Condition {
    let since = find(previous, type_)
        .filter(|before| before.status == status.as_str())
        .map_or_else(|| whole_seconds(now), |before| before.last_transition_time.clone());
    Condition {
        type_: type_.into(),
        status: status.as_str().into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: since,
        observed_generation: None,
    }
}

/// Truncates to whole seconds. The API stores no fractions; with them, the written value would differ from the one
/// read back.
pub fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_with_the_status_only() {
        let early: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let late: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let first = condition(&[], "Ready", ConditionStatus::False, "A", "a", early);
        assert_eq!(first.last_transition_time.0.to_string(), "2026-01-01T00:00:00Z");
        let second = condition(
            std::slice::from_ref(&first),
            "Ready",
            ConditionStatus::False,
            "B",
            "b",
            late,
        );
        assert_eq!(second.last_transition_time, first.last_transition_time);
        assert_eq!(second.reason, "B");
        let third = condition(&[second], "Ready", ConditionStatus::True, "C", "c", late);
        assert_eq!(third.last_transition_time.0, late);
    }
}
