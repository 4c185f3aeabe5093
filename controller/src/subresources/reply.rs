//! Responses of the subresources API.

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::Value;

/// Response to a successful request.
pub(super) enum SubresourceReply {
    /// A JSON document.
    Json(StatusCode, Value),
    /// A status code without a body.
    Empty(StatusCode),
    /// A document of an agent, with its media type.
    Document(HeaderValue, Bytes),
    /// The connection switches to another protocol.
    Upgrade(Response),
}

impl IntoResponse for SubresourceReply {
    fn into_response(self) -> Response {
        match self {
            Self::Json(code, document) => {
                (code, [(CONTENT_TYPE, "application/json")], document.to_string()).into_response()
            }
            Self::Empty(code) => code.into_response(),
            Self::Document(media_type, content) => ([(CONTENT_TYPE, media_type)], content).into_response(),
            Self::Upgrade(response) => response,
        }
    }
}
