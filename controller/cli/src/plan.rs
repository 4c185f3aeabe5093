//! `kubectl drydock plan`.

use std::io::Write;

use drydock_view::plan::{self, NoSuchNode, Verdicts, text};
use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};

use crate::{
    Terminal,
    arguments::{OutputFormat, PlanSubject},
    failure::{CommandError, Exit},
    output, read,
};

/// Prints the effects of draining the nodes.
///
/// # Errors
/// If nodes or instances cannot be read, or a node does not exist.
pub(crate) async fn print(
    client: &Client,
    question: &PlanSubject,
    now: Timestamp,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let mut names = question.nodes.clone();
    if let Some(selector) = &question.selector {
        names = selected(client, selector).await?;
    }
    names.dedup();
    let snapshot = read::snapshot(client, now).await?;
    let plan = plan::plan(&snapshot, &names).map_err(|NoSuchNode(name)| CommandError::NoSuchNode(name))?;
    match question.output {
        OutputFormat::Text => {
            let clock = now.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string();
            write!(out, "{}", text(&plan, &clock, terminal.width))?;
        }
        OutputFormat::Json => output::document(out, "DrainPlan", &plan)?,
    }
    Ok(match plan.verdict() {
        Verdicts::AllMove => Exit::Done,
        Verdicts::SomeStop => Exit::WouldStop,
        Verdicts::SomeBlock => Exit::Blocked,
    })
}

/// Returns the names of the nodes with these labels.
async fn selected(client: &Client, selector: &str) -> Result<Vec<String>, CommandError> {
    let api = Api::<Node>::all(client.clone());
    let found = api.list_metadata(&ListParams::default().labels(selector)).await;
    let found = found.map_err(|error| CommandError::Read {
        resource: "nodes",
        group: String::new(),
        error,
    })?;
    if found.items.is_empty() {
        return Err(CommandError::NoNodes(selector.to_owned()));
    }
    Ok(found.items.iter().map(ResourceExt::name_any).collect())
}
