//! Making the disks, and looking for the pod's addresses, in a process of its own: process 1 stays small, reads no image, and goes on
//! whatever a storage does.
//!
//! ```text
//! process 1 ── drydock-launcher prepare ──▶ disks, .ready.json
//!     └─ when libvirt answers too: .ready.json ─▶ ready.json
//! ```

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use drydock_api::launcher::{GUEST_VARIABLE, Guest, Ready};

use crate::{addresses, disks, folders::Folders, libvirt_settings, process_end::ProcessEnd};

/// The argument that makes it this process.
pub(crate) const NAME: &str = "prepare";

/// The process that makes the disks.
///
/// # Errors
/// If this program does not find itself.
pub(crate) fn command(guest: &Guest, root: &Path, folders: &Folders) -> io::Result<Command> {
    let own = std::env::current_exe()?;
    let mut command = libvirt_settings::program(&own.to_string_lossy(), folders);
    command
        .arg("--root")
        .arg(root)
        .arg(NAME)
        .env(GUEST_VARIABLE, serde_json::to_string(guest)?);
    Ok(command)
}

/// What follows from its end.
///
/// # Errors
/// Why the disks are not there.
pub(crate) fn result(end: ProcessEnd, complaint: &str) -> Result<(), String> {
    if end.is_success() {
        return Ok(());
    }
    let complaint = complaint.trim();
    Err(if complaint.is_empty() {
        format!("Making the disks {end}.")
    } else {
        complaint.to_owned()
    })
}

/// Makes the disks; this is the other process.
pub(crate) fn run(guest: &Guest, root: &Path) -> ExitCode {
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
        .and_then(|text| fs::write(unsaid(&folders), text).map_err(|error| error.to_string()));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Nobody else could be told that nobody listens.
            let _ = io::stderr().write_all(why.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// QEMU will be able to open this device, as the same user.
fn can_be_opened(device: &Path) -> bool {
    File::options().read(true).write(true).open(device).is_ok()
}

/// Says that the pod is ready: whoever sees the file sees all of it.
///
/// # Errors
/// If it cannot be said.
pub(crate) fn say_ready(folders: &Folders) -> io::Result<()> {
    fs::rename(unsaid(folders), folders.ready())
}

fn unsaid(folders: &Folders) -> PathBuf {
    folders.run().join(".ready.json")
}
