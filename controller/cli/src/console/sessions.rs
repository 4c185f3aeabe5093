//! Access to the console for browsers that have opened one of its links.
//!
//! The key in a link works once. The page exchanges it for the key of a session, which it sends with each request.
//! There are no cookies, because a browser would send them to every port of the address.

use std::{collections::HashSet, fmt::Write as _};

use parking_lot::Mutex;
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom as _, SystemRandom},
};
use thiserror::Error;

/// Length of a key in bytes.
const LENGTH: usize = 32;

/// Error: the operating system has no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the system provides no random numbers")]
pub(super) struct NoRandom;

/// Valid keys. Only their digests are kept, so that the duration of a lookup does not reveal how much of a guess is
/// correct.
#[derive(Debug, Default)]
pub(super) struct ConsoleSessions(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    links: HashSet<Vec<u8>>,
    sessions: HashSet<Vec<u8>>,
}

impl ConsoleSessions {
    /// Returns the key of a new link.
    ///
    /// # Errors
    /// If the operating system has no random numbers.
    pub(super) fn link(&self) -> Result<String, NoRandom> {
        let key = random()?;
        self.0.lock().links.insert(hash(&key));
        Ok(key)
    }

    /// Exchanges the key of a link for the key of a new session. The link cannot be used again.
    pub(super) fn exchange(&self, link: &str) -> Option<String> {
        let session = random().ok()?;
        let mut keys = self.0.lock();
        keys.links.remove(&hash(link)).then(|| {
            keys.sessions.insert(hash(&session));
            session
        })
    }

    /// Returns whether a session has this key.
    pub(super) fn knows(&self, session: &str) -> bool {
        self.0.lock().sessions.contains(&hash(session))
    }
}

fn hash(key: &str) -> Vec<u8> {
    digest(&SHA256, key.as_bytes()).as_ref().to_vec()
}

fn random() -> Result<String, NoRandom> {
    let mut bytes = [0; LENGTH];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(bytes.iter().fold(String::new(), |mut key, byte| {
        // Writing to a string cannot fail.
        let _ = write!(key, "{byte:02x}");
        key
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_opens_one_session() {
        let sessions = ConsoleSessions::default();
        let link = sessions.link().unwrap();
        assert_eq!(link.len(), 2 * LENGTH);
        let session = sessions.exchange(&link).unwrap();
        assert!(sessions.knows(&session) && session != link);
        assert_eq!(sessions.exchange(&link), None, "a second use");
        assert!(!sessions.knows(&link) && !sessions.knows(""));
        let other = sessions.link().unwrap();
        assert!(sessions.exchange(&other).is_some_and(|other| other != session));
        assert!(sessions.knows(&session));
    }
}
