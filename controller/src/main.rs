//! Drydock's cluster controller. See [`args`] for what it can be told and [`run`] for what it does.

mod admission;
mod args;
mod certificates;
mod configuration_in_force;
mod in_force_task;
mod instance_task;
mod liveness_task;
mod metrics;
mod nodes;
mod pods_by_owner;
mod run;
mod webhook_server;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    args::Args::parse().execute()
}
