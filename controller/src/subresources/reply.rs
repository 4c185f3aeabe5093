//! Responses of the subresources API.

use axum::{
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::Value;

/// Returns a response with a JSON document.
pub(super) fn json_response(code: StatusCode, document: &Value) -> Response {
    (code, [(CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}
