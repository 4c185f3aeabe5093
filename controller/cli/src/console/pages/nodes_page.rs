//! Compute → Nodes: the start page of the console.

use std::collections::BTreeMap;

use drydock_view::{
    nodes::{NodeAvailability, NodeRow, rows},
    text::bytes,
};
use maud::{Markup, html};

use super::{
    PageContext,
    parts::{
        ago, bar, filter, heading, identity, no_match, node_path, opens, pagination, segment, state, table, until,
    },
};
use crate::console::{
    page::{Page, ROOT},
    rights::UserAction,
    view::{ROWS, ViewPath},
};

/// Element with the rows of nodes.
const BODY: &str = "node-rows";
/// Column headings. The last one belongs to the menu.
const HEADINGS: [&str; 10] = [
    "Select", "Name", "State", "Guests", "Room", "Ends", "Why", "Zone", "Since", "Options",
];

pub(super) fn page(path: &ViewPath, context: &PageContext<'_>) -> Page {
    let all = rows(context.snapshot);
    let shown: Vec<&NodeRow> = all.iter().filter(|row| path.shows(texts(row))).collect();
    let mut page = Page::new("Nodes");
    heading(&mut page, "Nodes", &summary(&all));
    if all.is_empty() {
        page.push(ROOT, "none", empty());
        return page;
    }
    filter(&mut page, path, "nodes");
    page.push(ROOT, "nodes", table("nodes", "nodes", &HEADINGS, BODY));
    if shown.is_empty() {
        page.push(BODY, "no-match", no_match(path, HEADINGS.len(), "node"));
    }
    for row in shown.iter().skip(path.page * ROWS).take(ROWS) {
        page.push(BODY, identity("node", &[&row.name]), node(row, context));
    }
    pagination(&mut page, path, "/nodes", shown.len(), "nodes");
    page.push(ROOT, "several", several(context));
    page
}

fn texts(row: &NodeRow) -> impl Iterator<Item = &str> {
    let optional = [row.why.as_deref(), row.zone.as_deref(), row.kernel.as_deref()];
    [row.name.as_str(), row.state.as_str()]
        .into_iter()
        .chain(optional.into_iter().flatten())
}

/// Returns the number of nodes in each state: `18 open · 1 emptying`.
fn summary(rows: &[NodeRow]) -> String {
    let mut counts: BTreeMap<NodeAvailability, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(row.state).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .into_iter()
        .map(|(state, count)| format!("{count} {}", state.as_str().to_lowercase()))
        .collect();
    counts.join(" · ")
}

fn empty() -> Markup {
    html! {
        section #none .empty {
            h2 { "No nodes" }
            p { "The cluster has no nodes, or you are not allowed to list nodes." }
            p { "A ClusterRole with the verbs " code { "list" } " and " code { "watch" } " for nodes is needed." }
        }
    }
}

/// Returns the actions for selected nodes. The script appends their names to the path of the dialog.
fn several(context: &PageContext<'_>) -> Markup {
    html! { p #several { (opens("Start Maintenance on the selected nodes", "/start", UserAction::Start, context)) } }
}

fn node(row: &NodeRow, context: &PageContext<'_>) -> Markup {
    html! {
        tr id=(identity("node", &[&row.name])) {
            td.tick-cell {
                @if !row.in_maintenance {
                    input.tick type="checkbox" id=(identity("tick", &[&row.name])) value=(segment(&row.name))
                        autocomplete="off" aria-label={ "Select " (row.name) };
                }
            }
            th scope="row" { a href=(node_path(&row.name)) { (row.name) } }
            td { (state(row.state)) }
            td data-label="Guests" { (guests(row)) }
            td data-label="Room" { (room(row)) }
            td data-label=[row.end.map(|_| "Ends")] { @if let Some(end) = row.end { (until(context.now, end)) } }
            td.why-cell { (row.why.as_deref().unwrap_or("")) }
            td data-label=[row.zone.as_ref().map(|_| "Zone")] { (row.zone.as_deref().unwrap_or("")) }
            td data-label=[row.since.map(|_| "Since")] { @if let Some(since) = row.since { (ago(context.now, since)) } }
            td.menu-cell { (menu(row, context)) }
        }
    }
}

/// Returns the number of guests. For a node that is being drained, returns a bar with the states of the guests.
fn guests(row: &NodeRow) -> Markup {
    let Some(moving) = row.moving else {
        return html! { span.number { (row.guests) } };
    };
    let number = |count: Option<u32>| u64::from(count.unwrap_or(0));
    let segments = [
        ("moving", u64::from(moving)),
        ("waiting", number(row.waiting)),
        ("stopping", number(row.shutting_down)),
        ("blocks", number(row.blocked)),
    ];
    let whole = segments.iter().map(|(_, count)| count).sum::<u64>();
    bar(
        &segments,
        whole.max(row.guests as u64),
        &format!("{} remaining", row.guests),
    )
}

fn room(row: &NodeRow) -> Markup {
    if row.allocatable_bytes == 0 {
        return html! { span.quiet { "–" } };
    }
    // The amounts are in MiB, so that the product of a large amount and the width of the bar does not overflow.
    let (requested, all) = (row.requested_bytes >> 20, row.allocatable_bytes >> 20);
    let label = format!("{} of {}", bytes(row.requested_bytes), bytes(row.allocatable_bytes));
    bar(&[("requested", requested)], all, &label)
}

/// Returns the options menu of a node, with the labels that the documentation of the procedure uses.
pub(super) fn menu(row: &NodeRow, context: &PageContext<'_>) -> Markup {
    let name = &row.name;
    html! {
        details.menu id=(identity("menu", &[name])) {
            summary aria-label={ "Options menu for " (name) } title="Options" { span aria-hidden="true" { "⋮" } }
            (items(row, context))
        }
    }
}

/// Returns the actions for a node.
pub(super) fn items(row: &NodeRow, context: &PageContext<'_>) -> Markup {
    let name = &row.name;
    let copy = format!(
        "kubectl drydock maintenance {} {name}",
        if row.in_maintenance { "stop" } else { "start" }
    );
    html! {
        div.items {
            @if row.in_maintenance {
                (opens("Stop Maintenance", &format!("/stop/{}", segment(name)), UserAction::Stop, context))
            } @else {
                (opens("Start Maintenance", &format!("/start/{}", segment(name)), UserAction::Start, context))
            }
            button type="button" data-copy=(copy) { "Copy kubectl command" }
        }
    }
}
