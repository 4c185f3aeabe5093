//! Cluster controller of Drydock. See [`args`] for the options, and [`run`] and [`uninstall`] for the commands.

mod admission;
mod admit;
mod args;
mod certificates;
mod claims;
mod configuration_in_force;
mod drain_task;
mod evacuation_requests;
#[cfg(test)]
mod fake_cluster;
mod guest_context;
mod in_force_task;
mod instance_task;
mod instances;
mod launcher_owner;
mod launchers;
mod liveness_task;
mod machine_task;
mod maintenance_task;
mod maintenances;
mod metrics;
mod migration_rate;
mod migration_task;
mod migrations;
mod mount_failures;
mod node_pods;
mod nodes;
mod pdb_task;
mod pdbs;
mod pruning;
mod queues;
mod reconciler;
mod refusal_task;
mod refusals;
mod removal_task;
mod replica_set_task;
mod replicas_task;
mod requests;
mod reserved_nodes;
mod rooms;
mod routing;
mod run;
mod subresources;
mod uninstall;
mod webhook_server;

use std::process::ExitCode;

use clap::Parser;

use args::{ControllerArgs, ControllerCommand};

fn main() -> ExitCode {
    match ControllerArgs::parse().command {
        ControllerCommand::Run(args) => run::run(*args),
        ControllerCommand::Uninstall(args) => uninstall::run(args),
        ControllerCommand::Admit(args) => admit::run(&args),
    }
}
