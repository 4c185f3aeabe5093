//! Drydock's node agent. See [`args`] for its command line and [`run`] for what it does.

mod announcements;
mod args;
mod caches;
mod cpu_map_queries;
mod device_plugin;
mod folder_watch;
mod guest_network;
mod guests;
mod host_knowledge;
mod host_lock;
mod inspect_command;
mod inspector;
mod lease;
mod metrics;
mod migrations;
mod node_api;
mod node_task;
mod object_tasks;
mod observe;
mod requests;
mod run;
mod table;
mod tunnel;
mod uninstall;
mod writes;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run(args) => run::run(*args),
        Command::Inspect(args) => inspect_command::inspect(&args),
        Command::Tunnel(args) => tunnel::run(*args),
        Command::Uninstall(args) => uninstall::run(&args),
    }
}
