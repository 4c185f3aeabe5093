//! Settings of the console from the command line.

use std::{net::SocketAddr, path::PathBuf};

use drydock_runtime::LogArgs;
use regex::Regex;

use crate::connection::Server;

/// Settings of the console on the user's machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsoleOptions {
    /// Port of the console; 0 for any free port.
    pub(crate) port: u16,
    /// Whether the console rejects all actions and all input for guests.
    pub(crate) read_only: bool,
}

/// Settings of the console in a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    /// Listen address for browsers and proxies, with TLS.
    pub(crate) address: SocketAddr,
    /// Listen address for probes and metrics.
    pub(crate) metrics_bind_address: SocketAddr,
    /// Address of the API server.
    pub(crate) server: Server,
    /// Host names of the console, in addition to the names of the Service.
    pub(crate) hosts: Vec<String>,
    /// Namespace of the Service.
    pub(crate) namespace: String,
    /// Folders with `tls.crt` and `tls.key`. The first folder that has both files is served.
    pub(crate) certificates: Vec<PathBuf>,
    /// Human-readable name of the cluster.
    pub(crate) cluster_name: String,
    /// Expression for names of clusters. If the cluster's name matches, a user has to type the name of a node to start
    /// its maintenance.
    pub(crate) careful: Regex,
    /// Whether the console rejects all actions.
    pub(crate) read_only: bool,
    /// Number of tokens whose objects are kept at once.
    pub(crate) max_users: usize,
    /// Options of the log.
    pub(crate) logs: LogArgs,
}
