//! Renders a plan as text.

use std::fmt::Write as _;

use super::{DrainPlan, GuestPlan, NodePlan, Room};
use crate::{
    snapshot::UnreadKind,
    text::{beside, bytes, seconds, wrapped},
};

/// Column at which messages begin.
const MESSAGE: usize = 17;

/// Returns a plan as text for a terminal with this width. `clock` is the time of day at which the objects were read.
pub fn text(plan: &DrainPlan, clock: &str, width: usize) -> String {
    let mut text = String::new();
    for node in &plan.nodes {
        node_text(&mut text, plan, node, clock, width);
    }
    let _ = writeln!(text, "ROOM             {}", wrapped(&room(&plan.room), width, MESSAGE));
    if !plan.unread.is_empty() {
        let _ = writeln!(
            text,
            "not considered:  {}",
            wrapped(&UnreadKind::list(&plan.unread), width, MESSAGE)
        );
    }
    text
}

fn node_text(text: &mut String, plan: &DrainPlan, node: &NodePlan, clock: &str, width: usize) {
    let guests = node.blocks.len() + node.stops.len() + node.moves.len();
    let pods = node.pods_leaving + node.pods_waiting.len();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {guests} virtual machines, {pods} other pods; as of {clock}; nothing was changed",
        node.name
    );
    if !node.blocks.is_empty() {
        let _ = writeln!(text, "\nBLOCKS {}", node.blocks.len());
        for guest in &node.blocks {
            line(text, &name(guest), &guest.message, width);
            if let Some(remedy) = &guest.remedy {
                remedy.append(text, MESSAGE, width);
            }
        }
    }
    if !node.stops.is_empty() {
        let _ = writeln!(text, "\nSTOPS {}", node.stops.len());
        for guest in &node.stops {
            line(text, &name(guest), &guest.message, width);
        }
    }
    if !node.moves.is_empty() {
        let end = node.end.map(|end| end.duration_since(plan.at).as_secs());
        let takes = match end.and_then(|end| u64::try_from(end).ok()) {
            Some(end) => format!("about {}", seconds(end)),
            None => "no estimate (no migration has been measured yet)".into(),
        };
        let head = format!("{takes}, {} at a time", node.parallel);
        let _ = writeln!(
            text,
            "\nMOVES {:<10} {}",
            node.moves.len(),
            wrapped(&head, width, MESSAGE)
        );
        for guest in &node.moves {
            let target = match &guest.target {
                Some(target) => format!("to {target}, for example"),
                None => guest.message.clone(),
            };
            line(
                text,
                &name(guest),
                &format!("{}  {target}", bytes(guest.memory_bytes)),
                width,
            );
        }
    }
    if pods > 0 {
        let _ = writeln!(
            text,
            "\nPODS {:<11} {} leave, {} wait",
            pods,
            node.pods_leaving,
            node.pods_waiting.len()
        );
        for pod in &node.pods_waiting {
            let why = held_by_budget(&pod.budget, pod.ready, pod.required);
            line(text, &format!("{}/{}", pod.namespace, pod.name), &why, width);
        }
    }
    text.push('\n');
}

/// Returns the sentence about a PodDisruptionBudget that allows no eviction, with its numbers of pods.
pub(crate) fn held_by_budget(budget: &str, ready: i32, required: i32) -> String {
    format!("budget {budget} allows no eviction ({ready} ready, {required} required)")
}

fn name(guest: &GuestPlan) -> String {
    format!("{}/{}", guest.namespace, guest.name)
}

/// Appends a name and a message. The message is on the line of the name, or below it if the name is long.
fn line(text: &mut String, name: &str, message: &str, width: usize) {
    beside(text, &format!("  {name}"), message, MESSAGE, width);
}

/// Returns the sentence about the free memory of the other nodes.
fn room(room: &Room) -> String {
    if room.nodes == 0 {
        return "no other node accepts virtual machines".into();
    }
    let free = format!(
        "the other nodes will have {} of unrequested memory",
        bytes(room.free_bytes)
    );
    match &room.lost {
        None => format!("{free}; enough if one more node fails"),
        Some(node) => format!(
            "{free}; if {node} also fails, {} are missing",
            bytes(room.missing_bytes)
        ),
    }
}
