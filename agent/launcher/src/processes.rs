//! Processes that this one started or was left with: all of them are its to reap.

use std::{
    fs,
    io::{self, Read},
    os::fd::AsFd,
    process::{ChildStderr, ChildStdout, Command, Stdio},
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};

use crate::process_end::ProcessEnd;

/// Most of what a short command says that is read.
const SAID: u64 = 16 * 1024;

/// A process that has ended and was reaped.
#[derive(Debug)]
pub(crate) struct Reaped {
    /// Which.
    pub(crate) pid: Pid,
    /// The kernel's name of it.
    pub(crate) name: String,
    /// How.
    pub(crate) end: ProcessEnd,
}

/// Reaps a process that has ended, if there is one.
pub(crate) fn reap() -> Option<Reaped> {
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    loop {
        // Its name is gone once it is reaped.
        let pid = match waitid(Id::All, ended | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return None,
            Err(Errno::EINTR) => continue,
            Ok(status) => status.pid()?,
            Err(_) => return None,
        };
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let end = match waitid(Id::Pid(pid), ended) {
            Ok(status) => ProcessEnd::of(status).unwrap_or(ProcessEnd::Unknown),
            Err(_) => ProcessEnd::Unknown,
        };
        return Some(Reaped {
            pid,
            name: name.trim_end().to_owned(),
            end,
        });
    }
}

/// Sends a signal to a process that has not been reaped. One that has ended no longer needs it.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    let _ = kill(pid, signal);
}

/// Starts a program and lets it go: its end is reaped like all others'.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn start(command: &mut Command) -> io::Result<(Pid, Option<ChildStdout>, Option<ChildStderr>)> {
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok((Pid::from_raw(pid), child.stdout.take(), child.stderr.take()))
}

/// Makes reading return at once when there is nothing to read.
///
/// # Errors
/// If the kernel does not let it.
pub(crate) fn without_waiting(fd: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A command that runs for a short while and says little.
#[derive(Debug)]
pub(crate) struct ShortCommand {
    pub(crate) pid: Pid,
    /// When it is killed.
    pub(crate) deadline: Instant,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl ShortCommand {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(mut command: Command, deadline: Instant) -> io::Result<Self> {
        let (pid, stdout, stderr) = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        Ok(Self {
            pid,
            deadline,
            stdout,
            stderr,
        })
    }

    /// What it has said, once it has ended: answer and complaint. Who inherited its output from it
    /// is not waited for.
    pub(crate) fn said(self) -> (String, String) {
        (all_of(self.stdout), all_of(self.stderr))
    }
}

fn all_of(from: Option<impl Read + AsFd>) -> String {
    let mut bytes = Vec::new();
    if let Some(from) = from
        && without_waiting(&from).is_ok()
    {
        // What could be read until then is there, whatever ended it.
        let _ = from.take(SAID).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
