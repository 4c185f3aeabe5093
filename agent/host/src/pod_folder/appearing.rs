//! Waits for a file to appear in a pod's folder, folder by folder, without polling.
//!
//! Each folder on the path is watched before the next name is looked up in it. Therefore any change after the lookup
//! wakes the waiter, which then walks the path again from the start.

use std::{ffi::OsStr, os::fd::AsFd, path::Path, sync::Arc};

use nix::errno::Errno;
use tokio::sync::Notify;

use super::{
    FolderError, PodFolder, checked, find,
    watches::{NameWait, watches},
};

/// A watched path.
pub(crate) struct Way {
    /// Whether a file exists at the end of the path.
    pub(crate) is_complete: bool,
    /// Notification of a change of the path.
    wake: Arc<Notify>,
    /// One watch for each existing folder.
    _watching: Vec<NameWait>,
}

impl Way {
    /// Waits until the path has changed since it was walked.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }
}

/// A watch of a path in a pod's folder. It reports every change after its creation.
pub struct WatchedPath(Way);

impl WatchedPath {
    /// Waits until the path may have changed. A new watch is needed for later changes.
    pub async fn changed(&self) {
        self.0.changed().await;
    }
}

impl PodFolder {
    /// Watches `path`, whether it exists or not.
    ///
    /// # Errors
    /// As for [`appeared`](Self::appeared).
    pub fn watch(&self, path: &str) -> Result<WatchedPath, FolderError> {
        self.walk(path).map(WatchedPath)
    }

    /// Watches an entry of the folder, which may be a link.
    ///
    /// # Errors
    /// As for [`appeared`](Self::appeared).
    pub(super) fn watch_entry(&self, name: &str) -> Result<WatchedPath, FolderError> {
        self.walk_to(name, true).map(WatchedPath)
    }

    /// Waits until `path` exists, with any file type. There is no time limit: drop the future to stop waiting.
    ///
    /// The pod's folder does not have to exist yet.
    ///
    /// # Errors
    /// If the path contains a link or a component that is not a folder, or the kubelet has no pods folder.
    pub async fn appeared(&self, path: &str) -> Result<(), FolderError> {
        loop {
            let way = self.walk(path)?;
            if way.is_complete {
                return Ok(());
            }
            way.changed().await;
        }
    }

    /// Waits until the kubelet has removed the pod's folder. There is no time limit: drop the future to stop waiting.
    ///
    /// # Errors
    /// If the kubelet has no pods folder, or it cannot be watched.
    pub async fn disappeared(&self) -> Result<(), FolderError> {
        let [name, ..] = &self.names;
        let watches = watches().map_err(|error| self.unreadable("", &error))?;
        let (pods, wake) = (self.open_pods()?, Arc::new(Notify::new()));
        let _watching = watches
            .watch(pods.as_fd(), OsStr::new(name), &wake)
            .map_err(|errno| self.failed("", errno))?;
        loop {
            match find(pods.as_fd(), Path::new(name)) {
                Ok(_) => wake.notified().await,
                Err(Errno::ENOENT) => return Ok(()),
                Err(errno) => return Err(self.failed("", errno)),
            }
        }
    }

    /// Walks the path as far as its folders exist, and watches them.
    pub(crate) fn walk(&self, path: &str) -> Result<Way, FolderError> {
        self.walk_to(path, false)
    }

    /// Walks the path as far as its folders exist, and watches them. If `link` is set, the path may end with a link.
    fn walk_to(&self, path: &str, link: bool) -> Result<Way, FolderError> {
        checked(path)?;
        let watches = watches().map_err(|error| self.unreadable(path, &error))?;
        let wake = Arc::new(Notify::new());
        let mut watching = Vec::new();
        let mut folder = self.open_pods()?;
        let mut names = self.names.iter().map(String::as_str).chain(path.split('/')).peekable();
        let mut is_complete = true;
        while let Some(name) = names.next() {
            let found = watches
                .watch(folder.as_fd(), OsStr::new(name), &wake)
                .and_then(|watch| {
                    watching.push(watch);
                    find(folder.as_fd(), Path::new(name))
                });
            match found {
                Ok(found) => folder = found,
                // If the folder itself was removed after it was found, the watch of its parent reports this.
                Err(Errno::ENOENT) => {
                    is_complete = false;
                    break;
                }
                Err(Errno::ELOOP) if link && names.peek().is_none() => break,
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
