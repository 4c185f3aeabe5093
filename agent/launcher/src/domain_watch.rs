//! Events from libvirt's own folders.
//!
//! The events show that libvirt's socket was created, that the domain has a QEMU, and that libvirt has handled the
//! domain's end.
//!
//! ```text
//! libvirt/libvirt-sock          created: libvirtd is about to accept connections
//! libvirt/qemu/run/NAME.pid     written: the PID of the domain's QEMU
//! libvirt/qemu/run/NAME.xml     rewritten: the domain's state or its job has changed
//!                               removed: libvirt has handled the domain's end
//! cache/.../NAME.log            written: libvirt or QEMU has logged a message
//! ```
//!
//! These events only trigger a check. The state is then queried from libvirt.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
    unistd::Pid,
};

use crate::folders::Folders;

/// An event from libvirt's folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderEvent {
    /// libvirt's socket was created.
    Socket,
    /// The domain has a QEMU process with this PID.
    Process(Pid),
    /// libvirt has rewritten the state file of the domain.
    StateWritten,
    /// libvirt has removed the state file of the domain.
    StateRemoved,
    /// A message was written to the log of the domain.
    Log,
}

/// Watches of libvirt's folders.
#[derive(Debug)]
pub(crate) struct DomainWatch {
    inotify: Inotify,
    sockets: WatchDescriptor,
    logs: WatchDescriptor,
    socket: OsString,
    pid_file: PathBuf,
    pid_name: OsString,
    state_name: OsString,
    log_name: OsString,
}

impl DomainWatch {
    /// Starts the watches. The folders must exist.
    ///
    /// # Errors
    /// If the kernel refuses the watches.
    pub(crate) fn new(domain: &str, folders: &Folders) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let sockets = inotify.add_watch(&folders.libvirt(), AddWatchFlags::IN_CREATE)?;
        inotify.add_watch(
            &folders.domains(),
            // The PID file stays open as long as QEMU runs, so IN_CLOSE_WRITE would come too late.
            AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE,
        )?;
        let logs = inotify.add_watch(&folders.logs(), AddWatchFlags::IN_MODIFY)?;
        let pid_name = format!("{domain}.pid");
        Ok(Self {
            inotify,
            sockets,
            logs,
            socket: folders.socket().file_name().unwrap_or_default().to_owned(),
            pid_file: folders.domains().join(&pid_name),
            pid_name: pid_name.into(),
            state_name: format!("{domain}.xml").into(),
            log_name: format!("{domain}.log").into(),
        })
    }

    /// Returns the events since the last call, in order.
    ///
    /// # Errors
    /// If the kernel's events cannot be read.
    pub(crate) fn read(&self) -> io::Result<Vec<FolderEvent>> {
        let mut signs = Vec::new();
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(signs),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in events {
                let name = event.name.as_deref().unwrap_or(OsStr::new(""));
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    // Events were lost. The added events trigger queries for the current state.
                    signs.extend(self.process());
                    signs.extend([FolderEvent::StateWritten, FolderEvent::StateRemoved]);
                } else if event.wd == self.sockets {
                    if name == self.socket {
                        signs.push(FolderEvent::Socket);
                    }
                } else if event.wd == self.logs {
                    if name == self.log_name {
                        signs.push(FolderEvent::Log);
                    }
                } else if event.mask.contains(AddWatchFlags::IN_DELETE) {
                    if name == self.state_name {
                        signs.push(FolderEvent::StateRemoved);
                    }
                } else if name == self.pid_name {
                    signs.extend(self.process());
                } else if name == self.state_name {
                    signs.push(FolderEvent::StateWritten);
                }
            }
        }
    }

    /// Returns the domain's process, if its PID can still be read.
    fn process(&self) -> Option<FolderEvent> {
        let text = fs::read_to_string(&self.pid_file).ok()?;
        let pid: i32 = text.trim().parse().ok()?;
        (pid > 1).then(|| FolderEvent::Process(Pid::from_raw(pid)))
    }
}

impl AsFd for DomainWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
