//! The dialog that ends maintenance, with what follows from it.

use drydock_api::hypervisor::RemainingState;
use drydock_view::node::node;
use maud::html;

use super::{Context, parts::command};
use crate::console::{
    page::{DIALOG, Page},
    rights::Action,
};

pub(super) fn dialog(name: &str, context: &Context<'_>) -> Page {
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
    let missing = match context.stale_since {
        Some(_) => Some("the API server is not reached"),
        None => context.rights.missing(Action::Stop),
    };
    page.push(
        DIALOG,
        "stop-form",
        html! {
            form #stop-form data-post="/api/stop" {
                input type="hidden" name="node" value=(name);
                @if in_maintenance {
                    p { "The node is open to new pods and virtual machines again. Nothing moves back." }
                    @if moving > 0 { p { (moving) " on their way arrive, and stay there." } }
                    @if waiting > 0 { p { (waiting) " that wait stay on " (name) "." } }
                } @else {
                    p.banner { "The node is not in maintenance any more." }
                }
                @if let Some(missing) = missing { p.banner.warning { (missing) } }
                p.error role="alert" hidden {}
                div.buttons {
                    button type="button" data-close { "Cancel" }
                    button.primary type="submit" disabled[missing.is_some() || !in_maintenance] { "Stop Maintenance" }
                }
                (command(&format!("kubectl drydock maintenance stop {name}")))
            }
        },
    );
    page
}
