//! The command line. Cluster-wide settings are in HyperConverged and the legacy ConfigMap.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args as Group, Parser, Subcommand};
use drydock_core::configuration::selection::NAMESPACES;
use drydock_runtime::LogFormat;

use crate::{run, uninstall};

/// Drydock's cluster controller.
#[derive(Debug, Parser)]
#[command(name = "drydock-controller", version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Look after the cluster until told to stop.
    Run(RunArgs),
    /// Remove Drydock from the nodes of a cluster: its agents and controllers, and what they have left on nodes.
    ///
    /// Refuses, with exit code 3, while there are virtual machines, their pods or NodeMaintenances. Can be repeated. The
    /// manifests are deleted afterwards: see deploy/docs/uninstall.md.
    Uninstall(UninstallArgs),
}

impl Args {
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::run(args),
            Command::Uninstall(args) => uninstall::run(args),
        }
    }
}

/// `drydock-controller run`.
#[derive(Debug, Group)]
pub(crate) struct RunArgs {
    /// Name of the pod: by which this replica is told from the others.
    #[arg(long, value_name = "NAME", env = "DRYDOCK_POD_NAME")]
    pub(crate) pod_name: String,
    /// The controller's own namespace: of the Lease by which the replicas elect their leader, and of the
    /// certificates and the Service of its webhooks.
    #[arg(long, value_name = "NAME", default_value = drydock_api::NAMESPACE, env = "DRYDOCK_NAMESPACE")]
    pub(crate) namespace: String,
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, value_name = "FILE", env = "DRYDOCK_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespaces that may hold the cluster's configuration; the first that does is in force. The
    /// agents must be told the same.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = NAMESPACES.map(str::to_owned), env = "DRYDOCK_CONFIGURATION_NAMESPACES")]
    pub(crate) configuration_namespaces: Vec<String>,
    /// Address for health, metrics and the log level.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", env = "DRYDOCK_ADMIN")]
    pub(crate) admin: SocketAddr,
    /// Address on which API servers ask about admissions.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8443",
        env = "DRYDOCK_WEBHOOKS"
    )]
    pub(crate) webhooks: SocketAddr,
    /// Address on which API servers reach the subresources API.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8444",
        env = "DRYDOCK_SUBRESOURCES"
    )]
    pub(crate) subresources: SocketAddr,
    /// Image of the pods that virtual machines run in, of the same version as this program.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "localhost/drydock/launcher",
        env = "DRYDOCK_LAUNCHER_IMAGE"
    )]
    pub(crate) launcher_image: String,
    /// Namespace of the Leases of nodes in a NodeMaintenance of group nodemaintenance.medik8s.io. Remediators of that
    /// family use the same.
    #[arg(long, value_name = "NAME", default_value = drydock_api::maintenance::LEASE_NAMESPACE, env = "LEASE_NAMESPACE")]
    pub(crate) lease_namespace: String,
    /// Namespace of the Leases of nodes in a NodeMaintenance of group nodemaintenance.kubevirt.io. Default: the
    /// controller's own.
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE")]
    pub(crate) kubevirt_lease_namespace: Option<String>,
    /// Seconds that source and target of a migration may take to prepare for it.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=86400), env = "DRYDOCK_MIGRATION_PREPARING")]
    pub(crate) migration_preparing: u64,
    /// Seconds from then until the guest must have begun to move.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=86400), env = "DRYDOCK_MIGRATION_STARTING")]
    pub(crate) migration_starting: u64,
    /// What is logged, as in `info` or `info,kube=debug`. Can be changed while running.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "DRYDOCK_LOG")]
    pub(crate) log: String,
    /// How log lines look.
    #[arg(long, value_name = "FORMAT", default_value = "human", env = "DRYDOCK_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// `drydock-controller uninstall`.
#[derive(Debug, Group)]
pub(crate) struct UninstallArgs {
    /// Namespace of Drydock's agents and controllers.
    #[arg(long, value_name = "NAME", default_value = drydock_api::NAMESPACE, env = "DRYDOCK_NAMESPACE")]
    pub(crate) namespace: String,
    /// Namespace of the DaemonSet drydock-uninstall-folders, whose pods remove the folders on the nodes. Without that
    /// DaemonSet the folders stay.
    #[arg(long, value_name = "NAME", default_value = drydock_api::removal::NAMESPACE, env = "DRYDOCK_FOLDERS_NAMESPACE")]
    pub(crate) folders_namespace: String,
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, value_name = "FILE", env = "DRYDOCK_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Seconds that it may take in all.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86400), env = "DRYDOCK_UNINSTALL_TIMEOUT")]
    pub(crate) timeout: u64,
    /// What is logged, as in `info` or `info,kube=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "DRYDOCK_LOG")]
    pub(crate) log: String,
    /// How log lines look.
    #[arg(long, value_name = "FORMAT", default_value = "human", env = "DRYDOCK_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
