//! The command line. Cluster-wide settings are in HyperConverged and the legacy ConfigMap.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use drydock_core::configuration::selection::NAMESPACES;
use drydock_runtime::LogFormat;

/// Drydock's cluster controller.
#[derive(Debug, Parser)]
#[command(name = "drydock-controller", version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the controller.
    Run(Box<RunArgs>),
    /// Remove Drydock from a cluster's nodes: agents, controllers, and everything they have left on nodes.
    ///
    /// Fails with exit code 3 while there are virtual machines, their pods or NodeMaintenances. Can be repeated. Delete
    /// the manifests afterwards: see deploy/docs/uninstall.md.
    Uninstall(UninstallArgs),
    /// Show which manifests of a folder Drydock would admit, without a cluster.
    ///
    /// Reads all files that end in .yaml, .yml or .json. Fails with exit code 2 if an object is refused or a file cannot be
    /// read. What only an API server evaluates is not included: patterns and CEL rules of the schema, and quotas.
    Admit(AdmitArgs),
}

/// `drydock-controller admit`.
#[derive(Debug, Group)]
pub(crate) struct AdmitArgs {
    /// A manifest, or a folder of manifests.
    #[arg(value_name = "FOLDER")]
    pub(crate) path: PathBuf,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = AdmitOutput::Text)]
    pub(crate) output: AdmitOutput,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AdmitOutput {
    /// For people.
    Text,
    /// As a JSON object.
    Json,
}

/// `drydock-controller run`.
#[derive(Debug, Group)]
pub(crate) struct RunArgs {
    /// Pod name, used as the leader election identity.
    #[arg(long, value_name = "NAME", env = "DRYDOCK_POD_NAME")]
    pub(crate) pod_name: String,
    /// The controller's namespace. It has the leader election Lease, the certificates and the Service of the webhooks.
    #[arg(long, value_name = "NAME", default_value = drydock_api::NAMESPACE, env = "DRYDOCK_NAMESPACE")]
    pub(crate) namespace: String,
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, value_name = "FILE", env = "DRYDOCK_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespaces that may hold the cluster's configuration; the first one that has one is in force. Agents need the
    /// same value.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = NAMESPACES.map(str::to_owned), env = "DRYDOCK_CONFIGURATION_NAMESPACES")]
    pub(crate) configuration_namespaces: Vec<String>,
    /// Address for health, metrics and the log level.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", env = "DRYDOCK_ADMIN")]
    pub(crate) admin: SocketAddr,
    /// Listen address of the admission webhooks.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8443",
        env = "DRYDOCK_WEBHOOKS"
    )]
    pub(crate) webhooks: SocketAddr,
    /// Listen address of the aggregated subresources API.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8444",
        env = "DRYDOCK_SUBRESOURCES"
    )]
    pub(crate) subresources: SocketAddr,
    /// Image of launcher pods, of the same version as the controller.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "localhost/drydock/launcher",
        env = "DRYDOCK_LAUNCHER_IMAGE"
    )]
    pub(crate) launcher_image: String,
    /// Namespace of the Leases of nodes in a NodeMaintenance of group nodemaintenance.medik8s.io. Remediators of that
    /// family use the same namespace.
    #[arg(long, value_name = "NAME", default_value = drydock_api::maintenance::LEASE_NAMESPACE, env = "LEASE_NAMESPACE")]
    pub(crate) lease_namespace: String,
    /// Namespace of the Leases of nodes in a NodeMaintenance of group nodemaintenance.kubevirt.io. Default: the
    /// controller's own.
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE")]
    pub(crate) kubevirt_lease_namespace: Option<String>,
    /// Time limit for source and target to prepare a migration, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=86400), env = "DRYDOCK_MIGRATION_PREPARING")]
    pub(crate) migration_preparing: u64,
    /// Time limit from then until the transfer must have started, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=86400), env = "DRYDOCK_MIGRATION_STARTING")]
    pub(crate) migration_starting: u64,
    /// Time in seconds after which a console, a display or a forwarded port is closed if neither side has sent data. 0: no
    /// limit.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        env = "DRYDOCK_STREAM_IDLE_TIMEOUT"
    )]
    pub(crate) stream_idle_timeout: u64,
    /// Time in seconds after which a console, a display or a forwarded port is closed in any case. 0: no limit.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, env = "DRYDOCK_STREAM_TIMEOUT")]
    pub(crate) stream_timeout: u64,
    /// Log filter, for example `info` or `info,kube=debug`. Can be changed at runtime.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "DRYDOCK_LOG")]
    pub(crate) log: String,
    /// Format of log lines.
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
    /// DaemonSet the folders remain.
    #[arg(long, value_name = "NAME", default_value = drydock_api::removal::NAMESPACE, env = "DRYDOCK_FOLDERS_NAMESPACE")]
    pub(crate) folders_namespace: String,
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, value_name = "FILE", env = "DRYDOCK_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Time limit for everything, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86400), env = "DRYDOCK_UNINSTALL_TIMEOUT")]
    pub(crate) timeout: u64,
    /// Log filter, for example `info` or `info,kube=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "DRYDOCK_LOG")]
    pub(crate) log: String,
    /// Format of log lines.
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
