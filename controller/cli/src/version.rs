//! `kubectl drydock version`.

use std::io::Write;

use drydock_api::{Hypervisor, NAMESPACE};
use drydock_view::version::versions;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};

use crate::{
    Terminal,
    arguments::OutputFormat,
    failure::{CommandError, Exit},
    output, read,
};

/// Label of the controller's pods.
const CONTROLLER: &str = "app.kubernetes.io/name=drydock-controller";

/// Prints the versions of the plugin, the controller and the agents.
///
/// # Errors
/// If the API server is not reached, or the output cannot be written.
pub(crate) async fn print(
    client: &Client,
    output: OutputFormat,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let parameters = ListParams::default().labels(CONTROLLER);
    let (pods, hypervisors) = tokio::join!(
        pods.list(&parameters),
        read::useful::<Hypervisor>(client, "hypervisors", None)
    );
    let mut unread: Vec<_> = hypervisors.1.into_iter().collect();
    let pods = match pods {
        Ok(pods) => pods.items,
        Err(error) if !matches!(error, kube::Error::Api(_)) => return Err(CommandError::Request(error)),
        Err(error) => {
            unread.push(read::unread("pods", &error));
            Vec::new()
        }
    };
    let found = versions(env!("CARGO_PKG_VERSION"), &pods, &hypervisors.0, unread);
    match output {
        OutputFormat::Text => write!(out, "{}", found.text(terminal.width))?,
        OutputFormat::Json => output::document(out, "Versions", &found)?,
    }
    Ok(Exit::Done)
}
