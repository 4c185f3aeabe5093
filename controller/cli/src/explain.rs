//! `kubectl drydock explain` and `top`.

use std::io::Write;

use drydock_view::{explain, nodes};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use crate::{
    Terminal,
    arguments::{Explain, Output},
    failure::{Exit, Failure},
    output, read,
};

/// Prints an explanation.
///
/// # Errors
/// If nodes or instances cannot be read, or there is no such instance.
pub(crate) async fn print(
    client: &Client,
    question: &Explain,
    now: Timestamp,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let Explain::Vm {
        name,
        namespace,
        output,
    } = question;
    let (namespace, name) = instance_name(client, name, namespace.as_deref());
    let snapshot = read::snapshot(client, now).await?;
    let found = explain::explain(&snapshot, &namespace, &name);
    let found = found.ok_or_else(|| Failure::NoSuchInstance(format!("{namespace}/{name}")))?;
    match output {
        Output::Text => write!(out, "{}", found.text(terminal.width))?,
        Output::Json => output::document(out, "VirtualMachineExplanation", &found)?,
    }
    Ok(Exit::Done)
}

/// Returns namespace and name of an object that is named as NAME or NAMESPACE/NAME, by default in the namespace of the
/// kubeconfig's context.
pub(crate) fn instance_name(client: &Client, name: &str, namespace: Option<&str>) -> (String, String) {
    match name.split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
        None => (
            namespace.unwrap_or_else(|| client.default_namespace()).to_owned(),
            name.to_owned(),
        ),
    }
}

/// Prints all nodes.
///
/// # Errors
/// If nodes or instances cannot be read.
pub(crate) async fn top(client: &Client, output: Output, now: Timestamp, out: &mut dyn Write) -> Result<Exit, Failure> {
    let snapshot = read::snapshot(client, now).await?;
    let rows = nodes::rows(&snapshot);
    match output {
        Output::Text => write!(out, "{}", nodes::text(&rows, now))?,
        Output::Json => output::document(out, "NodeList", &json!({"items": rows, "unread": snapshot.unread}))?,
    }
    Ok(Exit::Done)
}
