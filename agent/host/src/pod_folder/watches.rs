//! Folder watches with one shared inotify instance per process.
//!
//! The kernel limits the inotify instances of a user (128), and each instance has only one watch per folder. Therefore
//! waiters share watches, and the last waiter of a folder removes its watch.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, OnceLock},
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
};
use parking_lot::Mutex;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
};

use crate::background;

/// A waiter for a name in a folder.
#[derive(Debug)]
struct Waiter {
    id: u64,
    name: OsString,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct WatchesState {
    last_id: u64,
    folders: HashMap<WatchDescriptor, Vec<Waiter>>,
}

/// Folder watches of the process.
#[derive(Debug)]
pub(super) struct FolderWatches {
    inotify: Inotify,
    state: Mutex<WatchesState>,
}

/// A wait for a name in a folder. Dropping it ends the wait.
#[derive(Debug)]
pub(super) struct NameWait {
    watches: &'static FolderWatches,
    folder: WatchDescriptor,
    id: u64,
}

/// Returns the watches of the process. They are created on first use.
pub(super) fn watches() -> io::Result<&'static FolderWatches> {
    static WATCHES: OnceLock<Result<FolderWatches, Errno>> = OnceLock::new();
    static READER: OnceLock<Result<(), String>> = OnceLock::new();
    let begun = WATCHES.get_or_init(|| {
        Ok(FolderWatches {
            inotify: Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?,
            state: Mutex::default(),
        })
    });
    let watches = begun.as_ref().map_err(|errno| io::Error::from(*errno))?;
    let reader = READER.get_or_init(|| {
        let runtime = background::runtime().map_err(|error| error.to_string())?;
        runtime.spawn(watches.read());
        Ok(())
    });
    reader.clone().map_err(io::Error::other)?;
    Ok(watches)
}

impl FolderWatches {
    /// Notifies `wake` whenever an entry with this name appears in or disappears from the folder, and when the folder
    /// itself is removed or moved.
    pub(super) fn watch(
        &'static self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
        wake: &Arc<Notify>,
    ) -> nix::Result<NameWait> {
        // All waiters use the same events, because the kernel keeps one set of events per folder.
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        // The lock ensures that no event of the new watch is read before its waiter is registered.
        let mut state = self.state.lock();
        let folder = self.inotify.add_watch(path.as_str(), events)?;
        state.last_id += 1;
        let id = state.last_id;
        state.folders.entry(folder).or_default().push(Waiter {
            id,
            name: name.to_owned(),
            wake: Arc::clone(wake),
        });
        drop(state);
        Ok(NameWait {
            watches: self,
            folder,
            id,
        })
    }

    #[expect(
        unsafe_code,
        reason = "tokio has no safe way to wait for a descriptor that it does not own"
    )]
    async fn read(&'static self) {
        // SAFETY: the descriptor belongs to the inotify instance, which is never closed or replaced: `self` lives as
        // long as the process.
        let descriptor =
            unsafe { AsyncFd::register_with_interest(self.inotify.as_fd().as_raw_fd(), Interest::READABLE) };
        let descriptor = match descriptor {
            Ok(descriptor) => descriptor,
            Err(error) => {
                tracing::error!(%error, "pods' folders cannot be watched");
                return;
            }
        };
        loop {
            let Ok(mut readable) = descriptor.readable().await else {
                return;
            };
            match self.inotify.read_events() {
                Ok(events) => {
                    let mut state = self.state.lock();
                    for event in &events {
                        state.dispatch(event);
                    }
                }
                Err(Errno::EAGAIN) => readable.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(error) => {
                    // Reading fails only if the kernel is out of memory. All waiters are notified to check again.
                    tracing::warn!(%error, "could not read the events of pods' folders");
                    self.state.lock().notify_all();
                    readable.clear_ready();
                }
            }
        }
    }
}

impl WatchesState {
    fn dispatch(&mut self, event: &InotifyEvent) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.notify_all();
        } else if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            // The folder was removed, together with its watch.
            for waiter in self.folders.remove(&event.wd).into_iter().flatten() {
                waiter.wake.notify_one();
            }
        } else if let Some(waiters) = self.folders.get(&event.wd) {
            for waiter in waiters {
                // An event without a name is about the folder itself.
                if event.name.as_ref().is_none_or(|name| *name == waiter.name) {
                    waiter.wake.notify_one();
                }
            }
        }
    }

    fn notify_all(&self) {
        for waiter in self.folders.values().flatten() {
            waiter.wake.notify_one();
        }
    }
}

impl Drop for NameWait {
    fn drop(&mut self) {
        let mut state = self.watches.state.lock();
        // The watch may have ended by itself. IDs are not reused.
        let Some(waiters) = state.folders.get_mut(&self.folder) else {
            return;
        };
        waiters.retain(|waiter| waiter.id != self.id);
        if waiters.is_empty() {
            state.folders.remove(&self.folder);
            let _ = self.watches.inotify.rm_watch(self.folder);
        }
    }
}

/// Returns the number of waiters for a name, in any folder.
#[cfg(test)]
pub(super) fn waiters_for(name: &str) -> usize {
    let state = watches().unwrap().state.lock();
    state
        .folders
        .values()
        .flatten()
        .filter(|waiter| waiter.name == name)
        .count()
}
