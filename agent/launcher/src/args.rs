//! The command line. A pod uses no arguments: all input is in one environment variable.

use std::{io, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use drydock_api::launcher::{GUEST_VARIABLE, GuestOutcome, PodGuest, SAME_DISK};

use crate::{ending::bounded, line_sink::LineSink, prepare_command, same_disk_command, supervisor};

/// Drydock's launcher: process 1 of a virtual machine's pod.
#[derive(Debug, Parser)]
#[command(name = "drydock-launcher", version, max_term_width = 110)]
pub(crate) struct LauncherArgs {
    /// The guest, as JSON.
    #[arg(long, value_name = "JSON", env = GUEST_VARIABLE, hide_env_values = true)]
    guest: Option<String>,
    /// Folder below which the pod's folders are.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// File for the message of how the guest ended.
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    termination_log: PathBuf,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Make the guest's disks, and nothing else.
    #[command(name = prepare_command::NAME, hide = true)]
    Prepare,
    /// Compare the disk in this container's own image with the one in another image.
    #[command(name = SAME_DISK, hide = true)]
    SameDisk {
        /// Where the other image is mounted.
        image: PathBuf,
        /// Path of the disk in both; the only file in /disk unless it is given.
        disk: Option<String>,
    },
}

impl LauncherArgs {
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> ExitCode {
        let Self {
            guest,
            root,
            termination_log,
            command,
        } = self;
        let guest: Result<PodGuest, String> = match guest {
            None => Err(format!("{GUEST_VARIABLE} is not set")),
            Some(text) => {
                serde_json::from_str(&text).map_err(|error| format!("{GUEST_VARIABLE} is not valid: {error}"))
            }
        };
        match (guest, command) {
            (Ok(guest), Some(Task::Prepare)) => prepare_command::run(&guest, &root),
            (_, Some(Task::SameDisk { image, disk })) => same_disk_command::run(&root, &image, disk.as_deref()),
            (Ok(guest), None) => ExitCode::from(supervisor::run(guest, &root, &termination_log)),
            (Err(why), _) => {
                if let Ok(stderr) = supervisor::standard(&io::stderr()) {
                    let ending = bounded(
                        GuestOutcome::Failed,
                        &format!("The launcher cannot start: {why}."),
                        false,
                    );
                    supervisor::report_ending(&ending, &termination_log, &mut LineSink::new(stderr, "of the launcher"));
                }
                ExitCode::FAILURE
            }
        }
    }
}
