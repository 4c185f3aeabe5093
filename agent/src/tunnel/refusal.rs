//! What a tunnel refuses: to agents of its node, and to whoever connects from elsewhere.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use drydock_core::migration::hand_over::HandOverRefusal;
use drydock_host::pod_folder::FolderError;
use drydock_runtime::clock::Instant;
use thiserror::Error;

use super::identity::IdentityError;

/// Why a call of an agent is refused.
#[derive(Debug, Error)]
pub(super) enum CallRefusal {
    /// The process is about to end.
    #[error("the tunnel is about to end and takes no new sessions")]
    Draining,
    /// More sessions than a node can have guests on the move.
    #[error("there are {0} sessions already")]
    TooManySessions(usize),
    /// Not a UID.
    #[error("{0:?} is not the UID of a migration")]
    BadMigration(String),
    /// Neither source nor target.
    #[error("the role of the session is neither source nor target")]
    UnknownRole,
    /// The migration has a session, for something else.
    #[error("there is a session of migration {0} for another role, pod or domain")]
    OtherSession(String),
    /// There is no such session.
    #[error("there is no session of migration {0}")]
    NoSession(String),
    /// The session has a peer, which is another.
    #[error("migration {0} is paired with another peer")]
    OtherPeer(String),
    /// Fingerprint or address are none.
    #[error("{0}")]
    BadPeer(String),
    /// Only a source can be asked this.
    #[error("this side of migration {0} is not its source")]
    NotSource(String),
    /// Too late.
    #[error(transparent)]
    HandOver(#[from] HandOverRefusal),
    /// The sockets in the pod cannot be made.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No key can be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The line was no call.
    #[error("not understood: {0}")]
    NotUnderstood(String),
    /// The kernel refuses.
    #[error("could not listen: {0}")]
    Listen(#[from] std::io::Error),
}

impl CallRefusal {
    /// A stable word for it.
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

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub(super) enum StreamRefusal {
    /// Too many have not said yet who they are.
    #[error("too many connections have not said yet who they are")]
    TooManyConnections,
    /// It did not say who it is and what for in time.
    #[error("it did not say in time who it is and what for")]
    TooSlow,
    /// It does not speak TLS 1.3, or not as a tunnel does.
    #[error("the handshake failed")]
    HandshakeFailed,
    /// It asks for no session that there is, or that has a peer.
    #[error("it asks for a session that there is not")]
    UnknownSession,
    /// It is not the peer of the session that it asks for.
    #[error("its certificate is not that of the session's peer")]
    WrongCertificate,
    /// It closed before it said what it is for.
    #[error("it closed before it said what it is for")]
    ClosedEarly,
    /// It says that it is for something that there is not.
    #[error("it does not say which stream it is")]
    BadHeader,
    /// There is such a stream already, or as many as there may be.
    #[error("there are as many of these streams as there may be")]
    StreamTaken,
    /// Nothing in the pod takes it.
    #[error("nothing in the pod takes the stream")]
    NobodyInPod,
}

impl StreamRefusal {
    /// All of them, so that each is counted from the start.
    pub(super) const ALL: [Self; 9] = [
        Self::TooManyConnections,
        Self::TooSlow,
        Self::HandshakeFailed,
        Self::UnknownSession,
        Self::WrongCertificate,
        Self::ClosedEarly,
        Self::BadHeader,
        Self::StreamTaken,
        Self::NobodyInPod,
    ];

    /// A stable word for it.
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
            Self::NobodyInPod => "NobodyInPod",
        }
    }
}

/// How often one reason is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Keeps whoever is refused from filling the log.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// When each reason was last logged, and how often it was not since then.
    last: Mutex<BTreeMap<StreamRefusal, (Instant, u64)>>,
}

impl RefusalLog {
    /// Whether to log a refusal now, and how many of its kind were not logged since the last time.
    pub(super) fn admits(&self, refusal: StreamRefusal, now: Instant) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn each_reason_is_logged_once_in_a_while_with_the_number_of_those_that_were_not() {
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
    fn reasons_are_words_of_their_own() {
        let mut words = StreamRefusal::ALL.map(StreamRefusal::reason);
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
