//! Inspects the machine in a child process.
//!
//! libvirt's client calls block, cannot be interrupted and need megabytes of memory. In a child process, a call that
//! hangs ends with the process, a crash of the C library is a normal error, and the memory is returned. The child is
//! this program's own `inspect`.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use drydock_host::{
    fingerprint::Programs,
    inspection::{InspectionOptions, InspectionReport, LibvirtSource},
    private_libvirtd::PATH,
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use thiserror::Error;
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use crate::args::HostArgs;

/// Time that the child may run beyond its own deadline, because it needs a moment to end libvirtd.
const GRACE: Duration = Duration::from_secs(10);

/// Maximum size of a report in bytes. A node with every CPU model and machine type has about 60 KiB.
const LIMIT: u64 = 8 * 1024 * 1024;

/// Reason why the inspection produced no report.
#[derive(Debug, Error)]
pub(crate) enum InspectorError {
    /// The inspection process could not be started.
    #[error("the inspection could not be started")]
    Start(#[source] io::Error),
    /// The report of the inspection process could not be read.
    #[error("the inspection's report could not be read")]
    Read(#[source] io::Error),
    /// The inspection process ended without a report.
    #[error("the inspection ended with {0}: {1}")]
    Ended(String, String),
    /// The report of the inspection process could not be parsed.
    #[error("the inspection's report cannot be parsed")]
    Garbled(#[source] serde_json::Error),
    /// The inspection process did not end in time and was killed.
    #[error("the inspection did not end within {} s and was killed", .0.as_secs())]
    Hung(Duration),
}

impl InspectorError {
    /// Returns the reason in CamelCase.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Start(_) => "InspectionNotStarted",
            Self::Read(_) | Self::Garbled(_) => "InspectionOutputInvalid",
            Self::Ended(..) => "InspectionCrashed",
            Self::Hung(_) => "InspectionTimedOut",
        }
    }
}

/// Inspects this machine, and keeps libvirt's cache of QEMU capabilities in the folder `capabilities`.
///
/// # Errors
/// If the child does not report. A libvirt that does not respond is not an error: the report contains it.
pub(crate) async fn inspect(args: &HostArgs, capabilities: &Path) -> Result<InspectionReport, InspectorError> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments(args))
        .arg("--capabilities-dir")
        .arg(capabilities);
    report_of(command, args.inspection_timeout + GRACE).await
}

/// Runs a command that prints a report, and kills its process group after the deadline.
async fn report_of(mut command: Command, deadline: Duration) -> Result<InspectionReport, InspectorError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(InspectorError::Start)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(InspectorError::Start(io::Error::other("the process has no output")));
    };
    let (mut report, mut error_output) = (Vec::new(), Vec::new());
    let talk = async {
        let (mut out, mut err) = (stdout.take(LIMIT), stderr.take(64 * 1024));
        tokio::try_join!(out.read_to_end(&mut report), err.read_to_end(&mut error_output))
            .map_err(InspectorError::Read)?;
        child.wait().await.map_err(InspectorError::Read)
    };
    let status = match timeout(deadline, talk).await {
        Ok(status) => status?,
        Err(_) => {
            if let Some(group) = group {
                // It is no error if the process group has just ended.
                let _ = killpg(group, Signal::SIGKILL);
                let _ = child.wait().await;
            }
            return Err(InspectorError::Hung(deadline));
        }
    };
    if !status.success() {
        let error_output = String::from_utf8_lossy(&error_output);
        let last = error_output
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("no error output");
        return Err(InspectorError::Ended(status.to_string(), last.trim().to_owned()));
    }
    serde_json::from_slice(&report).map_err(InspectorError::Garbled)
}

/// Returns the child's command line.
fn arguments(args: &HostArgs) -> Vec<std::ffi::OsString> {
    let mut line: Vec<std::ffi::OsString> = ["inspect", "--output", "report", "--libvirtd"].map(Into::into).into();
    line.push(args.libvirtd.clone().into());
    if let Some(uri) = &args.libvirt_uri {
        line.extend(["--libvirt-uri".into(), uri.into()]);
    }
    let timeout = format!("{}ms", args.inspection_timeout.as_millis());
    line.extend(["--inspection-timeout".into(), timeout.into()]);
    line
}

/// Returns the path of a program.
///
/// A path with a folder is returned unchanged. Otherwise, the result is the first match in the folders that an
/// inspection searches, so that the fingerprint covers the same libvirtd that the inspection uses.
fn find_program(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.exists().then(|| program.to_owned());
    }
    PATH.split(':')
        .map(|folder| PathBuf::from(folder).join(program))
        .find(|candidate| candidate.exists())
}

/// Returns the options for an inspection by this process.
pub(crate) fn options(args: &HostArgs) -> InspectionOptions {
    let libvirt = match &args.libvirt_uri {
        Some(uri) => LibvirtSource::Uri(uri.clone()),
        None => LibvirtSource::Private {
            libvirtd: args.libvirtd.clone(),
        },
    };
    InspectionOptions {
        libvirt,
        deadline: args.inspection_timeout,
        ..InspectionOptions::default()
    }
}

/// Returns the programs whose builds determine the capabilities of guests.
pub(crate) fn programs(args: &HostArgs) -> Programs {
    let emulator = PathBuf::from(format!("qemu-system-{}", std::env::consts::ARCH));
    Programs {
        libvirtd: find_program(&args.libvirtd),
        qemu: args.qemu.clone().or_else(|| find_program(&emulator)),
        cpu_map: Some(args.cpu_map_dir.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Instant};

    use super::*;

    async fn run(script: &str, deadline: Duration) -> Result<InspectionReport, InspectorError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        report_of(command, deadline).await
    }

    #[tokio::test]
    async fn failure_of_the_inspection_process_has_a_reason() {
        let minute = Duration::from_secs(60);
        for (script, reason, message) in [
            (
                "echo first >&2; echo 'libvirt is broken' >&2; exit 3",
                "InspectionCrashed",
                "exit status: 3: libvirt is broken",
            ),
            ("exit 1", "InspectionCrashed", "exit status: 1: no error output"),
            ("kill -SEGV $$", "InspectionCrashed", "signal: 11"),
            ("", "InspectionOutputInvalid", "cannot be parsed"),
            ("echo '{'", "InspectionOutputInvalid", "cannot be parsed"),
            ("echo '{}'", "InspectionOutputInvalid", "cannot be parsed"),
            ("printf '\\377'", "InspectionOutputInvalid", "cannot be parsed"),
        ] {
            let error = run(script, minute).await.unwrap_err();
            assert_eq!(error.reason(), reason, "{script}");
            assert!(error.to_string().contains(message), "{script}: {error}");
        }
        let missing = report_of(Command::new("/none"), minute).await.unwrap_err();
        assert_eq!(missing.reason(), "InspectionNotStarted");
    }

    #[tokio::test]
    async fn hung_inspection_is_killed_with_all_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let mut deadline = Duration::from_millis(500);
        let child: i32 = loop {
            let error = run(&script, deadline).await.unwrap_err();
            assert_eq!(error.reason(), "InspectionTimedOut");
            // On a busy machine, the shell may need longer than the deadline to start its child.
            let written = fs::read_to_string(&file).unwrap_or_default();
            if let Some(child) = written.strip_suffix('\n') {
                break child.parse().unwrap();
            }
            deadline *= 2;
        };
        let start = Instant::now();
        // A killed child may be a zombie until its new parent reaps it.
        let lives = || fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        while lives() {
            assert!(start.elapsed() < Duration::from_secs(60), "the child lives on");
            tokio::task::yield_now().await;
        }
    }
}
