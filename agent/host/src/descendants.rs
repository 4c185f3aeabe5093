//! Kills the processes that a private libvirtd has left behind.
//!
//! libvirtd runs in its own session. The processes that it daemonizes (QEMU, to query its capabilities) create their
//! own sessions, and this process reaps them. Therefore every descendant of this process outside its session comes from
//! libvirtd. Processes of an earlier inspection that was killed are recognised by their HOME.

use std::{
    ffi::OsStr,
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid},
};
use procfs::process::{Process, Stat, all_processes};

/// Interval between two checks. A killed process ends after some microseconds.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns whether a child was adopted, which means that it is not in the session of this process.
pub(crate) fn is_adopted(child: Pid) -> bool {
    let session = |pid: Pid| {
        Process::new(pid.as_raw())
            .and_then(|process| process.stat())
            .map(|s| s.session)
    };
    match (session(child), session(getpid())) {
        (Ok(theirs), Ok(ours)) => theirs != ours,
        _ => false,
    }
}

/// Reaps a child if it has ended. Returns whether this call reaped it.
pub(crate) fn reap(child: Pid) -> bool {
    matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
}

/// Reaps all adopted children that have ended, except libvirtd. The keeper thread collects libvirtd's exit status.
pub(crate) fn reap_adopted(libvirtd: Pid) {
    let own = getpid().as_raw();
    for process in in_other_sessions() {
        if process.state == 'Z' && process.ppid == own && process.pid != libvirtd.as_raw() {
            reap(Pid::from_raw(process.pid));
        }
    }
}

/// Kills and reaps all descendants in other sessions, including descendants that start in the meantime.
///
/// Returns the number of descendants that are left after `within`. (A process that is stuck in the kernel cannot be
/// killed.)
pub(crate) fn end_all(within: Duration) -> usize {
    let until = Instant::now() + within;
    loop {
        let left = in_other_sessions();
        for process in &left {
            let pid = Pid::from_raw(process.pid);
            // It is no error if the process has ended in the meantime.
            if process.state != 'Z' && kill(pid, Signal::SIGKILL) == Err(Errno::EPERM) {
                tracing::warn!(
                    pid = process.pid, program = %process.comm,
                    "could not kill a process that libvirtd has left behind"
                );
            }
            if process.ppid == getpid().as_raw() {
                reap(pid);
            }
        }
        if left.is_empty() || Instant::now() >= until {
            return left.len();
        }
        std::thread::sleep(PAUSE);
    }
}

/// Kills all processes whose HOME is this folder, regardless of their parent.
pub(crate) fn end_at_home(home: &Path, within: Duration) {
    let until = Instant::now() + within;
    let lives_there = |process: &Process| {
        process.environ().is_ok_and(|environment| {
            environment
                .get(OsStr::new("HOME"))
                .is_some_and(|at| Path::new(at) == home)
        })
    };
    loop {
        let left: Vec<Process> = all_processes()
            .into_iter()
            .flatten()
            .flatten()
            .filter(lives_there)
            .collect();
        if left.is_empty() || Instant::now() >= until {
            return;
        }
        for process in left {
            // It is no error if the process has ended in the meantime.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the descendants of this process that are not in the session of this process.
fn in_other_sessions() -> Vec<Stat> {
    let own = getpid().as_raw();
    let processes: Vec<Stat> = all_processes()
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|process| process.stat().ok())
        .collect();
    let Some(session) = processes
        .iter()
        .find(|process| process.pid == own)
        .map(|process| process.session)
    else {
        return Vec::new();
    };
    let parent = |pid: i32| {
        processes
            .iter()
            .find(|process| process.pid == pid)
            .map(|process| process.ppid)
    };
    let descends = |process: &Stat| {
        let mut pid = process.ppid;
        // The loop is limited, because processes that start and end while they are listed could form a cycle.
        for _ in 0..processes.len() {
            if pid == own {
                return true;
            }
            match parent(pid) {
                Some(next) => pid = next,
                None => return false,
            }
        }
        false
    };
    let found: Vec<i32> = processes
        .iter()
        .filter(|process| process.session != session && descends(process))
        .map(|p| p.pid)
        .collect();
    processes
        .into_iter()
        .filter(|process| found.contains(&process.pid))
        .collect()
}
