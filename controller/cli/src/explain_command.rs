//! `kubectl drydock explain`.

use std::io::Write;

use drydock_api::leases::NODE_LEASE_NAMESPACE;
use drydock_view::explain::{self, explained_migration, explained_node, explained_node::Lease, model};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1;
use kube::{Api, Client};
use serde::Serialize;

use crate::{
    Terminal,
    arguments::{Explain, OutputFormat},
    failure::{CommandError, Exit},
    output, read,
};

/// Prints an explanation.
///
/// # Errors
/// If nodes or instances cannot be read, or the object to explain does not exist.
pub(crate) async fn print(
    client: &Client,
    question: &Explain,
    now: Timestamp,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let snapshot = read::snapshot(client, now).await?;
    let is_node = |name: &str| {
        snapshot
            .nodes
            .iter()
            .any(|node| node.metadata.name.as_deref() == Some(name))
    };
    let no_node = |name: &str| CommandError::NoSuchNode(name.to_owned());
    let width = terminal.width;
    match question {
        Explain::Vm {
            name,
            namespace,
            node,
            output,
        } => {
            let (namespace, name) = instance_name(client, name, namespace.as_deref());
            let found = explain::explain(&snapshot, &namespace, &name);
            let mut found = found.ok_or_else(|| CommandError::NoSuchInstance(format!("{namespace}/{name}")))?;
            if let Some(node) = node {
                if !is_node(node) {
                    return Err(no_node(node));
                }
                found.keep(node);
            }
            show(*output, "VirtualMachineExplanation", &found, || found.text(width), out)
        }
        Explain::Node { name, output } => {
            let lease = lease(client, name).await;
            let found = explained_node::node(&snapshot, name, &lease).ok_or_else(|| no_node(name))?;
            show(*output, "NodeExplanation", &found, || found.text(width), out)
        }
        Explain::Model { name, node, output } => {
            let mut found = model::model(&snapshot, name);
            if let Some(node) = node {
                found = found.only(node).ok_or_else(|| no_node(node))?;
            }
            show(*output, "ModelExplanation", &found, || found.text(width), out)
        }
        Explain::Migration {
            name,
            namespace,
            output,
        } => {
            let (namespace, name) = instance_name(client, name, namespace.as_deref());
            let found = explained_migration::migration(&snapshot, &namespace, &name);
            let found = found.ok_or_else(|| CommandError::NoSuchMigration(format!("{namespace}/{name}")))?;
            show(*output, "MigrationExplanation", &found, || found.text(now, width), out)
        }
    }
}

fn show(
    output: OutputFormat,
    kind: &str,
    found: &impl Serialize,
    text: impl FnOnce() -> String,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    match output {
        OutputFormat::Text => write!(out, "{}", text())?,
        OutputFormat::Json => output::document(out, kind, found)?,
    }
    Ok(Exit::Done)
}

/// Reads the Lease of a node's agent.
async fn lease(client: &Client, node: &str) -> Lease {
    let api = Api::<v1::Lease>::namespaced(client.clone(), NODE_LEASE_NAMESPACE);
    match api.get_opt(node).await {
        Ok(lease) => {
            let renewed = lease.and_then(|lease| lease.spec?.renew_time);
            renewed.map_or(Lease::Missing, |renewed| Lease::Renewed(renewed.0))
        }
        Err(kube::Error::Api(status)) if status.code == 403 => Lease::Unread("forbidden".into()),
        Err(error) => Lease::Unread(error.to_string()),
    }
}

/// Splits NAME or NAMESPACE/NAME into namespace and name. The default is the namespace of the kubeconfig's context.
pub(crate) fn instance_name(client: &Client, name: &str, namespace: Option<&str>) -> (String, String) {
    match name.split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
        None => (
            namespace.unwrap_or_else(|| client.default_namespace()).to_owned(),
            name.to_owned(),
        ),
    }
}
