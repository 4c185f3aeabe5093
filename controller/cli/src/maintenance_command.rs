//! `kubectl drydock maintenance`: manages NodeMaintenance objects by the names of their nodes.

use std::io::Write;

use drydock_api::{
    Hypervisor,
    maintenance::{Group, KIND, NodeMaintenance, NodeMaintenanceSpec, PLURAL, VERSION},
};
use drydock_view::{
    maintenance_summary::report,
    text::{seconds, table},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::json;

use crate::{
    Terminal,
    arguments::{MaintenanceCommand, OutputFormat, StartMaintenance},
    failure::{CommandError, Exit},
    output,
};

/// Executes a maintenance command.
///
/// # Errors
/// If the API server refuses a request, or the node does not exist.
pub(crate) async fn execute(
    client: &Client,
    command: &MaintenanceCommand,
    now: Timestamp,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    match command {
        MaintenanceCommand::Start(options) => {
            let (started, exit) = start(client, options, out).await;
            if !started.is_empty() {
                eprintln!(
                    "To end the maintenance: kubectl drydock maintenance stop {}",
                    started.join(" ")
                );
            }
            Ok(exit)
        }
        MaintenanceCommand::Stop { nodes } => {
            let mut exit = Exit::Done;
            for node in nodes {
                exit = exit.worse(reported(stop(client, node, out).await));
            }
            Ok(exit)
        }
        MaintenanceCommand::Show { node, output } => show(client, node, *output, now, terminal, out).await,
        MaintenanceCommand::List => list(client, now, out).await,
    }
}

/// Starts maintenance of the nodes that are not in maintenance yet. A failure for one node does not affect the others.
/// Returns the nodes that are in maintenance now, and the worst exit code.
pub(crate) async fn start(client: &Client, options: &StartMaintenance, out: &mut dyn Write) -> (Vec<String>, Exit) {
    let (mut started, mut worst) = (Vec::new(), Exit::Done);
    for node in &options.nodes {
        let exit = reported(start_one(client, node, options, out).await);
        if exit == Exit::Done {
            started.push(node.clone());
        }
        worst = worst.worse(exit);
    }
    (started, worst)
}

/// Returns the exit code for one of several nodes. An error is printed.
fn reported(result: Result<Exit, CommandError>) -> Exit {
    result.unwrap_or_else(|failure| {
        failure.report();
        failure.exit()
    })
}

async fn start_one(
    client: &Client,
    node: &str,
    options: &StartMaintenance,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    match create(client, node, options, false).await? {
        Created::New => writeln!(out, "maintenance of node {node} started")?,
        Created::Present(group, object) => writeln!(
            out,
            "node {node} is already in maintenance: nodemaintenances.{}/{object}",
            group.as_str(),
        )?,
    }
    Ok(Exit::Done)
}

/// Result of the creation of a maintenance.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// The maintenance was created.
    New,
    /// The node is already in maintenance, by the object with this group and name.
    Present(Group, String),
}

/// Creates the maintenance of a node, unless it exists. With `dry_run`, the API server validates the request without
/// creating the object.
///
/// # Errors
/// If the node does not exist, its maintenance is being ended, or the API server refuses the request.
pub(crate) async fn create(
    client: &Client,
    node: &str,
    options: &StartMaintenance,
    dry_run: bool,
) -> Result<Created, CommandError> {
    let name = node.to_owned();
    if let Some((group, object)) = of_node(client, &name).await?.into_iter().next() {
        if object.metadata.deletion_timestamp.is_some() {
            return Err(CommandError::Ending(name));
        }
        return Ok(Created::Present(group, object.name_any()));
    }
    let nodes = Api::<Node>::all(client.clone());
    if nodes
        .get_metadata_opt(&name)
        .await
        .map_err(CommandError::Request)?
        .is_none()
    {
        return Err(CommandError::NoSuchNode(name));
    }
    let spec = NodeMaintenanceSpec {
        node_name: name.clone(),
        reason: options.reason.clone(),
        timeout: options.give_up_after.clone(),
        grace_period_seconds: None,
    };
    let kind = GroupVersionKind::gvk(Group::Medik8s.as_str(), VERSION, KIND);
    let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    let object = DynamicObject::new(&name, &resource).data(json!({"spec": spec}));
    let api = Api::all_with(client.clone(), &resource);
    let parameters = PostParams {
        dry_run,
        ..PostParams::default()
    };
    api.create(&parameters, &object).await.map_err(CommandError::Request)?;
    Ok(Created::New)
}

async fn stop(client: &Client, node: &str, out: &mut dyn Write) -> Result<Exit, CommandError> {
    delete(client, node).await?;
    writeln!(out, "maintenance of node {node} stopped; nothing moves back")?;
    Ok(Exit::Done)
}

/// Ends the maintenance of a node in both API groups.
///
/// # Errors
/// If the node is not in maintenance, or the API server refuses the request.
pub(crate) async fn delete(client: &Client, node: &str) -> Result<(), CommandError> {
    let found = of_node(client, node).await?;
    if found.is_empty() {
        return Err(CommandError::NotInMaintenance(node.to_owned()));
    }
    for (group, object) in found {
        let api = Api::<NodeMaintenance>::all_with(client.clone(), &group);
        let deleted = api.delete(&object.name_any(), &DeleteParams::default()).await;
        deleted.map_err(CommandError::Request)?;
    }
    Ok(())
}

async fn show(
    client: &Client,
    node: &str,
    output: OutputFormat,
    now: Timestamp,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let found = of_node(client, node).await?;
    if found.is_empty() {
        return Err(CommandError::NotInMaintenance(node.to_owned()));
    }
    let hypervisor = Api::<Hypervisor>::all(client.clone()).get_opt(node).await;
    // Optional: if the Hypervisor cannot be read, the report omits the virtual machines.
    let drain = hypervisor
        .ok()
        .flatten()
        .and_then(|hypervisor| hypervisor.status?.drain);
    for (group, object) in found {
        let timeout = object.spec.timeout.as_ref().and_then(|timeout| timeout.parse().ok());
        let found = report(group, &object, timeout, drain.as_ref());
        match output {
            OutputFormat::Text => write!(out, "{}", found.text(now, terminal.width))?,
            OutputFormat::Json => output::document(out, "MaintenanceReport", &found)?,
        }
    }
    Ok(Exit::Done)
}

async fn list(client: &Client, now: Timestamp, out: &mut dyn Write) -> Result<Exit, CommandError> {
    let mut found = all(client).await?;
    found.sort_by(|(_, one), (_, other)| one.spec.node_name.cmp(&other.spec.node_name));
    if found.is_empty() {
        writeln!(out, "no node is in maintenance")?;
        return Ok(Exit::Done);
    }
    write!(out, "{}", listed(&found, now))?;
    Ok(Exit::Done)
}

/// Returns a table of nodes in maintenance.
fn listed(found: &[(Group, NodeMaintenance)], now: Timestamp) -> String {
    let heading = ["NODE", "PHASE", "DRAINED", "AGE", "REASON", "WHY"].map(str::to_owned);
    let mut rows = vec![Vec::from(heading)];
    for (_, object) in found {
        let status = object.status.clone().unwrap_or_default();
        let created = object.metadata.creation_timestamp.as_ref();
        let age = created.and_then(|created| u64::try_from(now.duration_since(created.0).as_secs()).ok());
        let dash = || "-".to_owned();
        rows.push(vec![
            object.spec.node_name.clone(),
            status.phase.unwrap_or_else(dash),
            status
                .drain_progress
                .map_or_else(dash, |progress| format!("{progress} %")),
            age.map_or_else(dash, seconds),
            object.spec.reason.clone().unwrap_or_else(dash),
            status.last_error.unwrap_or_default(),
        ]);
    }
    table(&rows)
}

/// Returns the maintenances of a node in both API groups.
async fn of_node(client: &Client, node: &str) -> Result<Vec<(Group, NodeMaintenance)>, CommandError> {
    let mut found = all(client).await?;
    found.retain(|(_, object)| object.spec.node_name == node);
    Ok(found)
}

/// Returns all maintenances, each with its API group.
///
/// # Errors
/// If the maintenances cannot be listed.
pub(crate) async fn all(client: &Client) -> Result<Vec<(Group, NodeMaintenance)>, CommandError> {
    let mut found = Vec::new();
    for group in Group::ALL {
        let api = Api::<NodeMaintenance>::all_with(client.clone(), &group);
        match api.list(&ListParams::default()).await {
            Ok(list) => found.extend(list.items.into_iter().map(|object| (group, object))),
            // The cluster does not have this API group.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                return Err(CommandError::Read {
                    resource: "nodemaintenances",
                    group: group.as_str().into(),
                    error,
                });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maintenances_are_listed_with_blocking_reasons() {
        let object = |node: &str, status: serde_json::Value| {
            let object = json!({"metadata": {"name": node, "creationTimestamp": "2026-11-27T14:00:00Z"},
                "spec": {"nodeName": node, "reason": "new disk"}, "status": status});
            (Group::Medik8s, serde_json::from_value(object).unwrap())
        };
        let found = [
            object(
                "worker-1",
                json!({"phase": "Running", "drainProgress": 40, "lastError": "shop/cache blocks"}),
            ),
            object("worker-22", json!({})),
        ];
        let text = listed(&found, "2026-11-27T14:05:00Z".parse().unwrap());
        assert_eq!(
            text,
            "NODE       PHASE    DRAINED  AGE    REASON    WHY\n\
             worker-1   Running  40 %     5 min  new disk  shop/cache blocks\n\
             worker-22  -        -        5 min  new disk\n"
        );
    }
}
