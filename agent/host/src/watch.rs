//! Detection of changes to the machine, without polling.
//!
//! The watch covers the folder of /dev/kvm, KVM's module parameters, and files that the caller specifies. The kernel
//! reports a change of a parameter only if it is written through sysfs, and never reports the loading of a module.
//! However, the device node appears together with the module. An event is a reason to take the fingerprint again, not
//! proof of a change.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
};

use crate::{kernel, roots::Roots};

/// A watch of one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WatchedFolder {
    folder: PathBuf,
    /// Name of the relevant file; `None` if all names are relevant.
    name: Option<OsString>,
    events: AddWatchFlags,
}

/// A watch of the machine. Its descriptor becomes readable when an event arrives.
#[derive(Debug)]
pub struct HostWatch {
    inotify: Inotify,
    roots: Roots,
    files: Vec<PathBuf>,
    watched: HashMap<WatchDescriptor, Vec<WatchedFolder>>,
}

impl HostWatch {
    /// Watches this machine and additionally `files`, for example the kubelet's state of pinned CPUs.
    ///
    /// # Errors
    /// If the kernel cannot provide an inotify instance. Missing folders are not an error.
    pub fn new(files: &[PathBuf]) -> io::Result<Self> {
        Self::with_roots(&Roots::default(), files)
    }

    /// Watches the machine whose files are in `roots`.
    ///
    /// # Errors
    /// If the kernel cannot provide an inotify instance.
    pub fn with_roots(roots: &Roots, files: &[PathBuf]) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let mut watch = Self {
            inotify,
            roots: roots.clone(),
            files: files.to_vec(),
            watched: HashMap::new(),
        };
        watch.arm();
        Ok(watch)
    }

    /// Reads all pending events and returns whether any of them is relevant.
    ///
    /// # Errors
    /// If reading the events fails.
    pub fn drain(&mut self) -> io::Result<bool> {
        let mut interesting = false;
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    for event in events {
                        interesting |= self.is_of_interest(&event);
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if interesting {
            // A new module adds a folder of parameters, and a watch that has ended may be possible again.
            self.arm();
        }
        Ok(interesting)
    }

    fn is_of_interest(&mut self, event: &InotifyEvent) -> bool {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return true;
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            return self.watched.remove(&event.wd).is_some();
        }
        self.watched.get(&event.wd).is_some_and(|targets| {
            targets.iter().any(|target| {
                let named = target.name.is_none() || target.name == event.name;
                named && target.events.intersects(event.mask)
            })
        })
    }

    /// Adds the missing watches.
    fn arm(&mut self) {
        for target in self.targets() {
            if self.watched.values().flatten().any(|watched| *watched == target) {
                continue;
            }
            // IN_MASK_ADD, which nix does not define, extends an existing watch of the same folder. A missing folder
            // may appear later.
            let add = AddWatchFlags::from_bits_retain(nix::libc::IN_MASK_ADD);
            let events = target.events | add | AddWatchFlags::IN_ONLYDIR;
            if let Ok(descriptor) = self.inotify.add_watch(&target.folder, events) {
                self.watched.entry(descriptor).or_default().push(target);
            }
        }
    }

    fn targets(&self) -> Vec<WatchedFolder> {
        let came_or_went = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO;
        let written = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MODIFY;
        let named = |path: &Path, events| {
            let (folder, name) = (path.parent()?.to_owned(), path.file_name()?.to_owned());
            Some(WatchedFolder {
                folder,
                name: Some(name),
                events,
            })
        };
        // Guests open the device for writing and close it continuously. These events are irrelevant.
        let mut targets: Vec<WatchedFolder> = named(&self.roots.kvm, came_or_went | AddWatchFlags::IN_ATTRIB)
            .into_iter()
            .collect();
        targets.extend(
            self.files
                .iter()
                .filter_map(|file| named(file, came_or_went | AddWatchFlags::IN_CLOSE_WRITE)),
        );
        let modules = self.roots.sys.join("module");
        let names: BTreeSet<String> = kernel::kvm_modules(&self.roots).into_iter().collect();
        targets.extend(names.iter().map(|module| WatchedFolder {
            folder: modules.join(module).join("parameters"),
            name: None,
            events: written,
        }));
        targets.push(WatchedFolder {
            folder: modules,
            name: Some("kvm".into()),
            events: came_or_went,
        });
        targets
    }
}

impl AsFd for HostWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl AsRawFd for HostWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
