//! Why a guest has stayed on its source.

use drydock_api::kubevirt::migration::{MigrationAbort, SourceState};

use crate::migration::{convergence::is_given_up_for, record::MigrationRecord};

/// Reason of a guest that stayed: The migration was aborted or deleted.
pub const ABORTED: &str = "Aborted";
/// Reason of a guest that stayed: The migration ended while the agent of the source node did not run.
pub const MIGRATION_ENDED: &str = "MigrationEnded";
/// Reason of a guest that stayed: The migration ended before the guest began to move.
pub const NOT_STARTED: &str = "NotStarted";
/// Reason of a guest that stayed: Its libvirt ended the migration with an error, which the message contains.
pub const LIBVIRT_GAVE_UP: &str = "LibvirtAborted";

/// Why a guest has not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// The facts about a migration whose guest has stayed.
#[derive(Clone, Copy, Debug)]
pub struct StayedGuest<'a> {
    /// The state recorded in the object.
    pub record: MigrationRecord,
    /// The request to abort, if there is one.
    pub abort: Option<&'a MigrationAbort>,
    /// Why the tunnel has ended the session by itself, if it has.
    pub session: Option<&'a SourceFailure>,
    /// Why the agent aborted the migration, or libvirt's error if libvirt did, as far as this process knows.
    pub failure: Option<&'a SourceFailure>,
}

/// Returns the reason and the message for a guest that has stayed.
pub fn why_stayed(stayed: &StayedGuest<'_>) -> SourceFailure {
    let because = |reason, message: &str| SourceFailure {
        reason,
        message: message.into(),
    };
    let is_own = |failure: &&SourceFailure| is_given_up_for(failure.reason);
    // The target's report that its guest was ended may have come back as an abort meanwhile.
    if let Some(own) = stayed.session.or(stayed.failure.filter(is_own)) {
        return own.clone();
    }
    if let Some(abort) = stayed.abort {
        let message = format!("Live migration has been aborted: {}", abort.message);
        return because(ABORTED, &message);
    }
    if stayed.record.deleted {
        return because(ABORTED, "Live migration has been aborted");
    }
    match (stayed.failure, stayed.record.source) {
        (Some(failure), _) => failure.clone(),
        (None, Some(SourceState::Migrating | SourceState::Halted)) => because(
            MIGRATION_ENDED,
            "the migration ended while the agent of the source node was not running; the guest keeps running on the \
             source",
        ),
        (None, _) => because(NOT_STARTED, "the migration ended before the guest began to move"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::unsent::NOTHING_SENT;

    #[test]
    fn reason_of_the_first_cause_is_reported() {
        let failure = |reason, message: &str| SourceFailure {
            reason,
            message: message.into(),
        };
        let (libvirt, own) = (failure(LIBVIRT_GAVE_UP, "refused"), failure(NOTHING_SENT, "silent"));
        let tunnel = failure("LibvirtCallUnsupported", "call 7");
        let abort = MigrationAbort {
            reason: "Deleted".into(),
            message: "it was deleted".into(),
        };
        let migrating = Some(SourceState::Migrating);
        let aborted = (ABORTED, "Live migration has been aborted: it was deleted");
        let away = (
            MIGRATION_ENDED,
            "the migration ended while the agent of the source node was not running; the guest keeps running on the \
             source",
        );
        let not_started = (NOT_STARTED, "the migration ended before the guest began to move");
        for (source, deleted, abort, session, failure, expected) in [
            (None, false, None, None, None, not_started),
            (migrating, false, None, None, None, away),
            (Some(SourceState::Halted), false, None, None, None, away),
            (
                migrating,
                false,
                None,
                None,
                Some(&libvirt),
                (LIBVIRT_GAVE_UP, "refused"),
            ),
            (migrating, false, Some(&abort), None, Some(&libvirt), aborted),
            (migrating, true, Some(&abort), None, None, aborted),
            (
                None,
                true,
                None,
                None,
                None,
                (ABORTED, "Live migration has been aborted"),
            ),
            (
                migrating,
                true,
                None,
                None,
                Some(&libvirt),
                (ABORTED, "Live migration has been aborted"),
            ),
            (
                migrating,
                true,
                Some(&abort),
                None,
                Some(&own),
                (NOTHING_SENT, "silent"),
            ),
            (
                migrating,
                true,
                Some(&abort),
                Some(&tunnel),
                Some(&own),
                ("LibvirtCallUnsupported", "call 7"),
            ),
        ] {
            let stayed = StayedGuest {
                record: MigrationRecord {
                    source,
                    deleted,
                    ..MigrationRecord::default()
                },
                abort,
                session,
                failure,
            };
            let found = why_stayed(&stayed);
            assert_eq!((found.reason, found.message.as_str()), expected, "{stayed:?}");
        }
    }
}
