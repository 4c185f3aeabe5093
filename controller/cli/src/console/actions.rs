//! The actions of the console: starting and stopping maintenance, and cancelling a migration.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_runtime::chain;
use kube::{Api, api::DeleteParams};
use serde::Deserialize;
use serde_json::json;

use super::{ConsoleContext, error};
use crate::{
    arguments::StartMaintenance as Options,
    failure::{CommandError, Exit},
    maintenance_command,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StartForm {
    /// Names of nodes, separated by spaces.
    nodes: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    give_up_after: String,
    /// Repetition of the names, if the cluster requires a confirmation.
    #[serde(default)]
    confirm: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopForm {
    node: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    namespace: String,
    name: String,
}

/// The message with which a read-only console refuses actions.
pub(super) const READ_ONLY: &str = "this console was started with --read-only";

pub(super) async fn start(State(shared): State<Arc<ConsoleContext>>, Json(start): Json<StartForm>) -> Response {
    if shared.read_only {
        return error(StatusCode::FORBIDDEN, READ_ONLY);
    }
    if shared.cluster.careful && start.confirm.trim() != start.nodes {
        let message = format!("type `{}` to confirm", start.nodes);
        return error(StatusCode::UNPROCESSABLE_ENTITY, &message);
    }
    let filled = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let options = Options {
        nodes: start.nodes.split_whitespace().map(str::to_owned).collect(),
        reason: filled(&start.reason),
        give_up_after: filled(&start.give_up_after),
    };
    // The maintenance of each node is first tried with a dry run, so that no maintenance starts if one of them is
    // refused.
    for dry_run in [true, false] {
        for node in &options.nodes {
            if let Err(failure) = maintenance_command::create(&shared.client, node, &options, dry_run).await {
                return refused(&failure);
            }
        }
    }
    let message = format!("Maintenance of {} started.", options.nodes.join(", "));
    Json(json!({"done": message})).into_response()
}

pub(super) async fn stop(State(shared): State<Arc<ConsoleContext>>, Json(stop): Json<StopForm>) -> Response {
    if shared.read_only {
        return error(StatusCode::FORBIDDEN, READ_ONLY);
    }
    match maintenance_command::delete(&shared.client, &stop.node).await {
        Ok(()) => {
            Json(json!({"done": format!("Maintenance of {} stopped. Nothing moves back.", stop.node)})).into_response()
        }
        Err(failure) => refused(&failure),
    }
}

pub(super) async fn cancel(State(shared): State<Arc<ConsoleContext>>, Json(cancel): Json<Cancel>) -> Response {
    if shared.read_only {
        return error(StatusCode::FORBIDDEN, READ_ONLY);
    }
    let Cancel { namespace, name } = cancel;
    let api = Api::<VirtualMachineInstanceMigration>::namespaced(shared.client.clone(), &namespace);
    match api.delete(&name, &DeleteParams::default()).await {
        Ok(_) => Json(json!({"done": format!("Migration {namespace}/{name} is being cancelled.")})).into_response(),
        Err(error) => refused(&CommandError::Request(error)),
    }
}

/// Returns the error response for a failure.
fn refused(failure: &CommandError) -> Response {
    let status = match failure.exit() {
        Exit::NotAllowed => StatusCode::FORBIDDEN,
        Exit::NotReached => StatusCode::BAD_GATEWAY,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    error(status, &chain(failure).to_string())
}
