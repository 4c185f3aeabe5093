//! Launcher of Drydock: process 1 of a virtual machine's pod.
//!
//! [`lifecycle`] makes its decisions, [`supervisor`] executes them, and [`disks`] prepares the disks first.

mod addresses;
mod args;
mod console_client;
mod console_lines;
mod console_relay;
mod disks;
mod domain_log;
mod domain_state;
mod domain_watch;
mod ending;
mod folders;
mod grace;
mod guest_activity;
mod libvirt_settings;
mod lifecycle;
mod line_sink;
mod prepare_command;
mod probes;
mod process_end;
mod processes;
mod readiness_file;
mod same_disk_command;
mod supervisor;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    args::LauncherArgs::parse().execute()
}
