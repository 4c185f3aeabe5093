//! The connection to the API server, according to the options of the command line and the kubeconfig.

use std::{path::PathBuf, time::Duration};

use axum::http::Uri;
use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, NamedContext},
};
use regex::Regex;
use rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject as _},
};
use thiserror::Error;

use crate::{cluster::ClusterContext, failure::CommandError};

/// Idle time after which a watch is aborted. It is longer than the 290 s after which the API server ends a watch
/// (`WatchParams` of kube).
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(295);

/// Time limit for establishing a connection, in seconds. This is also the default of `--request-timeout`.
const CONNECT_SECONDS: u64 = 30;

/// Options for the connection to the API server, with the names that kubectl uses.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConnectionOptions {
    /// Path of the kubeconfig.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Cluster of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// User of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// User to act as.
    #[arg(long = "as", global = true, value_name = "USER")]
    act_as: Option<String>,
    /// Groups to act as.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    as_groups: Vec<String>,
    /// Time limit of a request, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = CONNECT_SECONDS)]
    request_timeout: u64,
}

/// Address of an API server, without credentials.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// URL of the API server.
    pub(crate) url: Uri,
    /// File with the certificates of the authorities that the API server's certificate is verified with. Without a
    /// file, the authorities of the operating system are used.
    pub(crate) authority: Option<PathBuf>,
}

impl Server {
    /// Returns a client that authenticates with a bearer token.
    ///
    /// # Errors
    /// If the file with the authorities cannot be used.
    pub(crate) fn client(&self, token: &str) -> Result<Client, ServerAddressError> {
        let mut config = Config::new(self.url.clone());
        if let Some(path) = &self.authority {
            let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let certificates = certificates.map_err(|source| ServerAddressError::Authority {
                path: path.clone(),
                source,
            })?;
            // With `root_cert_file` alone, the client would also need the authorities of the operating system. The
            // client reads the file again when it changes.
            config.root_cert = Some(certificates.iter().map(|certificate| certificate.to_vec()).collect());
            config.root_cert_file = Some(path.clone());
        }
        config.auth_info.token = Some(token.to_owned().into());
        config.connect_timeout = Some(Duration::from_secs(CONNECT_SECONDS));
        config.read_timeout = Some(WATCH_IDLE_TIMEOUT);
        Client::try_from(config).map_err(ServerAddressError::Client)
    }
}

/// Error: no client can be created for the API server.
#[derive(Debug, Error)]
pub(crate) enum ServerAddressError {
    #[error("the certificates of the API server's authority cannot be read from {}", path.display())]
    Authority { path: PathBuf, source: pem::Error },
    #[error("the client could not be created")]
    Client(#[source] kube::Error),
}

impl ConnectionOptions {
    /// Returns a client. With `watches`, the read timeout suits watches, which may receive nothing for a long time.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read or used.
    pub(crate) async fn client(&self, watches: bool) -> Result<Client, CommandError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| CommandError::Kubeconfig(Box::new(error)))?;
                Config::from_custom_kubeconfig(file, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = config.map_err(|error| CommandError::Kubeconfig(Box::new(error)))?;
        config.connect_timeout = Some(Duration::from_secs(self.request_timeout));
        let patience = Duration::from_secs(self.request_timeout);
        config.read_timeout = Some(if watches {
            WATCH_IDLE_TIMEOUT.max(patience)
        } else {
            patience
        });
        if self.act_as.is_some() {
            config.auth_info.impersonate.clone_from(&self.act_as);
            config.auth_info.impersonate_groups = (!self.as_groups.is_empty()).then(|| self.as_groups.clone());
        }
        Client::try_from(config).map_err(CommandError::Request)
    }

    /// Returns the human-readable names of the cluster and the user.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read.
    pub(crate) fn cluster(&self, careful: &Regex) -> Result<ClusterContext, CommandError> {
        let file = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let file = file.map_err(|error| CommandError::Kubeconfig(Box::new(error)))?;
        let context = self.context.clone().or(file.current_context).unwrap_or_default();
        let named = |named: &&NamedContext| named.name == context;
        let found = file.contexts.iter().find(named).and_then(|named| named.context.clone());
        let found = found.unwrap_or_default();
        let cluster = self.cluster.clone().unwrap_or(found.cluster);
        let clusters = file.clusters.into_iter().find(|named| named.name == cluster);
        let server = clusters
            .and_then(|named| named.cluster)
            .and_then(|cluster| cluster.server);
        let user = self.act_as.clone().or_else(|| self.user.clone()).or(found.user);
        Ok(ClusterContext {
            careful: careful.is_match(&context),
            context,
            server: server.unwrap_or_default(),
            user: user.unwrap_or_default(),
        })
    }
}
