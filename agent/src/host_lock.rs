//! Ensures that only one agent acts on a node.
//!
//! During a rollout, two agent pods share a node for a while. The agent that holds the *acting* lock acts. The next
//! agent holds the *next* lock and waits for the first. Both locks are files in a folder of the host. An agent that
//! stops can therefore see whether another agent waits to take over, without a request to the API server and without a
//! race:
//!
//! ```text
//!   new agent:  lock next ── ready ── lock acting (waits) ── unlock next ── act
//!   old agent:  try next ── taken: leave silently, the new one acts at once
//!                        └─ free: hold it, write "not schedulable", leave
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use tokio::sync::oneshot;

/// The acting lock, held until dropped.
#[derive(Debug)]
pub(crate) struct HostLock {
    next: PathBuf,
    _acting: Flock<File>,
}

/// The stages of waiting for the lock.
pub(crate) struct LockWait {
    /// Resolves once this agent is next in line. The agent may report itself ready from then on.
    pub(crate) is_next: oneshot::Receiver<io::Result<()>>,
    /// Resolves once this agent holds the acting lock.
    pub(crate) acts: oneshot::Receiver<io::Result<HostLock>>,
}

/// Starts waiting for the lock in `folder`, which is created if it does not exist.
///
/// A thread blocks in the kernel until the lock is free. The thread ends with the process.
pub(crate) fn wait(folder: &Path) -> LockWait {
    let (next_sender, is_next) = oneshot::channel();
    let (acting_sender, acts) = oneshot::channel();
    let folder = folder.to_owned();
    thread::spawn(move || {
        let next_path = folder.join("agent.next.lock");
        let next = fs::create_dir_all(&folder)
            .and_then(|()| open(&next_path))
            .and_then(|file| lock(file, FlockArg::LockExclusive));
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                // The send fails only if the receiver was dropped and the lock is no longer needed.
                let _ = next_sender.send(Err(error));
                return;
            }
        };
        let _ = next_sender.send(Ok(()));
        let acting = open(&folder.join("agent.lock")).and_then(|file| lock(file, FlockArg::LockExclusive));
        drop(next);
        let _ = acting_sender.send(acting.map(|acting| HostLock {
            next: next_path,
            _acting: acting,
        }));
    });
    LockWait { is_next, acts }
}

/// Guard that an agent holds while it shuts down, so that no other agent can start waiting unnoticed.
#[derive(Debug)]
pub(crate) struct ShutdownGuard {
    _next: Flock<File>,
}

impl HostLock {
    /// Returns a guard if no other agent waits to act on this node, else `None`. No agent can start to wait until the
    /// guard is dropped.
    pub(crate) fn nobody_waits(&self) -> io::Result<Option<ShutdownGuard>> {
        match lock(open(&self.next)?, FlockArg::LockExclusiveNonblock) {
            Ok(next) => Ok(Some(ShutdownGuard { _next: next })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn lock(mut file: File, how: FlockArg) -> io::Result<Flock<File>> {
    loop {
        match Flock::lock(file, how) {
            Ok(lock) => return Ok(lock),
            Err((same, Errno::EINTR)) => file = same,
            Err((_, errno)) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("drydock-lock-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[tokio::test]
    async fn the_second_waits_is_next_and_acts_when_the_first_leaves() {
        let folder = folder("two");
        let first = wait(&folder);
        first.is_next.await.unwrap().unwrap();
        let first = first.acts.await.unwrap().unwrap();
        assert!(first.nobody_waits().unwrap().is_some());

        let mut second = wait(&folder);
        second.is_next.await.unwrap().unwrap();
        assert!(first.nobody_waits().unwrap().is_none());
        assert!(second.acts.try_recv().is_err(), "the first still acts");
        drop(first);
        let second = second.acts.await.unwrap().unwrap();
        assert!(second.nobody_waits().unwrap().is_some());
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn waiter_does_not_become_next_during_a_shutdown() {
        let folder = folder("guard");
        let first = wait(&folder).acts.await.unwrap().unwrap();
        let guard = first.nobody_waits().unwrap().unwrap();
        let mut second = wait(&folder);
        assert!(second.is_next.try_recv().is_err());
        drop(guard);
        second.is_next.await.unwrap().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn lock_folder_creation_failure_is_an_error() {
        let error = wait(Path::new("/proc/no/such")).is_next.await.unwrap().unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
