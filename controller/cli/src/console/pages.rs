//! The pages, as functions of the objects: no request is made here.

mod check;
pub(super) mod guest;
mod machine;
mod migration;
mod node;
mod nodes;
mod parts;
mod start;
mod stop;

use drydock_view::{check::Report, snapshot::Snapshot};
use jiff::Timestamp;

use super::{
    page::Page,
    rights::Rights,
    view::{Path, View},
};

pub(super) use crate::cluster::Cluster;

/// What a page is made of.
pub(super) struct Context<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: Timestamp,
    pub(super) rights: &'a Rights,
    /// Since when the objects may be out of date.
    pub(super) stale_since: Option<Timestamp>,
    /// What was checked, or why it could not be; only a page of it has it.
    pub(super) report: Option<&'a Result<Report, String>>,
    /// The cluster, for people: context, server and user.
    pub(super) cluster: &'a Cluster,
}

/// Returns a page.
pub(super) fn render(path: &Path, context: &Context<'_>) -> Page {
    let mut page = match &path.view {
        View::Nodes => nodes::page(path, context),
        View::Node(name) => node::page(name, context),
        View::Machines => machine::list(path, context),
        View::Machine { namespace, name } => machine::page(namespace, name, context),
        View::Guest {
            namespace,
            name,
            device,
        } => guest::page(namespace, name, *device, context),
        View::Check => check::page(context),
        View::Migrations => migration::list(path, context),
        View::Migration { namespace, name } => migration::page(namespace, name, context),
        View::Cancel { namespace, name } => return migration::dialog(namespace, name, context),
        View::Start(names) => return start::dialog(names, context),
        View::Stop(name) => return stop::dialog(name, context),
    };
    parts::frame(&mut page, context);
    page
}

#[cfg(test)]
mod tests;
