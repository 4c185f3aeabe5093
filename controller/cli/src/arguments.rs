//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use axum::http::Uri;
use clap::{Args, Parser, Subcommand, ValueEnum};
use regex::Regex;

use drydock_runtime::LogArgs;

use crate::{
    connection::{ConnectionOptions, Server},
    console::settings::{ConsoleOptions, Listening},
};

/// Plans and carries out the maintenance of nodes with virtual machines.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl drydock",
    bin_name = "kubectl drydock",
    version,
    after_help = "Exit codes: 0 done, or all would move; 1 error; 2 usage; 3 something would block, or has been blocked for \
                  longer than allowed; 4 not over in time; 5 cancelled; 6 not allowed; 7 API server not \
                  reached; 10 nothing blocks, but something would be shut down."
)]
pub(crate) struct PluginArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionOptions,
    /// Show no colours on a terminal.
    #[arg(long, global = true, env = "NO_COLOR", hide_env_values = true, value_parser = is_set)]
    pub(crate) no_color: bool,
    #[command(subcommand)]
    pub(crate) command: PluginCommand,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Show what draining nodes would do: which virtual machines move, stop or block, and which pods wait.
    ///
    /// Several nodes are one question: none of their guests goes to another one of them. Nothing is written.
    #[command(alias = "preview")]
    Plan(PlanSubject),
    /// Put nodes into maintenance and take them out of it.
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Put nodes into maintenance, and follow their drains until all are empty.
    ///
    /// On a terminal this is a block that is drawn again at each change, elsewhere one line for each change: time, node,
    /// virtual machine, state, reason and message. Ctrl-C ends this view, not the drains. A node that blocks or fails holds up
    /// none of the others; the exit code is that of the worst: an error, something blocked, cancelled, not in time, done.
    Drain {
        #[command(flatten)]
        start: StartMaintenance,
        #[command(flatten)]
        follow: Follow,
    },
    /// Follow drains without starting one: of these nodes, of all that are in maintenance, or one migration.
    Watch {
        /// The nodes, as NODE or node/NODE; all nodes in maintenance if none is named.
        #[arg(value_name = "NODE", value_parser = node_name)]
        nodes: Vec<String>,
        /// A virtual machine, as NAME or NAMESPACE/NAME, whose migration is followed.
        #[arg(long, value_name = "VM", conflicts_with_all = ["nodes", "fail_when_blocked"])]
        vm: Option<String>,
        /// The namespace of the virtual machine; that of the kubeconfig's context if it is not named.
        #[arg(short, long, value_name = "NAMESPACE", requires = "vm")]
        namespace: Option<String>,
        #[command(flatten)]
        follow: Follow,
    },
    /// Serve a web console on this machine, with the rights of the kubeconfig's user.
    ///
    /// Prints a link that works once. Ctrl-C ends the console, and so do 8 hours without use; maintenance goes on.
    Console(ConsoleArgs),
    /// Serve the web console in a cluster, for many users, each with the rights of the own bearer token.
    ///
    /// It is what the pods of deploy/console run: see deploy/docs/console.md.
    #[command(hide = true)]
    ConsoleServer(Box<ConsoleServer>),
    /// Explain why a virtual machine can move or cannot, what holds a node or a migration up, and where a CPU model can be had.
    #[command(subcommand)]
    Explain(Explain),
    /// Find misconfigurations of the cluster, and what helps against each.
    ///
    /// Exit codes: 0 nothing is wrong, or warnings alone; 3 an error, something does not work or would block a drain; 6 no error,
    /// and something may not be read; 1 no error, and something could not be read for another reason. Nothing is written.
    Check {
        /// Output format of the report.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
    /// Show all nodes: how open each is, its guests and its memory; or all virtual machines, or all migrations.
    Top(Top),
    /// Show the versions of this plugin, the controller and the agents, and what differs.
    Version {
        /// Output format of the versions.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
    /// Let shells complete command lines.
    #[command(subcommand)]
    Completion(Completion),
    /// Print what the last word can be, for kubectl.
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words after the plugin's name.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// The commands for shell completion.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Completion {
    /// Print a script for bash, which completes `kubectl-drydock`.
    Bash,
    /// Print a script for zsh, which completes `kubectl-drydock`.
    Zsh,
    /// Print a script for fish, which completes `kubectl-drydock`.
    Fish,
    /// Install `kubectl_complete-drydock` beside the plugin, so that kubectl's own completion completes `kubectl drydock`.
    Install {
        /// A folder in which it is installed instead. It must be one of PATH, and the plugin must be in it too.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
}

/// A table.
#[derive(Clone, Debug, Args)]
pub(crate) struct Top {
    /// The kind of rows.
    #[arg(value_enum, default_value_t = Table::Nodes)]
    pub(crate) table: Table,
    /// Show it again at each change.
    #[arg(short, long, conflicts_with = "output")]
    pub(crate) watch: bool,
    /// A column by which rows are sorted: amounts with the greatest first.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort_by: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output: OutputFormat,
}

/// The rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    /// All nodes.
    #[value(alias = "node")]
    Nodes,
    /// All virtual machines that run or are to run.
    #[value(alias = "vm")]
    Vms,
    /// All migrations, those first that are not over.
    #[value(alias = "migration")]
    Migrations,
}

/// Options of the console.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Port on 127.0.0.1; 0 for any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Show everything, start and stop nothing, and send nothing to guests: their serial consoles are not opened.
    #[arg(long)]
    read_only: bool,
    /// Where the context's name matches this, the name of a node has to be typed to start its maintenance.
    #[arg(long, value_name = "REGEX", default_value = "prod")]
    pub(crate) careful: Regex,
}

impl ConsoleArgs {
    pub(crate) fn served(&self) -> ConsoleOptions {
        ConsoleOptions {
            port: self.port,
            read_only: self.read_only,
        }
    }
}

/// Options of the console in a cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConsoleServer {
    /// Name under which browsers reach the console, as HOST or HOST:PORT; repeated for several. The names of the Service and
    /// of the own machine need not be named.
    #[arg(long = "host", value_name = "HOST", value_parser = host)]
    hosts: Vec<String>,
    /// Listen address for browsers and proxies, by TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    bind_address: SocketAddr,
    /// Listen address for probes, metrics and the log level, without TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    metrics_bind_address: SocketAddr,
    /// Address of the API server; that of the pod's cluster by default.
    #[arg(long, value_name = "URL", value_parser = https)]
    server: Option<Uri>,
    /// Host of the API server, as pods have it.
    #[arg(long, hide = true, env = "KUBERNETES_SERVICE_HOST")]
    service_host: Option<String>,
    /// Its port.
    #[arg(long, hide = true, env = "KUBERNETES_SERVICE_PORT")]
    service_port: Option<u16>,
    /// File with the certificates of the authorities by which the API server is trusted.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    )]
    certificate_authority: PathBuf,
    /// Folder with tls.crt and tls.key; repeated, the first that has both is served. A change is served within seconds.
    #[arg(long = "cert-dir", value_name = "FOLDER", required = true)]
    certificates: Vec<PathBuf>,
    /// Namespace of the Service.
    #[arg(long, value_name = "NAME", default_value = drydock_api::NAMESPACE, env = "DRYDOCK_NAMESPACE")]
    namespace: String,
    /// Name of the cluster, as pages show it.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    cluster_name: String,
    /// Where the cluster's name matches this, the name of a node has to be typed to start its maintenance.
    #[arg(long, value_name = "REGEX", default_value = "prod")]
    careful: Regex,
    /// Show everything, start and stop nothing.
    #[arg(long)]
    read_only: bool,
    /// Number of tokens whose objects are kept at once; each takes the memory of a console of its own.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = number)]
    max_users: usize,
    #[command(flatten)]
    logs: LogArgs,
}

impl ConsoleServer {
    /// Returns the settings of the console.
    ///
    /// # Errors
    /// Returns a message if no API server is named and the process is in no pod.
    pub(crate) fn served(self) -> Result<Listening, String> {
        let of_pod = || {
            let (host, port) = self.service_host.zip(self.service_port)?;
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            https(&format!("https://{host}:{port}")).ok()
        };
        let url = self.server.or_else(of_pod);
        let url = url.ok_or(
            "the address of the API server is missing: outside of a pod, --server is required, because \
             KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
        )?;
        Ok(Listening {
            address: self.bind_address,
            metrics_bind_address: self.metrics_bind_address,
            server: Server {
                url,
                authority: Some(self.certificate_authority),
            },
            hosts: self.hosts,
            namespace: self.namespace,
            certificates: self.certificates,
            cluster_name: self.cluster_name,
            careful: self.careful,
            read_only: self.read_only,
            max_users: self.max_users,
            logs: self.logs,
        })
    }
}

/// The object to explain.
#[derive(Debug, Subcommand)]
pub(crate) enum Explain {
    /// Whether a virtual machine can move, what a drain of its node would do to it, and each other node.
    Vm {
        /// The virtual machine, as NAME or NAMESPACE/NAME.
        #[arg(value_name = "VM")]
        name: String,
        /// Its namespace; that of the kubeconfig's context if it is not named.
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// The only other node that is explained, as NODE or node/NODE.
        #[arg(long, value_name = "NODE", value_parser = node_name)]
        node: Option<String>,
        /// Output format of the explanation.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
    /// Whether new guests may come to a node, what a drain of it would do, and which CPU models guests can have there.
    Node {
        /// The node, as NODE or node/NODE.
        #[arg(value_name = "NODE", value_parser = node_name)]
        name: String,
        /// Output format of the explanation.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
    /// On which nodes guests can have a CPU model, and which features are missing on the others.
    Model {
        /// The CPU model, as libvirt names it.
        #[arg(value_name = "MODEL")]
        name: String,
        /// The only node that is explained, as NODE or node/NODE.
        #[arg(long, value_name = "NODE", value_parser = node_name)]
        node: Option<String>,
        /// Output format of the explanation.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
    /// The progress of a migration, its place in the queue and the limit that holds it back, or why it failed.
    Migration {
        /// The migration, as NAME or NAMESPACE/NAME.
        #[arg(value_name = "MIGRATION")]
        name: String,
        /// Its namespace; that of the kubeconfig's context if it is not named.
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Output format of the explanation.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
}

/// The nodes of a plan, and its output format.
#[derive(Debug, Args)]
pub(crate) struct PlanSubject {
    /// Names of nodes, as NODE or node/NODE.
    #[arg(required_unless_present = "selector", value_name = "NODE", value_parser = node_name)]
    pub(crate) nodes: Vec<String>,
    /// Nodes with these labels.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "nodes")]
    pub(crate) selector: Option<String>,
    /// Output format of the plan.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output: OutputFormat,
}

/// The output format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Text,
    /// A JSON object.
    Json,
}

/// A maintenance to be started.
#[derive(Clone, Debug, Args)]
pub(crate) struct StartMaintenance {
    /// The nodes, as NODE or node/NODE.
    #[arg(required = true, value_name = "NODE", value_parser = node_name)]
    pub(crate) nodes: Vec<String>,
    /// Reason of the maintenance, for people.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Maximum time for emptying the node, such as 45m; then the node is given back as it was.
    #[arg(long, value_name = "DURATION")]
    pub(crate) give_up_after: Option<String>,
}

/// Options for following a drain.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Follow {
    /// Seconds after which the view ends with exit code 4. The drain goes on.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// End the view with exit code 3 once a virtual machine has been blocked for this long, such as 5m. The drain goes on.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) fail_when_blocked: Option<Duration>,
    /// Output format of changes.
    #[arg(short, long, value_enum, default_value_t = CourseOutput::Text)]
    pub(crate) output: CourseOutput,
}

/// The output format of the course of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CourseOutput {
    /// A block on a terminal; lines elsewhere.
    Text,
    /// One line for each change.
    Lines,
    /// One JSON object for each change.
    Json,
}

/// A command about maintenance.
#[derive(Debug, Subcommand)]
pub(crate) enum MaintenanceCommand {
    /// Drain nodes and keep them empty.
    Start(StartMaintenance),
    /// End the maintenance of nodes: pods may run on them again. Nothing moves back.
    Stop {
        /// The nodes, as NODE or node/NODE.
        #[arg(required = true, value_name = "NODE", value_parser = node_name)]
        nodes: Vec<String>,
    },
    /// Show the maintenance of a node: its progress, and the pods that have not left.
    Show {
        /// The node, as NODE or node/NODE.
        #[arg(value_name = "NODE", value_parser = node_name)]
        node: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
    /// List nodes in maintenance, and how far each is.
    List,
}

/// Returns the name of a node.
fn node_name(text: &str) -> Result<String, String> {
    let name = text
        .strip_prefix("node/")
        .or_else(|| text.strip_prefix("nodes/"))
        .unwrap_or(text);
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if !name.is_empty() && name.len() <= 253 && name.chars().all(good) {
        Ok(name.to_owned())
    } else {
        Err("the name of a node consists of up to 253 lower-case letters, digits, `-` and `.`".into())
    }
}

/// Returns a host, with a port if there is one.
fn host(text: &str) -> Result<String, String> {
    let (name, port) = text.split_once(':').unwrap_or((text, "443"));
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if !name.is_empty() && name.len() <= 253 && name.chars().all(good) && port.parse::<u16>().is_ok() {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(
            "a host is a name such as console.example.org, without https://; with a port, the name is served for this \
             port only"
                .into(),
        )
    }
}

/// Returns the address of an API server. A token is sent there, so it has to be encrypted.
fn https(text: &str) -> Result<Uri, String> {
    let url: Uri = text
        .parse()
        .map_err(|error| format!("the address is not a URL: {error}"))?;
    match (url.scheme_str(), url.host()) {
        (Some("https"), Some(_)) => Ok(url),
        _ => Err("the address of an API server is https://HOST or https://HOST:PORT".into()),
    }
}

/// Returns a number that is not 0.
fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=10_000) => Ok(number),
        _ => Err("the value must be a number from 1 to 10000".into()),
    }
}

/// Returns whether a variable is set, as <https://no-color.org> defines it: to anything that is not empty.
fn is_set(text: &str) -> Result<bool, std::convert::Infallible> {
    // The value of the option itself if it is absent.
    Ok(!matches!(text, "" | "false"))
}

/// Returns a duration.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a duration is a number with a unit, such as 45s, 5m or 1h30m".to_owned();
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, expected) in [
            ("45s", Some(45)),
            ("5m", Some(300)),
            ("1h30m", Some(5400)),
            ("5", None),
            ("-5m", None),
            ("", None),
        ] {
            assert_eq!(
                duration(text).ok().map(|duration| duration.as_secs()),
                expected,
                "{text}"
            );
        }
        assert_eq!(
            ["", "false", "0", "1"].map(|text| is_set(text).unwrap()),
            [false, false, true, true]
        );
    }

    #[test]
    fn node_names_are_accepted_like_in_kubectl() {
        for (text, expected) in [
            ("worker-1", Some("worker-1")),
            ("node/worker-1", Some("worker-1")),
            ("nodes/a.example", Some("a.example")),
            ("", None),
            ("node/", None),
            ("pod/a", None),
            ("A", None),
        ] {
            assert_eq!(node_name(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn hosts_have_a_name_and_perhaps_a_port() {
        for (text, expected) in [
            ("console.example.org", Some("console.example.org")),
            ("Console:8443", Some("console:8443")),
            ("", None),
            (":8443", None),
            ("a:", None),
            ("a:99999", None),
            ("https://a", None),
            ("a/b", None),
            ("*.example.org", None),
        ] {
            assert_eq!(host(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn api_server_is_taken_from_the_pod_or_the_server_option() {
        let server = |words: &[&str]| {
            let words = [&["drydock", "console-server", "--cert-dir=/tls"], words].concat();
            match PluginArgs::try_parse_from(words)
                .map_err(|error| error.to_string())?
                .command
            {
                PluginCommand::ConsoleServer(options) => options.served().map(|served| served.server.url.to_string()),
                other => Err(format!("{other:?}")),
            }
        };
        let pod = |host: &str| format!("--service-host={host}");
        assert_eq!(
            server(&[&pod("10.96.0.1"), "--service-port=443"]).unwrap(),
            "https://10.96.0.1:443/"
        );
        assert_eq!(
            server(&[&pod("fd00::1"), "--service-port=443"]).unwrap(),
            "https://[fd00::1]:443/"
        );
        let both = ["--server=https://a:6443", &pod("b"), "--service-port=443"];
        assert_eq!(server(&both).unwrap(), "https://a:6443/");
        for (argument, expected) in [
            (
                "--read-only",
                "the address of the API server is missing: outside of a pod, --server is required",
            ),
            (
                "--server=http://a:6443",
                "the address of an API server is https://HOST or https://HOST:PORT",
            ),
            ("--host=https://a", "a host is a name such as console.example.org"),
            ("--max-users=0", "the value must be a number from 1 to 10000"),
        ] {
            let refused = server(&[argument]).unwrap_err();
            let refused = refused.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory as _;
        PluginArgs::command().debug_assert();
    }
}
