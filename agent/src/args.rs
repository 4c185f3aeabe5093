//! The command line, which holds all settings of a single agent. Cluster-wide settings are in HyperConverged and the
//! legacy ConfigMap.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use drydock_core::{configuration::selection::NAMESPACES, mask, minimum_cpu::DEFAULT_MODEL};
use drydock_runtime::{LogArgs, parse_duration};

/// Folder in which agents find the sockets of their node's tunnels.
pub(crate) const TUNNELS: &str = "/var/lib/drydock/tunnels";

/// Drydock's node agent: inspects CPUs, labels its node, runs and moves virtual machines.
#[derive(Debug, Parser)]
#[command(name = "drydock-agent", version, max_term_width = 110)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    pub(crate) command: AgentCommand,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Run the node agent.
    Run(Box<AgentRunArgs>),
    /// Print what this machine can provide to guests. Needs no cluster.
    Inspect(Box<InspectArgs>),
    /// Run the node's migration tunnel. After SIGTERM it exits once its last migration has ended.
    Tunnel(Box<TunnelArgs>),
    /// Remove the agent's files from this host: its folder, sockets and profiles. Waits until no agent runs on it.
    Uninstall(AgentUninstallArgs),
}

/// Options of the inspection of the host.
#[derive(Clone, Debug, Group)]
pub(crate) struct HostArgs {
    /// libvirt daemon to start for the inspection, by path or by name in PATH.
    #[arg(long, value_name = "PROGRAM", default_value = "libvirtd", env = "DRYDOCK_LIBVIRTD")]
    pub(crate) libvirtd: PathBuf,
    /// Use this libvirt instead of starting one, for example qemu:///session.
    #[arg(long, value_name = "URI", env = "DRYDOCK_LIBVIRT_URI")]
    pub(crate) libvirt_uri: Option<String>,
    /// QEMU binary, a part of the fingerprint that decides when to inspect again.
    #[arg(long, value_name = "PROGRAM", env = "DRYDOCK_QEMU")]
    pub(crate) qemu: Option<PathBuf>,
    /// libvirt's CPU map, which lists the features of each model.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/usr/share/libvirt/cpu_map",
        env = "DRYDOCK_CPU_MAP_DIR"
    )]
    pub(crate) cpu_map_dir: PathBuf,
    /// Timeout of the whole inspection by libvirt.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        value_parser = parse_duration,
        env = "DRYDOCK_INSPECTION_TIMEOUT"
    )]
    pub(crate) inspection_timeout: Duration,
    /// CPU features that this node does not offer to guests, separated by commas.
    #[arg(long, value_name = "LIST", default_value = "", value_parser = features, env = "DRYDOCK_MASK_FEATURES")]
    pub(crate) mask_features: FeatureList,
    /// Write a label for every name of a CPU model, not only for the name that manifests use.
    #[arg(long, env = "DRYDOCK_LABEL_ALIASES")]
    pub(crate) label_aliases: bool,
}

impl AgentRunArgs {
    /// Returns the folder on the host that keeps libvirt's cache of QEMU capabilities. It is mounted into guests'
    /// pods.
    pub(crate) fn capabilities(&self) -> PathBuf {
        self.folders.state_dir.join("capabilities")
    }
}

/// A list of CPU features.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeatureList(pub(crate) std::collections::BTreeSet<String>);

/// Folders of the host that the agent uses.
#[derive(Clone, Debug, Group)]
pub(crate) struct FolderArgs {
    /// Folder on the host that agents of this node share.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/var/lib/drydock",
        env = "DRYDOCK_STATE_DIR"
    )]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) kubelet: KubeletArgs,
}

/// Where the host's kubelet keeps its files.
#[derive(Clone, Debug, Group)]
pub(crate) struct KubeletArgs {
    /// The kubelet's folder on the host.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/var/lib/kubelet",
        env = "DRYDOCK_KUBELET_DIR"
    )]
    pub(crate) kubelet_dir: PathBuf,
}

/// `drydock-agent run`.
#[derive(Debug, Group)]
pub(crate) struct AgentRunArgs {
    /// The node this agent runs on.
    #[arg(long, value_name = "NAME", env = "DRYDOCK_NODE_NAME")]
    pub(crate) node_name: String,
    /// UID of the agent's pod: its identity as holder of the node's Lease.
    #[arg(long, value_name = "UID", env = "DRYDOCK_POD_UID")]
    pub(crate) pod_uid: String,
    /// Name of the agent's pod, for events.
    #[arg(long, value_name = "NAME", default_value = "drydock-agent", env = "DRYDOCK_POD_NAME")]
    pub(crate) pod_name: String,
    /// Address at which controllers reach this agent: the pod's address. Without it, no console, and no command of a user,
    /// reaches the guests of this node.
    #[arg(long, value_name = "ADDRESS", env = "DRYDOCK_POD_IP")]
    pub(crate) advertise_address: Option<IpAddr>,
    /// Port on which controllers are accepted.
    #[arg(long, value_name = "PORT", default_value_t = 9446, env = "DRYDOCK_NODE_API_PORT")]
    pub(crate) port: u16,
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, value_name = "FILE", env = "DRYDOCK_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    /// Maximum number of guests on the node: the shares of each device that the agent offers.
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=10_000), env = "DRYDOCK_MAX_DEVICES")]
    pub(crate) max_devices: u32,
    /// Program that loads AppArmor profiles, by path or by name in PATH.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "apparmor_parser",
        env = "DRYDOCK_APPARMOR_PARSER"
    )]
    pub(crate) apparmor_parser: PathBuf,
    /// Namespaces that may hold the cluster's configuration; the first that has a configuration is in force.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = NAMESPACES.map(str::to_owned), env = "DRYDOCK_CONFIGURATION_NAMESPACES")]
    pub(crate) configuration_namespaces: Vec<String>,
    /// Maximum time over which nodes spread the reaction to a change of configuration. Each node waits at most 5 ms per
    /// node of the cluster; 0 disables the delay.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5s",
        value_parser = parse_duration,
        env = "DRYDOCK_CONFIGURATION_JITTER"
    )]
    pub(crate) configuration_jitter: Duration,
    /// Interval of the check whether kernel, microcode, KVM, libvirt or QEMU have changed. Changes that the kernel
    /// announces are noticed at once.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = parse_duration,
        env = "DRYDOCK_FINGERPRINT_INTERVAL"
    )]
    pub(crate) fingerprint_interval: Duration,
    /// Listen address of health probes, metrics and the log level.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080",
        env = "DRYDOCK_METRICS_BIND_ADDRESS"
    )]
    pub(crate) metrics_bind_address: SocketAddr,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// `drydock-agent tunnel`.
#[derive(Debug, Group)]
pub(crate) struct TunnelArgs {
    #[command(flatten)]
    pub(crate) kubelet: KubeletArgs,
    /// UID of the tunnel's pod, by which agents find the tunnel.
    #[arg(long, value_name = "UID", value_parser = uid, env = "DRYDOCK_POD_UID")]
    pub(crate) pod_uid: String,
    /// Address at which tunnels of other nodes reach this one: the pod's address.
    #[arg(long, value_name = "ADDRESS", env = "DRYDOCK_POD_IP")]
    pub(crate) advertise_address: IpAddr,
    /// Port on which tunnels of other nodes are accepted.
    #[arg(long, value_name = "PORT", default_value_t = 9445, env = "DRYDOCK_TUNNEL_PORT")]
    pub(crate) port: u16,
    /// Folder on the host in which agents find the sockets of the node's tunnels.
    #[arg(long, value_name = "FOLDER", default_value = TUNNELS, env = "DRYDOCK_SOCKET_DIR")]
    pub(crate) socket_dir: PathBuf,
    /// Listen address of health probes, metrics and the log level.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8081",
        env = "DRYDOCK_TUNNEL_METRICS_BIND_ADDRESS"
    )]
    pub(crate) metrics_bind_address: SocketAddr,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
}

/// `drydock-agent uninstall`.
#[derive(Debug, Group)]
pub(crate) struct AgentUninstallArgs {
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    /// Program that removes AppArmor profiles, by path or by name in PATH.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "apparmor_parser",
        env = "DRYDOCK_APPARMOR_PARSER"
    )]
    pub(crate) apparmor_parser: PathBuf,
}

/// `drydock-agent inspect`.
#[derive(Debug, Group)]
pub(crate) struct InspectArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = InspectOutput::Table)]
    pub(crate) output: InspectOutput,
    /// List all CPU models, with the features that the unusable ones lack.
    #[arg(long)]
    pub(crate) models: bool,
    /// Explain whether guests can have this CPU model, and if not, why.
    #[arg(long, value_name = "MODEL")]
    pub(crate) explain: Option<String>,
    /// Additional obsolete CPU models, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) obsolete_cpu_models: Vec<String>,
    /// Minimum CPU model, whose features get no labels.
    #[arg(long, value_name = "MODEL", default_value = DEFAULT_MODEL)]
    pub(crate) min_cpu_model: String,
    /// Allow emulation where KVM cannot be used.
    #[arg(long)]
    pub(crate) allow_emulation: bool,
    /// Keep libvirt's cache of QEMU capabilities in this folder, for the libvirt daemons of guests.
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) capabilities_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// The output format of `inspect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InspectOutput {
    /// For people.
    Table,
    /// All facts as JSON.
    Json,
    /// All facts as YAML.
    Yaml,
    /// The labels that the node would get, one per line.
    Labels,
    /// Internal report from one agent process to another.
    #[value(hide = true)]
    Report,
}

/// Parses a UID, which becomes a file name.
fn uid(text: &str) -> Result<String, String> {
    let is_uid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if (1..=63).contains(&text.len()) && text.bytes().all(is_uid) {
        Ok(text.to_owned())
    } else {
        Err("allowed: 1 to 63 letters, digits and hyphens".into())
    }
}

fn features(text: &str) -> Result<FeatureList, String> {
    mask::parse(text).map(FeatureList).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        AgentArgs::command().debug_assert();
    }

    #[test]
    fn invalid_arguments_are_refused_with_allowed_values() {
        for (arguments, expected) in [
            (["inspect", "--mask-features=a/b"], "not the name of a CPU feature"),
            (["inspect", "--inspection-timeout=-1"], "from 0s to 168h"),
            (
                ["inspect", "--output=xml"],
                "possible values: table, json, yaml, labels",
            ),
        ] {
            let error = AgentArgs::try_parse_from(["drydock-agent"].into_iter().chain(arguments))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
