//! The page of a node: its state, its drain with each guest, the remaining pods, and the reports of its agent.

use drydock_api::{hypervisor::RemainingState, maintenance::PendingPod};
use drydock_view::{
    node::{GuestRow, MaintenanceSummary, NodeDetails, node},
    text::bytes,
};
use maud::{Markup, html};

use super::{
    PageContext,
    nodes_page::items,
    parts::{ago, command, identity, machine_path, node_path, state, until},
};
use crate::console::page::{Page, ROOT};

const GUESTS: &str = "guest-rows";
const PODS: &str = "pod-rows";

pub(super) fn page(name: &str, context: &PageContext<'_>) -> Page {
    let Some(details) = node(context.snapshot, name) else {
        return Page::missing(&format!("node {name}"));
    };
    let mut page = Page::new(name);
    page.announce(format!("{}: {}", details.row.name, details.row.state.as_str()));
    page.push(ROOT, "head", head(&details, context));
    if let Some(maintenance) = &details.maintenance {
        page.push(ROOT, "maintenance", maintained(maintenance, &details, context));
    }
    if details.drain.is_some() {
        page.push(ROOT, "numbers", numbers(&details, context));
    }
    page.push(ROOT, "guests", guest_table(&details.guests));
    for guest in &details.guests {
        page.push(
            GUESTS,
            identity("guest", &[&guest.namespace, &guest.name]),
            guest_row(guest),
        );
    }
    if !details.pods.is_empty() {
        page.push(ROOT, "pods", pod_table());
        for pod in &details.pods {
            page.push(
                PODS,
                identity("pod", &[&pod.namespace, &pod.name]),
                pod_row(pod, context),
            );
        }
    }
    page.push(ROOT, "agent", agent(&details, context));
    page
}

fn head(details: &NodeDetails, context: &PageContext<'_>) -> Markup {
    let row = &details.row;
    html! {
        header #head {
            nav aria-label="Breadcrumb" { a href="/nodes" { "Nodes" } " / " (row.name) }
            div.title {
                h1 { (row.name) }
                (state(row.state))
                details.menu.actions #actions {
                    summary { "Actions" }
                    (items(row, context))
                }
            }
            p.summary {
                @if let Some(why) = &row.why { (why) }
                @if let Some(since) = row.since { ", for " (ago(context.now, since)) }
            }
            dl.facts {
                div { dt { "Memory requested" } dd { (bytes(row.requested_bytes)) " of " (bytes(row.allocatable_bytes)) } }
                @if let Some(zone) = &row.zone { div { dt { "Zone" } dd { (zone) } } }
                @if let Some(kernel) = &row.kernel { div { dt { "Kernel" } dd { (kernel) } } }
            }
        }
    }
}

fn maintained(maintenance: &MaintenanceSummary, details: &NodeDetails, context: &PageContext<'_>) -> Markup {
    let stop = format!("kubectl drydock maintenance stop {}", details.row.name);
    html! {
        section #maintenance aria-label="Maintenance" {
            h2 { "Maintenance" }
            dl.facts {
                div { dt { "Phase" } dd {
                    @if maintenance.ending { "being ended" } @else { (maintenance.phase.as_deref().unwrap_or("new")) }
                } }
                div { dt { "Reason" } dd { (maintenance.reason.as_deref().unwrap_or("–")) } }
                @if let Some(since) = maintenance.since { div { dt { "Started" } dd { (ago(context.now, since)) " ago" } } }
                div { dt { "Object" } dd { (maintenance.name) " of " (maintenance.group) } }
            }
            @if let Some(progress) = maintenance.progress {
                p { progress max="100" value=(progress) { (progress) " %" } " " (progress) " % of the pods have left" }
            }
            @if let Some(error) = &maintenance.error { p.banner.warning role="alert" { (error) } }
            (command(&stop))
        }
    }
}

fn numbers(details: &NodeDetails, context: &PageContext<'_>) -> Markup {
    let Some(drain) = &details.drain else { return html! {} };
    let moved = drain.total.saturating_sub(drain.left);
    html! {
        section #numbers aria-label="Drain" {
            dl.numbers {
                @for (label, count, class) in [
                    ("Gone", moved, ""),
                    ("Moving", drain.moving, ""),
                    ("Waiting", drain.waiting, ""),
                    ("Stopping", drain.shutting_down, ""),
                    ("Blocked", drain.blocked, if drain.blocked > 0 { "bad" } else { "" }),
                    ("Pods", u32::try_from(details.pods.len()).unwrap_or(u32::MAX), ""),
                ] {
                    div class=(class) { dt { (label) } dd { (count) } }
                }
            }
            p {
                @match (&drain.finished_at, &drain.estimated_end) {
                    (Some(end), _) => { "The last virtual machine left " (ago(context.now, end.0)) " ago." }
                    (None, Some(end)) => {
                        "The last virtual machine is expected to leave " (until(context.now, end.0)) "."
                    }
                    (None, None) => { "No migration has been measured yet, so the end cannot be estimated." }
                }
            }
        }
    }
}

fn guest_table(guests: &[GuestRow]) -> Markup {
    html! {
        section #guests aria-label="Virtual machines" {
            h2 { "Virtual machines" }
            @if guests.is_empty() {
                p.quiet { "No virtual machine runs on this node." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Table of virtual machines" {
                    table {
                        thead {
                            tr {
                                @for heading in ["Name", "State", "To", "Progress", "Memory", "Why"] {
                                    th scope="col" { (heading) }
                                }
                            }
                        }
                        tbody #(GUESTS) {}
                    }
                }
            }
        }
    }
}

fn guest_row(guest: &GuestRow) -> Markup {
    let (class, does) = match guest.leaving {
        Some(RemainingState::Blocked) => ("bad", "Blocked"),
        Some(RemainingState::Waiting) => ("", "Waiting"),
        Some(RemainingState::Moving) => ("", "Moving"),
        Some(RemainingState::ShuttingDown) => ("", "Stopping"),
        Some(RemainingState::Unknown) => ("", "Leaving"),
        None => ("", guest.phase.as_str()),
    };
    html! {
        tr id=(identity("guest", &[&guest.namespace, &guest.name])) {
            th scope="row" { a href=(machine_path(&guest.namespace, &guest.name)) { (guest.namespace) "/" (guest.name) } }
            td class=(class) { (does) }
            td { @match &guest.target { Some(target) => a href=(node_path(target)) { (target) }, None => span.quiet { "–" } } }
            td { (guest.progress.join(", ")) }
            td.number { (bytes(guest.memory_bytes)) }
            td.why-cell { (guest.message) }
        }
    }
}

fn pod_table() -> Markup {
    html! {
        section #pods aria-label="Pods that have not left" {
            h2 { "Pods that have not left" }
            div.scroll tabindex="0" role="region" aria-label="Table of pods" {
                table {
                    thead { tr { @for heading in ["Pod", "Reason", "Budget", "Since"] { th scope="col" { (heading) } } } }
                    tbody #(PODS) {}
                }
            }
        }
    }
}

fn pod_row(pod: &PendingPod, context: &PageContext<'_>) -> Markup {
    html! {
        tr id=(identity("pod", &[&pod.namespace, &pod.name])) {
            th scope="row" { (pod.namespace) "/" (pod.name) }
            td { (pod.reason) @if let Some(last) = &pod.last_refusal { p.quiet { (last) } } }
            td {
                @if let Some(budget) = &pod.blocked_by {
                    (budget.name) ": " (budget.disruptions_allowed) " may be evicted, "
                    (budget.current_healthy) " ready, " (budget.desired_healthy) " required"
                }
            }
            td { @if let Some(since) = &pod.pending_since { (ago(context.now, since.0)) } }
        }
    }
}

fn agent(details: &NodeDetails, context: &PageContext<'_>) -> Markup {
    html! {
        section #agent aria-label="Agent" {
            h2 { "Agent" }
            @if details.conditions.is_empty() { p.quiet { "No agent has reported from this node." } }
            ul.conditions {
                @for condition in &details.conditions {
                    li {
                        strong { (condition.type_) } " " (condition.status)
                        @if !condition.reason.is_empty() { " · " (condition.reason) }
                        @if !condition.message.is_empty() { ": " (condition.message) }
                        span.quiet { " for " (ago(context.now, condition.last_transition_time.0)) }
                    }
                }
            }
            details #models {
                summary { (details.models.len()) " usable CPU models" }
                p { (details.models.join(", ")) }
            }
        }
    }
}
