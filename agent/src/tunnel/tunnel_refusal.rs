//! Refusals of a tunnel: of calls by agents of its node, and of connections from other nodes.

use std::{collections::BTreeMap, time::Duration};

use drydock_core::migration::hand_over::HandOverRefusal;
use drydock_host::pod_folder::FolderError;
use drydock_runtime::clock::Instant;
use parking_lot::Mutex;
use thiserror::Error;

use super::identity::SessionIdentityError;

/// Reason why an agent's call is refused.
#[derive(Debug, Error)]
pub(super) enum CallRefusal {
    /// The tunnel's process is about to end.
    #[error("the tunnel is about to end and accepts no new sessions")]
    Draining,
    /// The maximum number of sessions exists. It is larger than the number of guests that can migrate on one node.
    #[error("the tunnel already has {0} sessions")]
    TooManySessions(usize),
    /// The value is not the UID of a migration.
    #[error("{0:?} is not the UID of a migration")]
    BadMigration(String),
    /// The role is neither source nor target.
    #[error("the role of the session is neither source nor target")]
    UnknownRole,
    /// The migration has a session with another specification.
    #[error("migration {0} already has a session for another role, pod or domain")]
    OtherSession(String),
    /// The session does not exist.
    #[error("migration {0} has no session")]
    NoSession(String),
    /// The session is paired with another peer.
    #[error("migration {0} is paired with another peer")]
    OtherPeer(String),
    /// The fingerprint or the address is invalid.
    #[error("{0}")]
    BadPeer(String),
    /// Only a source accepts the call.
    #[error("this side of migration {0} is not its source")]
    NotSource(String),
    /// The hand-over no longer allows the call.
    #[error(transparent)]
    HandOver(#[from] HandOverRefusal),
    /// The sockets in the pod could not be created.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No key could be generated.
    #[error(transparent)]
    Identity(#[from] SessionIdentityError),
    /// The line is not a call.
    #[error("the call cannot be parsed: {0}")]
    NotUnderstood(String),
    /// The kernel refused the listener.
    #[error("could not listen: {0}")]
    Listen(#[from] std::io::Error),
}

impl CallRefusal {
    /// Returns the stable name of the reason.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Draining => "Draining",
            Self::TooManySessions(_) => "TooManySessions",
            Self::BadMigration(_) => "BadMigration",
            Self::UnknownRole => "UnknownRole",
            Self::OtherSession(_) => "OtherSession",
            Self::NoSession(_) => "NoSession",
            Self::OtherPeer(_) => "OtherPeer",
            Self::BadPeer(_) => "BadPeer",
            Self::NotSource(_) => "NotSource",
            Self::HandOver(refusal) => refusal.reason(),
            Self::Folder(error) => error.reason(),
            Self::Identity(_) => "NoIdentity",
            Self::NotUnderstood(_) => "NotUnderstood",
            Self::Listen(_) => "SocketFailed",
        }
    }
}

/// Reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub(super) enum StreamRefusal {
    /// Too many connections are not identified yet.
    #[error("too many connections have not identified themselves yet")]
    TooManyConnections,
    /// The handshake and the header did not arrive in time.
    #[error("the connection did not identify itself and its purpose in time")]
    TooSlow,
    /// The connection does not use TLS 1.3 with the parameters of a tunnel.
    #[error("the TLS handshake failed")]
    HandshakeFailed,
    /// The connection names no session, or its session does not exist, is closed or has the source role.
    #[error("the requested session does not exist")]
    UnknownSession,
    /// The certificate is not the certificate of the session's peer.
    #[error("the certificate is not the certificate of the session's peer")]
    WrongCertificate,
    /// The connection closed before its header arrived.
    #[error("the connection was closed before the stream header arrived")]
    ClosedEarly,
    /// The header names no known stream.
    #[error("the stream header names no known stream")]
    BadHeader,
    /// The session has the maximum number of streams of this kind.
    #[error("the session already has the maximum number of streams of this kind")]
    StreamTaken,
    /// No process in the pod listens for the stream.
    #[error("no process in the pod accepts the stream")]
    NoProcessInPod,
}

impl StreamRefusal {
    /// All reasons, so that each reason is counted from the start.
    pub(super) const ALL: [Self; 9] = [
        Self::TooManyConnections,
        Self::TooSlow,
        Self::HandshakeFailed,
        Self::UnknownSession,
        Self::WrongCertificate,
        Self::ClosedEarly,
        Self::BadHeader,
        Self::StreamTaken,
        Self::NoProcessInPod,
    ];

    /// Returns the stable name of the reason.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::TooManyConnections => "TooManyConnections",
            Self::TooSlow => "TooSlow",
            Self::HandshakeFailed => "HandshakeFailed",
            Self::UnknownSession => "UnknownSession",
            Self::WrongCertificate => "WrongCertificate",
            Self::ClosedEarly => "ClosedEarly",
            Self::BadHeader => "BadHeader",
            Self::StreamTaken => "StreamTaken",
            Self::NoProcessInPod => "NoProcessInPod",
        }
    }
}

/// Minimum interval between two log lines for the same reason.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Limits the log lines about refused connections.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// Time of the last log line for each reason, and the number of refusals that were not logged since then.
    last: Mutex<BTreeMap<StreamRefusal, (Instant, u64)>>,
}

impl RefusalLog {
    /// Returns whether to log a refusal now.
    ///
    /// `Some` contains the number of refusals with the same reason that were not logged since the last log line.
    pub(super) fn admits(&self, refusal: StreamRefusal, now: Instant) -> Option<u64> {
        let mut last = self.last.lock();
        match last.get_mut(&refusal) {
            Some((logged, kept)) if now.duration_since(*logged) < LOG_EVERY => {
                *kept += 1;
                None
            }
            before => {
                let kept = before.map_or(0, |(_, kept)| *kept);
                last.insert(refusal, (now, 0));
                Some(kept)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_logged_with_the_count_of_those_left_out() {
        let (log, begin) = (RefusalLog::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        use StreamRefusal::{BadHeader, TooSlow};
        for (seconds, refusal, expected) in [
            (0, TooSlow, Some(0)),
            (1, TooSlow, None),
            (1, BadHeader, Some(0)),
            (9, TooSlow, None),
            (10, TooSlow, Some(2)),
            (11, TooSlow, None),
            (21, BadHeader, Some(0)),
        ] {
            assert_eq!(log.admits(refusal, at(seconds)), expected, "{seconds} {refusal:?}");
        }
    }

    #[test]
    fn reasons_are_distinct() {
        let mut reasons = StreamRefusal::ALL.map(StreamRefusal::reason);
        reasons.sort_unstable();
        assert!(reasons.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
