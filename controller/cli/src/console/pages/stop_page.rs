//! The dialog that ends maintenance, with the consequences.

use drydock_api::hypervisor::RemainingState;
use drydock_view::node::node;
use maud::html;

use super::{
    PageContext,
    parts::{Confirmation, form},
};
use crate::console::{
    page::{DIALOG, Page},
    rights::UserAction,
};

pub(super) fn dialog(name: &str, context: &PageContext<'_>) -> Page {
    let title = format!("Stop Maintenance on {name}");
    let mut page = Page::new(title.clone());
    page.push(DIALOG, "dialog-title", html! { h2 #dialog-title { (title) } });
    let details = node(context.snapshot, name);
    let count = |state| {
        let guests = details.iter().flat_map(|details| &details.guests);
        guests.filter(|guest| guest.leaving == Some(state)).count()
    };
    let (moving, waiting) = (count(RemainingState::Moving), count(RemainingState::Waiting));
    let in_maintenance = details.as_ref().is_some_and(|details| details.row.in_maintenance);
    let content = html! {
        @if in_maintenance {
            p { "New pods and virtual machines can be scheduled on the node again. Nothing moves back." }
            @if moving > 0 { p { "Running migrations (" (moving) ") are completed. The guests stay on the targets." } }
            @if waiting > 0 { p { "Waiting virtual machines (" (waiting) ") stay on " (name) "." } }
        } @else {
            p.banner { "The node is no longer in maintenance." }
        }
    };
    let question = Confirmation {
        id: "stop-form",
        path: "/api/stop",
        hidden: &[("node", name)],
        content,
        action: UserAction::Stop,
        open: in_maintenance,
        label: "Stop Maintenance",
        command: format!("kubectl drydock maintenance stop {name}"),
    };
    page.push(DIALOG, question.id, form(&question, context));
    page
}
