//! Node agent of Drydock. See [`args`] for the command line and [`run`] for the wiring of the process.

mod args;
mod caches;
mod cpu_map_queries;
mod device_plugin;
#[cfg(test)]
mod failing_write;
mod folder_watch;
mod guest_network;
mod guests;
mod host_events;
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
mod request_params;
mod run;
mod table;
mod tunnel;
mod uninstall;
mod writes;

use std::process::ExitCode;

use clap::Parser;

use args::{AgentArgs, AgentCommand};

fn main() -> ExitCode {
    match AgentArgs::parse().command {
        AgentCommand::Run(args) => run::run(*args),
        AgentCommand::Inspect(args) => inspect_command::inspect(&args),
        AgentCommand::Tunnel(args) => tunnel::run(*args),
        AgentCommand::Uninstall(args) => uninstall::run(&args),
    }
}
