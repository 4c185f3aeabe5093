//! The command line. Cluster-wide settings are in HyperConverged and the legacy ConfigMap.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use drydock_core::configuration::selection::NAMESPACES;
use drydock_runtime::{LogArgs, parse_duration};

/// Drydock's cluster controller.
#[derive(Debug, Parser)]
#[command(name = "drydock-controller", version, max_term_width = 110)]
pub(crate) struct ControllerArgs {
    #[command(subcommand)]
    pub(crate) command: ControllerCommand,
}

/// A command of the controller.
#[derive(Debug, Subcommand)]
pub(crate) enum ControllerCommand {
    /// Run the controller.
    Run(Box<ControllerRunArgs>),
    /// Remove Drydock from a cluster's nodes: agents, controllers, and everything they have left on nodes.
    ///
    /// Fails with exit code 3 while there are virtual machines, their pods or NodeMaintenances. Can be repeated. Delete
    /// the manifests afterwards: see deploy/docs/uninstall.md.
    Uninstall(ControllerUninstallArgs),
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
    /// Output format of the result.
    #[arg(long, value_enum, default_value_t = AdmitOutput::Text)]
    pub(crate) output: AdmitOutput,
}

/// The output format of a result.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AdmitOutput {
    /// For people.
    Text,
    /// As a JSON object.
    Json,
}

/// `drydock-controller run`.
#[derive(Debug, Group)]
pub(crate) struct ControllerRunArgs {
    /// Pod name, used as the leader election identity.
    #[arg(long, value_name = "NAME", env = "DRYDOCK_POD_NAME")]
    pub(crate) pod_name: String,
    /// The controller's namespace. It has the leader election Lease, the certificates and the Service of the webhooks.
    #[arg(long, value_name = "NAME", default_value = drydock_api::NAMESPACE, env = "DRYDOCK_NAMESPACE")]
    pub(crate) namespace: String,
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, value_name = "FILE", env = "DRYDOCK_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespaces that may hold the cluster's configuration; the first that has a configuration is in force. Agents need the
    /// same value.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = NAMESPACES.map(str::to_owned), env = "DRYDOCK_CONFIGURATION_NAMESPACES")]
    pub(crate) configuration_namespaces: Vec<String>,
    /// Listen address of health probes, metrics and the log level.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080",
        env = "DRYDOCK_METRICS_BIND_ADDRESS"
    )]
    pub(crate) metrics_bind_address: SocketAddr,
    /// Listen address of the admission webhooks.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8443",
        env = "DRYDOCK_WEBHOOK_BIND_ADDRESS"
    )]
    pub(crate) webhook_bind_address: SocketAddr,
    /// Listen address of the aggregated subresources API.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8444",
        env = "DRYDOCK_SUBRESOURCES_BIND_ADDRESS"
    )]
    pub(crate) subresources_bind_address: SocketAddr,
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
    pub(crate) node_lease_namespace: String,
    /// Namespace of the Leases of nodes in a NodeMaintenance of group nodemaintenance.kubevirt.io. Default: the
    /// controller's own.
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE")]
    pub(crate) kubevirt_node_lease_namespace: Option<String>,
    /// Time limit for the target to prepare a migration, from its slot on.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "240s",
        value_parser = positive,
        env = "DRYDOCK_MIGRATION_PREPARE_TIMEOUT"
    )]
    pub(crate) migration_prepare_timeout: Duration,
    /// Time limit from then until the transfer must have started.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "240s",
        value_parser = positive,
        env = "DRYDOCK_MIGRATION_START_TIMEOUT"
    )]
    pub(crate) migration_start_timeout: Duration,
    /// Time after which a console, a display or a forwarded port is closed if neither side has sent data. 0: no limit.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0",
        value_parser = parse_duration,
        env = "DRYDOCK_STREAM_IDLE_TIMEOUT"
    )]
    pub(crate) stream_idle_timeout: Duration,
    /// Time after which a console, a display or a forwarded port is closed in any case. 0: no limit.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0",
        value_parser = parse_duration,
        env = "DRYDOCK_STREAM_TIMEOUT"
    )]
    pub(crate) stream_timeout: Duration,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
}

/// `drydock-controller uninstall`.
#[derive(Debug, Group)]
pub(crate) struct ControllerUninstallArgs {
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
    /// Time limit for everything.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10m",
        value_parser = positive,
        env = "DRYDOCK_UNINSTALL_TIMEOUT"
    )]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
}

/// Parses a duration that has to be longer than 0.
fn positive(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).map_err(|error| error.to_string())?;
    if parsed.is_zero() {
        return Err("the duration must be longer than 0s".into());
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        ControllerArgs::command().debug_assert();
    }

    #[test]
    fn invalid_durations_are_refused_with_allowed_values() {
        let parse = |flag: &str| {
            let line = ["drydock-controller", "run", "--pod-name=a", flag];
            ControllerArgs::try_parse_from(line).map_err(|error| error.to_string())
        };
        for (flag, expected) in [
            ("--migration-prepare-timeout=0", "longer than 0s"),
            ("--migration-start-timeout=240", "such as 500ms, 30s, 5m or 1h30m"),
            ("--stream-timeout=-1s", "from 0s to 168h"),
        ] {
            let error = parse(flag).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(parse("--stream-timeout=8h").is_ok() && parse("--stream-idle-timeout=0").is_ok());
    }
}
