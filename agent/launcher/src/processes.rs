//! Processes that this process has started or adopted. It reaps all of them.

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

/// Maximum number of bytes read from a short command's output.
const MAX_OUTPUT: u64 = 16 * 1024;

/// A process that has ended and was reaped.
#[derive(Debug)]
pub(crate) struct Reaped {
    /// Process ID.
    pub(crate) pid: Pid,
    /// The kernel's name of the process.
    pub(crate) name: String,
    /// How the process ended.
    pub(crate) end: ProcessEnd,
}

/// Reaps a process that has ended; `None` if there is none.
pub(crate) fn reap() -> Option<Reaped> {
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    loop {
        // The first wait does not reap, because the name of the process is not available after reaping.
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

/// Sends a signal to a process that has not been reaped.
///
/// Errors are ignored, because an ended process no longer needs the signal.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    let _ = kill(pid, signal);
}

/// Starts a program without keeping a handle. Its end is reaped like that of any other process.
///
/// # Errors
/// If the program cannot be started.
pub(crate) fn start(command: &mut Command) -> io::Result<(Pid, Option<ChildStdout>, Option<ChildStderr>)> {
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok((Pid::from_raw(pid), child.stdout.take(), child.stderr.take()))
}

/// Makes a descriptor non-blocking.
///
/// # Errors
/// If the kernel refuses the change.
pub(crate) fn without_waiting(fd: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A command that runs for a short time and prints little.
#[derive(Debug)]
pub(crate) struct ShortCommand {
    pub(crate) pid: Pid,
    /// Time at which the command is killed.
    pub(crate) deadline: Instant,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl ShortCommand {
    /// Starts the command.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub(crate) fn start(mut command: Command, deadline: Instant) -> io::Result<Self> {
        let (pid, stdout, stderr) = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        Ok(Self {
            pid,
            deadline,
            stdout,
            stderr,
        })
    }

    /// Returns stdout and stderr of the ended command. Does not wait for processes that have inherited these streams.
    pub(crate) fn into_output(self) -> (String, String) {
        (all_of(self.stdout), all_of(self.stderr))
    }
}

fn all_of(from: Option<impl Read + AsFd>) -> String {
    let mut bytes = Vec::new();
    if let Some(from) = from
        && without_waiting(&from).is_ok()
    {
        // After an error, the data that was read so far is used.
        let _ = from.take(MAX_OUTPUT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
