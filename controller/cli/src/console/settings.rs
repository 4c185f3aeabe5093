//! The settings of the console, from the command line.

use std::{net::SocketAddr, path::PathBuf};

use drydock_runtime::LogFormat;
use regex::Regex;

use crate::connection::Server;

/// The settings of the console on the user's machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsoleOptions {
    /// The port; 0 for any that is free.
    pub(crate) port: u16,
    /// Whether nothing can be started or stopped, or sent to guests.
    pub(crate) read_only: bool,
}

/// The settings of the console in a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    /// The listen address for browsers and proxies, with TLS.
    pub(crate) address: SocketAddr,
    /// The listen address for probes and metrics.
    pub(crate) metrics_bind_address: SocketAddr,
    /// The API server.
    pub(crate) server: Server,
    /// Names under which it is reached, beside those of the Service.
    pub(crate) hosts: Vec<String>,
    /// The Service's namespace.
    pub(crate) namespace: String,
    /// Folders with `tls.crt` and `tls.key`, of which the first that has both is served.
    pub(crate) certificates: Vec<PathBuf>,
    /// The cluster's name, for people.
    pub(crate) cluster_name: String,
    /// Where the cluster's name matches, the name of a node has to be typed to start its maintenance.
    pub(crate) careful: Regex,
    /// Whether nothing can be started or stopped.
    pub(crate) read_only: bool,
    /// The number of tokens whose objects are kept at once.
    pub(crate) max_users: usize,
    /// The log filter.
    pub(crate) log_level: String,
    /// The format of log lines.
    pub(crate) log_format: LogFormat,
}
