//! Requests of a browser for a guest that one of its pages shows: input for the guest, and pixels of its display.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::{OpenGuest, UserInput, keys::KeyPress};
use crate::console::{ConsoleContext, actions::READ_ONLY, error};

/// Path to which input is posted.
pub(in crate::console) const INPUT: &str = "/api/guest/input";
/// Path from which pixels are requested.
pub(in crate::console) const FRAME: &str = "/api/guest/frame";
/// Time limit of a request for pixels. Without a change, the response is empty.
const PATIENCE: Duration = Duration::from_secs(5);

/// Input for a guest. It comes from the keyboard and the pointer, or from a form, whose fields are all texts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::console) struct Body {
    /// Identity of the open guest.
    guest: String,
    #[serde(default)]
    inputs: Vec<UserInput>,
    /// Text to type.
    #[serde(default)]
    text: Option<String>,
    /// Whether Enter is pressed after the text.
    #[serde(default)]
    enter: Option<String>,
    /// Whether Ctrl, Alt and Delete are pressed.
    #[serde(default)]
    ctrl_alt_delete: Option<String>,
}

/// Query of a request for pixels.
#[derive(Deserialize)]
pub(in crate::console) struct Frame {
    guest: String,
    width: u16,
    height: u16,
}

fn find(shared: &ConsoleContext, guest: &str) -> Option<Arc<OpenGuest>> {
    shared.guests.find(guest.parse().ok()?)
}

fn not_open() -> Response {
    error(StatusCode::NOT_FOUND, "this guest is no longer open: reload the page")
}

/// Passes input on to the guest.
pub(in crate::console) async fn input(State(shared): State<Arc<ConsoleContext>>, Json(body): Json<Body>) -> Response {
    if shared.read_only {
        return error(StatusCode::FORBIDDEN, READ_ONLY);
    }
    let Some(guest) = find(&shared, &body.guest) else {
        return not_open();
    };
    let mut inputs = body.inputs;
    inputs.extend(body.text.map(|text| UserInput::Text { text }));
    inputs.extend(body.ctrl_alt_delete.map(|_| UserInput::CtrlAltDelete));
    if body.enter.is_some() {
        inputs.extend([true, false].map(|down| UserInput::Key(KeyPress::enter(down))));
    }
    guest.input(inputs);
    Json(json!({})).into_response()
}

/// Returns the changed rectangles, see [`super::framebuffer::Framebuffer::take`]. The response is empty if nothing
/// changes for a while.
pub(in crate::console) async fn frame(
    State(shared): State<Arc<ConsoleContext>>,
    Query(frame): Query<Frame>,
) -> Response {
    let Some(guest) = find(&shared, &frame.guest) else {
        return not_open();
    };
    match guest.frame((frame.width, frame.height), PATIENCE).await {
        Some(pixels) => ([(CONTENT_TYPE, "application/octet-stream")], pixels).into_response(),
        None => error(StatusCode::CONFLICT, "the size of the display has changed"),
    }
}
