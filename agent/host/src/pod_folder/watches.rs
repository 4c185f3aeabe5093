//! Watches of folders: one inotify for the process, however many wait.
//!
//! The kernel gives a user few inotify instances (128), and a watch of a folder only once in each. So
//! those who wait share them, and the last who leaves a folder ends its watch.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
};

use crate::background;

/// Somebody who waits for a name in a folder.
#[derive(Debug)]
struct Waiter {
    id: u64,
    name: OsString,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    folders: HashMap<WatchDescriptor, Vec<Waiter>>,
}

/// The process's watches.
#[derive(Debug)]
pub(super) struct Watches {
    inotify: Inotify,
    state: Mutex<State>,
}

/// A wait for a name in a folder. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Watching {
    watches: &'static Watches,
    folder: WatchDescriptor,
    id: u64,
}

/// The process's watches, begun when they are first needed.
pub(super) fn watches() -> io::Result<&'static Watches> {
    static WATCHES: OnceLock<Result<Watches, Errno>> = OnceLock::new();
    static READER: OnceLock<Result<(), String>> = OnceLock::new();
    let begun = WATCHES.get_or_init(|| {
        Ok(Watches {
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

impl Watches {
    /// Wakes `wake` whenever something of that name comes to or leaves the folder, and when the
    /// folder itself goes.
    pub(super) fn watch(
        &'static self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
        wake: &Arc<Notify>,
    ) -> nix::Result<Watching> {
        // The same for all, as the kernel keeps one set of events for each folder.
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        // Locked, so that no event of the new watch is read before there is somebody to tell.
        let mut state = self.lock();
        let folder = self.inotify.add_watch(path.as_str(), events)?;
        state.last_id += 1;
        let id = state.last_id;
        state.folders.entry(folder).or_default().push(Waiter {
            id,
            name: name.to_owned(),
            wake: Arc::clone(wake),
        });
        drop(state);
        Ok(Watching {
            watches: self,
            folder,
            id,
        })
    }

    #[expect(unsafe_code, reason = "tokio waits for a descriptor that is not its own only so")]
    async fn read(&'static self) {
        // SAFETY: the descriptor belongs to the inotify, which is never closed or replaced: `self`
        // lives as long as the process.
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
                    let mut state = self.lock();
                    for event in &events {
                        state.tell(event);
                    }
                }
                Err(Errno::EAGAIN) => readable.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(error) => {
                    // Nothing can be read wrongly but by a kernel without memory: all look anew.
                    tracing::warn!(%error, "a watch of pods' folders cannot be read");
                    self.lock().tell_all();
                    readable.clear_ready();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell(&mut self, event: &InotifyEvent) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.tell_all();
        } else if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            // The folder is gone, and its watch with it.
            for waiter in self.folders.remove(&event.wd).into_iter().flatten() {
                waiter.wake.notify_one();
            }
        } else if let Some(waiters) = self.folders.get(&event.wd) {
            for waiter in waiters {
                // Without a name it is the folder itself.
                if event.name.as_ref().is_none_or(|name| *name == waiter.name) {
                    waiter.wake.notify_one();
                }
            }
        }
    }

    fn tell_all(&self) {
        for waiter in self.folders.values().flatten() {
            waiter.wake.notify_one();
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.watches.lock();
        // It may have ended by itself; numbers are not used twice.
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

/// How many wait for that name, in any folder.
#[cfg(test)]
pub(super) fn waiters_for(name: &str) -> usize {
    let state = watches().unwrap().lock();
    state
        .folders
        .values()
        .flatten()
        .filter(|waiter| waiter.name == name)
        .count()
}
