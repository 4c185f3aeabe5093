//! The dialog that starts maintenance. It shows the effects before the user confirms.

use drydock_view::plan::{DrainPlan, GuestPlan, NoSuchNode, NodePlan, Verdicts, plan};
use drydock_view::text::{bytes, seconds};
use jiff::Timestamp;
use maud::{Markup, html};

use super::{
    PageContext,
    parts::{Confirmation, clock_time, command, form},
};
use crate::console::{
    page::{DIALOG, Page},
    rights::UserAction,
};

pub(super) fn dialog(names: &[String], context: &PageContext<'_>) -> Page {
    let title = format!("Start Maintenance on {}", names.join(", "));
    let mut page = Page::new(title.clone());
    page.push(DIALOG, "dialog-title", html! { h2 #dialog-title { (title) } });
    match plan(context.snapshot, names) {
        Ok(plan) => {
            for node in &plan.nodes {
                page.push(
                    DIALOG,
                    format!("plan/{}", node.name),
                    node_plan(node, &plan, names.len() > 1),
                );
            }
            page.push(DIALOG, "plan-room", room(&plan, context));
            page.push(DIALOG, "start-form", confirmation(names, &plan, context));
        }
        Err(NoSuchNode(name)) => page.push(
            DIALOG,
            "start-form",
            html! {
                form #start-form method="dialog" {
                    p.banner.warning role="alert" { "Node " (name) " no longer exists." }
                    div.buttons { button value="cancel" { "Close" } }
                }
            },
        ),
    }
    page
}

fn node_plan(node: &NodePlan, plan: &DrainPlan, several: bool) -> Markup {
    let pods = node.pods_leaving + node.pods_waiting.len();
    html! {
        section.plan id={ "plan/" (node.name) } {
            @if several { h3 { (node.name) } }
            ul.plan {
                (list("blocks", "blocks", "block", &node.blocks, "An administrator has to act", node))
                (list("stops", "is shut down", "are shut down", &node.stops, "", node))
                (list("moves", "moves", "move", &node.moves, &takes(node, plan.at), node))
                @if pods > 0 {
                    li {
                        details id={ "pods/" (node.name) } {
                            summary {
                                strong { (node.pods_leaving) " of " (pods) " other pods leave" }
                                @if !node.pods_waiting.is_empty() { ", " (node.pods_waiting.len()) " wait" }
                            }
                            ul {
                                @for pod in &node.pods_waiting {
                                    li { (pod.namespace) "/" (pod.name) ": budget " (pod.budget) " allows no eviction ("
                                        (pod.ready) " ready, " (pod.required) " required)" }
                                }
                            }
                        }
                    }
                }
                @if pods + node.blocks.len() + node.stops.len() + node.moves.len() == 0 {
                    li { "Nothing has to leave the node, so the node is empty immediately." }
                }
            }
        }
    }
}

/// Returns the estimated time that the moves of a node take.
fn takes(node: &NodePlan, at: Timestamp) -> String {
    let end = node.end.map(|end| end.duration_since(at).as_secs());
    let takes = match end.and_then(|end| u64::try_from(end).ok()) {
        Some(end) => format!("about {}", seconds(end)),
        None => "no estimate (no migration has been measured yet)".into(),
    };
    format!("{takes}, {} at a time", node.parallel)
}

fn list(class: &str, one: &str, many: &str, guests: &[GuestPlan], note: &str, node: &NodePlan) -> Markup {
    if guests.is_empty() {
        return html! {};
    }
    let what = if guests.len() == 1 {
        format!("1 virtual machine {one}")
    } else {
        format!("{} virtual machines {many}", guests.len())
    };
    html! {
        li class=(class) {
            details id={ (class) "/" (node.name) } open[class == "blocks"] {
                summary { strong { (what) } @if !note.is_empty() { span.quiet { " " (note) } } }
                ul {
                    @for guest in guests {
                        li {
                            strong { (guest.namespace) "/" (guest.name) } " "
                            @match &guest.target {
                                Some(target) if class == "moves" => { (bytes(guest.memory_bytes)) " to " (target) ", for example" }
                                _ => (guest.message),
                            }
                            @if let Some(remedy) = &guest.remedy {
                                p { "Remedy: " (remedy.text) }
                                @if let Some(text) = &remedy.command { (command(text)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn room(plan: &DrainPlan, context: &PageContext<'_>) -> Markup {
    let room = &plan.room;
    html! {
        p #plan-room {
            "Room afterwards: the other nodes will have " (bytes(room.free_bytes)) " of unrequested memory; "
            @match &room.lost {
                None => "enough if one more node fails.",
                Some(node) => { "if " (node) " also fails, " (bytes(room.missing_bytes)) " are missing." }
            }
            " " span.quiet {
                "State of the objects: " (clock_time(context.stale_since.unwrap_or(plan.at))) "."
                @if !plan.unread.is_empty() {
                    " Not considered: "
                    @for (index, unread) in plan.unread.iter().enumerate() {
                        @if index > 0 { ", " } (unread.resource)
                    }
                    "."
                }
            }
        }
    }
}

fn confirmation(names: &[String], plan: &DrainPlan, context: &PageContext<'_>) -> Markup {
    let all = names.join(" ");
    let verdict = match plan.verdict() {
        Verdicts::AllMove => "",
        Verdicts::SomeStop => "Some virtual machines are shut down.",
        Verdicts::SomeBlock => "The node does not become empty until the causes are removed.",
    };
    let content = html! {
        div.field { label for="reason" { "Reason" } input #reason name="reason" maxlength="200" autocomplete="off"; }
        div.field {
            label for="give-up" { "Abort and restore the node after" }
            input #give-up name="giveUpAfter" placeholder="never" pattern="([0-9]+h)?([0-9]+m)?([0-9]+s)?"
                title="A duration such as 45m or 2h30m; without a duration, the maintenance is never aborted"
                autocomplete="off";
        }
        @if context.cluster.careful {
            div.field {
                label for="confirm" {
                    "Type " code { (all) } " to confirm (required for " (context.cluster.context) ")"
                }
                input #confirm name="confirm" required autocomplete="off" spellcheck="false";
            }
        }
        @if !verdict.is_empty() { p #verdict { (verdict) } }
    };
    let question = Confirmation {
        id: "start-form",
        path: "/api/start",
        hidden: &[("nodes", &all)],
        content,
        action: UserAction::Start,
        open: true,
        label: "Start Maintenance",
        command: format!("kubectl drydock maintenance start {all}"),
    };
    form(&question, context)
}
