//! Virtual machines: all that run, and for each whether it can move.

use drydock_api::kubevirt::{VirtualMachineInstance, names::conditions as types};
use drydock_core::drain::guest::memory;
use drydock_view::{
    explain::{Explanation, explain},
    text::bytes,
};
use maud::{Markup, html};

use super::{
    Context,
    parts::{command, filter, identity, machine_path, node_path, pagination},
};
use crate::console::{
    page::{Page, ROOT},
    view::{Path, ROWS},
};

const BODY: &str = "machine-rows";

pub(super) fn list(path: &Path, context: &Context<'_>) -> Page {
    let mut all: Vec<&VirtualMachineInstance> = context
        .snapshot
        .instances
        .iter()
        .map(|instance| &**instance)
        .filter(|instance| path.shows(texts(instance)))
        .collect();
    all.sort_by_key(|instance| (&instance.metadata.namespace, &instance.metadata.name));
    let mut page = Page::new("Virtual machines");
    let text = format!("{} run or are to run", context.snapshot.instances.len());
    page.push(
        ROOT,
        "summary",
        html! { header #summary { h1 { "Virtual machines" } p.summary data-announce=(text) { (text) } } },
    );
    if context.snapshot.instances.is_empty() {
        page.push(ROOT, "none", html! {
            section #none .empty {
                h2 { "No virtual machine runs" }
                p { "Start one with " code { "kubectl apply" } " or " code { "virtctl start" } ": it appears here by itself." }
            }
        });
        return page;
    }
    filter(&mut page, path, "virtual machines");
    page.push(ROOT, "machines", html! {
        div #machines .scroll tabindex="0" role="region" aria-label="Table of virtual machines" {
            table {
                caption.hidden { "Virtual machines" }
                thead { tr { @for heading in ["Name", "Phase", "Node", "Memory", "Can it move?"] { th scope="col" { (heading) } } } }
                tbody #(BODY) {}
            }
        }
    });
    if all.is_empty() {
        page.push(BODY, "no-match", html! {
            tr #no-match { td colspan="5" { "No virtual machine has “" (path.filter) "” in its name, namespace, phase or node." } }
        });
    }
    let count = all.len();
    for instance in all.into_iter().skip(path.page * ROWS).take(ROWS) {
        let names = [name(instance).0, name(instance).1];
        page.push(BODY, identity("vm", &names), row(instance));
    }
    pagination(&mut page, path, "/virtual-machines", count, "virtual machines");
    page
}

fn name(instance: &VirtualMachineInstance) -> (&str, &str) {
    let metadata = &instance.metadata;
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

fn texts(instance: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let (namespace, name) = name(instance);
    let status = instance.status.as_ref();
    let phase = status
        .and_then(|status| status.phase)
        .map(drydock_api::kubevirt::Phase::as_str);
    let node = status.and_then(|status| status.node_name.as_deref());
    [Some(namespace), Some(name), phase, node].into_iter().flatten()
}

fn row(instance: &VirtualMachineInstance) -> Markup {
    let (namespace, name) = name(instance);
    let status = instance.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let migratable = conditions
        .iter()
        .find(|condition| condition.type_ == types::LIVE_MIGRATABLE);
    let phase = status.and_then(|status| status.phase).unwrap_or_default();
    html! {
        tr id=(identity("vm", &[namespace, name])) {
            th scope="row" { a href=(machine_path(namespace, name)) { (namespace) "/" (name) } }
            td { (phase.as_str()) }
            td { @if let Some(node) = status.and_then(|status| status.node_name.as_deref()) { a href=(node_path(node)) { (node) } } }
            td.number { (bytes(memory(instance))) }
            td.why-cell {
                @match migratable {
                    None => span.quiet { "not known yet" },
                    Some(condition) if condition.status == "True" => "yes",
                    Some(condition) => { span.bad { "no" } ": " (condition.message.as_deref().unwrap_or_default()) }
                }
            }
        }
    }
}

pub(super) fn page(namespace: &str, name: &str, context: &Context<'_>) -> Page {
    let Some(found) = explain(context.snapshot, namespace, name) else {
        return Page::missing(&format!("virtual machine {namespace}/{name} that runs or is to run"));
    };
    let mut page = Page::new(format!("{namespace}/{name}"));
    page.push(ROOT, "head", head(&found));
    page.push(ROOT, "movable", movable(&found));
    page.push(ROOT, "places", places(&found));
    page
}

fn head(found: &Explanation) -> Markup {
    html! {
        header #head {
            nav aria-label="Breadcrumb" { a href="/virtual-machines" { "Virtual machines" } " / " (found.namespace) "/" (found.name) }
            h1 { (found.namespace) "/" (found.name) }
            p.summary data-announce={ (found.name) ": " (found.phase.as_str()) } {
                (found.phase.as_str())
                @if let Some(node) = &found.node { " on " a href=(node_path(node)) { (node) } }
            }
        }
    }
}

fn movable(found: &Explanation) -> Markup {
    let (class, word) = match found.migratable.holds {
        Some(true) => ("good", "yes"),
        Some(false) => ("bad", "no"),
        None => ("quiet", "not known"),
    };
    html! {
        section #movable aria-label="Can it move?" {
            h2 { "Can it move?" }
            p {
                strong class=(class) { (word) }
                @if !found.migratable.message.is_empty() { ": " (found.migratable.message) }
            }
            @if let Some(drain) = &found.drain {
                p {
                    "A drain of its node "
                    @match (drain.outcome, &drain.guest.target) {
                        ("moves", Some(target)) => { "moves it (" (bytes(drain.guest.memory_bytes)) "), for example to " (target) "." }
                        ("moves", None) => { "moves it: " (drain.guest.message) }
                        ("stops", _) => { "stops it: " (drain.guest.message) }
                        _ => { "is blocked by it: " (drain.guest.message) }
                    }
                }
                @if let Some(remedy) = &drain.guest.remedy {
                    p { "What would help: " (remedy.text) }
                    @if let Some(text) = &remedy.command { (command(text)) }
                }
            }
            (command(&format!("kubectl drydock explain vm {}/{}", found.namespace, found.name)))
        }
    }
}

fn places(found: &Explanation) -> Markup {
    html! {
        section #places aria-label="Other nodes" {
            h2 { "Other nodes" }
            @if found.nodes.is_empty() {
                p.quiet { "Not known yet: its agent has not reported what it needs, or there is no other node." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Table of other nodes" {
                    table {
                        thead { tr { th scope="col" { "Node" } th scope="col" { "Could take it?" } th scope="col" { "Why not" } } }
                        tbody {
                            @for node in &found.nodes {
                                tr {
                                    th scope="row" { a href=(node_path(&node.name)) { (node.name) } }
                                    td { @if node.reasons.is_empty() { span.good { "yes" } } @else { span.bad { "no" } } }
                                    td.why-cell { @if !node.reasons.is_empty() { "It " (node.reasons.join("; ")) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
