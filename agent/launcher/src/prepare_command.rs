//! Preparation of the disks, and detection of the pod's addresses, in a separate process.
//!
//! Process 1 thus stays small, reads no image, and keeps running even if the storage hangs.
//!
//! ```text
//! process 1 ── drydock-launcher prepare ──▶ disks, .ready.json
//!     └─ once libvirt responds too: .ready.json ─▶ ready.json
//! ```

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use drydock_api::launcher::{GUEST_VARIABLE, PodGuest, Ready};

use crate::{addresses, disks, folders::Folders, libvirt_settings, process_end::ProcessEnd};

/// Name of the subcommand for this process.
pub(crate) const NAME: &str = "prepare";

/// Returns the command of the process that prepares the disks.
///
/// # Errors
/// If the path of this program cannot be determined.
pub(crate) fn command(guest: &PodGuest, root: &Path, folders: &Folders) -> io::Result<Command> {
    let own = std::env::current_exe()?;
    let mut command = libvirt_settings::program(&own.to_string_lossy(), folders);
    command
        .arg("--root")
        .arg(root)
        .arg(NAME)
        .env(GUEST_VARIABLE, serde_json::to_string(guest)?);
    Ok(command)
}

/// Converts the end of the preparing process to a result.
///
/// # Errors
/// If the disks are not prepared, with the reason.
pub(crate) fn result(end: ProcessEnd, error_output: &str) -> Result<(), String> {
    if end.is_success() {
        return Ok(());
    }
    let error_output = error_output.trim();
    Err(if error_output.is_empty() {
        format!("The command that prepares the disks {end}.")
    } else {
        error_output.to_owned()
    })
}

/// Prepares the disks. This function runs in the separate process.
pub(crate) fn run(guest: &PodGuest, root: &Path) -> ExitCode {
    let folders = Folders::below(root);
    let made = disks::prepare(guest, &folders)
        .map(|disks| Ready {
            disks,
            addresses: addresses::of_pod(),
            post_copy: can_be_opened(&folders.userfaultfd()),
            probes_readiness: guest.probes.readiness.is_some(),
        })
        .map_err(|refused| refused.to_string())
        .and_then(|ready| serde_json::to_string(&ready).map_err(|error| error.to_string()))
        .and_then(|text| fs::write(unmarked(&folders), text).map_err(|error| error.to_string()));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // stderr is the only channel for the error, so an error of the write is ignored.
            let _ = io::stderr().write_all(why.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Returns whether QEMU, which runs as the same user, can open this device.
fn can_be_opened(device: &Path) -> bool {
    File::options().read(true).write(true).open(device).is_ok()
}

/// Marks the pod as ready. The file appears atomically.
///
/// # Errors
/// If the file cannot be renamed.
pub(crate) fn write_ready(folders: &Folders) -> io::Result<()> {
    fs::rename(unmarked(folders), folders.ready())
}

fn unmarked(folders: &Folders) -> PathBuf {
    folders.run().join(".ready.json")
}
