//! How the API server is reached, as kubectl's options and the kubeconfig have it.

use std::time::Duration;

use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, NamedContext},
};
use regex::Regex;

use crate::{console::Cluster, failure::Failure};

/// Silence after which a watch is given up: longer than the 290 s after which the API server ends it (`WatchParams` of kube).
const WATCH_SILENCE: Duration = Duration::from_secs(295);

/// How the API server is reached: kubectl's options.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Connection {
    /// Path of the kubeconfig.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
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
    /// Seconds that a request may take.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30)]
    request_timeout: u64,
}

impl Connection {
    /// Returns a client, for watches if `watches` is set: those may be silent for long.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read or used.
    pub(crate) async fn client(&self, watches: bool) -> Result<Client, Failure> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| Failure::Kubeconfig(Box::new(error)))?;
                Config::from_custom_kubeconfig(file, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = config.map_err(|error| Failure::Kubeconfig(Box::new(error)))?;
        config.connect_timeout = Some(Duration::from_secs(self.request_timeout));
        let patience = Duration::from_secs(self.request_timeout);
        config.read_timeout = Some(if watches { WATCH_SILENCE.max(patience) } else { patience });
        if self.act_as.is_some() {
            config.auth_info.impersonate.clone_from(&self.act_as);
            config.auth_info.impersonate_groups = (!self.as_groups.is_empty()).then(|| self.as_groups.clone());
        }
        Client::try_from(config).map_err(Failure::Request)
    }

    /// Returns the names of the cluster and the user, for people.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read.
    pub(crate) fn cluster(&self, careful: &Regex) -> Result<Cluster, Failure> {
        let file = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let file = file.map_err(|error| Failure::Kubeconfig(Box::new(error)))?;
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
        Ok(Cluster {
            careful: careful.is_match(&context),
            context,
            server: server.unwrap_or_default(),
            user: user.unwrap_or_default(),
        })
    }
}
