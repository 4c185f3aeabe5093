//! The pages as pure functions of the objects. Rendering sends no requests.

mod check_page;
pub(super) mod guest_page;
mod machine_page;
mod migration_page;
mod node_page;
mod nodes_page;
mod parts;
mod start_page;
mod stop_page;

use drydock_view::{check::CheckReport, snapshot::Snapshot};
use jiff::Timestamp;

use super::{
    page::Page,
    rights::Rights,
    view::{ConsoleView, ViewPath},
};

pub(super) use crate::cluster::ClusterContext;

/// Data from which a page is rendered.
pub(super) struct PageContext<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: Timestamp,
    pub(super) rights: &'a Rights,
    /// Time since which the objects may be outdated.
    pub(super) stale_since: Option<Timestamp>,
    /// Report of the check, or the reason of its failure. Only the page of the check has one.
    pub(super) report: Option<&'a Result<CheckReport, String>>,
    /// Human-readable description of the cluster: context, server and user.
    pub(super) cluster: &'a ClusterContext,
}

/// Renders a page.
pub(super) fn render(path: &ViewPath, context: &PageContext<'_>) -> Page {
    let mut page = match &path.view {
        ConsoleView::Nodes => nodes_page::page(path, context),
        ConsoleView::Node(name) => node_page::page(name, context),
        ConsoleView::Machines => machine_page::list(path, context),
        ConsoleView::Machine { namespace, name } => machine_page::page(namespace, name, context),
        ConsoleView::Guest {
            namespace,
            name,
            device,
        } => guest_page::page(namespace, name, *device, context),
        ConsoleView::Check => check_page::page(context),
        ConsoleView::Migrations => migration_page::list(path, context),
        ConsoleView::Migration { namespace, name } => migration_page::page(namespace, name, context),
        ConsoleView::Cancel { namespace, name } => return migration_page::dialog(namespace, name, context),
        ConsoleView::Start(names) => return start_page::dialog(names, context),
        ConsoleView::Stop(name) => return stop_page::dialog(name, context),
    };
    parts::frame(&mut page, context);
    page
}

#[cfg(test)]
mod tests;
