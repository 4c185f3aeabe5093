//! Waiting for something to appear in a pod's folder, folder by folder, without polling.
//!
//! Each folder on the way is watched before the next name is looked for in it, so whatever comes or
//! goes after the look wakes the one who waits, and the way is walked anew from the top.

use std::{ffi::OsStr, os::fd::AsFd, path::Path, sync::Arc};

use nix::errno::Errno;
use tokio::sync::Notify;

use super::{
    FolderError, PodFolder, checked, find,
    watches::{Watching, watches},
};

/// A way that is being watched.
pub(crate) struct Way {
    /// Something is at its end.
    pub(crate) is_complete: bool,
    /// Woken when something on the way changes.
    wake: Arc<Notify>,
    /// One for each folder that there is.
    _watching: Vec<Watching>,
}

impl Way {
    /// Ends when something on the way has changed since it was walked.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }
}

/// A watch of something in a pod's folder. Nothing that happens after it was made is missed.
pub struct Watched(Way);

impl Watched {
    /// Ends when what is at the path may have changed; a new watch shows what changes after that.
    pub async fn changed(&self) {
        self.0.changed().await;
    }
}

impl PodFolder {
    /// Watches `path`, whether anything is there or not.
    ///
    /// # Errors
    /// As for [`appeared`](Self::appeared).
    pub fn watch(&self, path: &str) -> Result<Watched, FolderError> {
        self.walk(path).map(Watched)
    }

    /// Ends when something is at `path`, whatever it is. The pod's folder need not exist yet. It has no
    /// limit in time; drop it to give up.
    ///
    /// # Errors
    /// If there is a link or no folder on the way, or the kubelet has no folder of pods.
    pub async fn appeared(&self, path: &str) -> Result<(), FolderError> {
        loop {
            let way = self.walk(path)?;
            if way.is_complete {
                return Ok(());
            }
            way.changed().await;
        }
    }

    /// Walks as far as there are folders, and watches them.
    pub(crate) fn walk(&self, path: &str) -> Result<Way, FolderError> {
        checked(path)?;
        let watches = watches().map_err(|error| self.unreadable(path, &error))?;
        let wake = Arc::new(Notify::new());
        let mut watching = Vec::new();
        let mut folder = self.open_pods()?;
        let names = self.names.iter().map(String::as_str).chain(path.split('/'));
        let mut is_complete = true;
        for name in names {
            let found = watches
                .watch(folder.as_fd(), OsStr::new(name), &wake)
                .and_then(|watch| {
                    watching.push(watch);
                    find(folder.as_fd(), Path::new(name))
                });
            match found {
                Ok(found) => folder = found,
                // If the folder itself was removed after it was found, the watch of the one above tells.
                Err(Errno::ENOENT) => {
                    is_complete = false;
                    break;
                }
                Err(errno) => return Err(self.failed(path, errno)),
            }
        }
        Ok(Way {
            is_complete,
            wake,
            _watching: watching,
        })
    }
}
