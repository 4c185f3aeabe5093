//! The pages of virtual machines: the table of all, and the details of each with its migratability.

use drydock_view::{
    explain::{InstanceExplanation, explain},
    guest_tables::{MachineRow, machines},
    text::bytes,
};
use maud::{Markup, html};

use super::{
    PageContext, guest_page,
    parts::{command, filter, heading, identity, machine_path, no_match, node_path, pagination, table},
};
use crate::console::{
    page::{Page, ROOT},
    view::{ROWS, ViewPath},
};

const BODY: &str = "machine-rows";
const HEADINGS: [&str; 6] = ["Name", "Phase", "Node", "Memory", "Migratable", "Why"];

pub(super) fn list(path: &ViewPath, context: &PageContext<'_>) -> Page {
    let all = machines(context.snapshot);
    let mut page = Page::new("Virtual machines");
    let text = format!("{} running or starting", all.len());
    heading(&mut page, "Virtual machines", &text);
    if all.is_empty() {
        page.push(
            ROOT,
            "none",
            html! {
                section #none .empty {
                    h2 { "No virtual machine is running" }
                    p {
                        "Start a virtual machine with " code { "kubectl apply" } " or " code { "virtctl start" }
                        ": the page updates automatically."
                    }
                }
            },
        );
        return page;
    }
    filter(&mut page, path, "virtual machines");
    page.push(ROOT, "machines", table("machines", "virtual machines", &HEADINGS, BODY));
    let shown: Vec<&MachineRow> = all.iter().filter(|row| path.shows(texts(row))).collect();
    if shown.is_empty() {
        page.push(BODY, "no-match", no_match(path, HEADINGS.len(), "virtual machine"));
    }
    for row in shown.iter().skip(path.page * ROWS).take(ROWS) {
        page.push(BODY, identity("vm", &[&row.namespace, &row.name]), line(row));
    }
    pagination(&mut page, path, "/virtual-machines", shown.len(), "virtual machines");
    page
}

fn texts(row: &MachineRow) -> impl Iterator<Item = &str> {
    [row.namespace.as_str(), &row.name, row.phase.as_str()]
        .into_iter()
        .chain(row.node.as_deref())
}

fn line(row: &MachineRow) -> Markup {
    html! {
        tr id=(identity("vm", &[&row.namespace, &row.name])) {
            th scope="row" { a href=(machine_path(&row.namespace, &row.name)) { (row.namespace) "/" (row.name) } }
            td { (row.phase.as_str()) }
            td { @if let Some(node) = &row.node { a href=(node_path(node)) { (node) } } }
            td.number { (bytes(row.memory_bytes)) }
            td {
                @match row.migratable {
                    None => span.quiet { "not known" },
                    Some(true) => "yes",
                    Some(false) => span.bad { "no" },
                }
            }
            td.why-cell { (row.message) }
        }
    }
}

pub(super) fn page(namespace: &str, name: &str, context: &PageContext<'_>) -> Page {
    let Some(found) = explain(context.snapshot, namespace, name) else {
        return Page::missing(&format!(
            "virtual machine {namespace}/{name} that is running or starting"
        ));
    };
    let mut page = Page::new(format!("{namespace}/{name}"));
    page.announce(format!("{}: {}", found.name, found.phase.as_str()));
    page.push(ROOT, "head", head(&found, context));
    page.push(ROOT, "movable", movable(&found));
    page.push(ROOT, "places", places(&found));
    page
}

fn head(found: &InstanceExplanation, context: &PageContext<'_>) -> Markup {
    html! {
        header #head {
            nav aria-label="Breadcrumb" { a href="/virtual-machines" { "Virtual machines" } " / " (found.namespace) "/" (found.name) }
            h1 { (found.namespace) "/" (found.name) }
            p.summary {
                (found.phase.as_str())
                @if let Some(node) = &found.node { " on " a href=(node_path(node)) { (node) } }
            }
            (guest_page::links(&found.namespace, &found.name, context))
        }
    }
}

fn movable(found: &InstanceExplanation) -> Markup {
    let (class, text) = match found.migratable.holds {
        Some(true) => ("good", "yes"),
        Some(false) => ("bad", "no"),
        None => ("quiet", "not known"),
    };
    html! {
        section #movable aria-label="Migratable" {
            h2 { "Migratable" }
            p {
                strong class=(class) { (text) }
                @if !found.migratable.message.is_empty() { ": " (found.migratable.message) }
            }
            @if let Some(drain) = &found.drain {
                p {
                    "A drain of the node "
                    @match (drain.outcome, &drain.guest.target) {
                        ("moves", Some(target)) => {
                            "migrates the guest (" (bytes(drain.guest.memory_bytes)) "), for example to " (target) "."
                        }
                        ("moves", None) => { "migrates the guest: " (drain.guest.message) }
                        ("stops", _) => { "shuts the guest down: " (drain.guest.message) }
                        _ => { "is blocked: " (drain.guest.message) }
                    }
                }
                @if let Some(remedy) = &drain.guest.remedy {
                    p { "Remedy: " (remedy.text) }
                    @if let Some(text) = &remedy.command { (command(text)) }
                }
            }
            (command(&format!("kubectl drydock explain vm {}/{}", found.namespace, found.name)))
        }
    }
}

fn places(found: &InstanceExplanation) -> Markup {
    html! {
        section #places aria-label="Other nodes" {
            h2 { "Other nodes" }
            @if found.nodes.is_empty() {
                p.quiet { "Not known: the agent has not reported the guest's requirements, or no other node exists." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Table of other nodes" {
                    table {
                        thead {
                            tr { @for heading in ["Node", "Suitable", "Reason"] { th scope="col" { (heading) } } }
                        }
                        tbody {
                            @for node in &found.nodes {
                                tr {
                                    th scope="row" { a href=(node_path(&node.name)) { (node.name) } }
                                    td { @if node.reasons.is_empty() { span.good { "yes" } } @else { span.bad { "no" } } }
                                    td.why-cell {
                                        @if !node.reasons.is_empty() { "The node " (node.reasons.join("; ")) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
