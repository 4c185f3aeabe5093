//! A websocket to the console or the display of a guest, through the API server's `subresources.kubevirt.io`.
//!
//! `kube` opens websockets only with the subprotocols of `kubectl exec`, so this module implements the upgrade with the
//! client of `kube`.

use std::time::Duration;

use axum::{
    body::{Body as Collected, to_bytes},
    http::{
        HeaderMap, Request, StatusCode,
        header::{
            CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
        },
    },
};
use futures::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::{Client, client::Body};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Bytes, Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::{Role, WebSocketConfig},
    },
};

use crate::console::{url::segment, view::GuestDevice};

/// Subprotocol of KubeVirt: bytes in binary messages.
const SUBPROTOCOL: &str = "plain.kubevirt.io";
/// Time limit for the API server to switch to the websocket. The API server's own limit is 60 s.
const CONNECT: Duration = Duration::from_secs(60);
/// Interval of pings, which keep proxies from closing an idle connection.
const PING: Duration = Duration::from_secs(30);
/// Time without any message after which a connection is considered broken: three pings without a response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(95);
/// Maximum size of a message that is read, in bytes. KubeVirt and Drydock send up to 32 KiB.
const LARGEST_MESSAGE: usize = 1 << 20;
/// Maximum number of bytes that are read from an error response.
const LONGEST_ERROR: usize = 64 << 10;

/// Reason why no websocket was opened.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    /// The API server, or the server of the subresources, has refused the websocket with this message.
    #[error("{message}")]
    Status { code: u16, message: String },
    #[error("the API server cannot be reached")]
    Unreached(#[source] kube::Error),
    #[error("the connection ended before the upgrade to a websocket")]
    Upgrade(#[source] hyper::Error),
    #[error("the API server accepted no websocket with the subprotocol {SUBPROTOCOL}")]
    NoWebSocket,
    #[error("the API server opened no websocket within {} s", CONNECT.as_secs())]
    TooLate,
    #[error("the name of the guest is not valid in a request")]
    Request(#[source] axum::http::Error),
}

/// Event of a websocket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SocketEvent {
    /// The other side has sent bytes.
    Data(Bytes),
    /// The other side has closed the websocket with a code and a reason.
    Closed { code: u16, reason: String },
    /// The connection has ended without a reason.
    Lost,
}

/// A connection of any kind.
trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientStream for T {}

/// An open websocket.
pub(super) struct GuestSocket {
    stream: WebSocketStream<Box<dyn ClientStream>>,
    /// Time of the last message.
    last: Instant,
}

impl GuestSocket {
    /// Opens a websocket to the console or the display of a guest.
    ///
    /// # Errors
    /// If the websocket is refused, or the API server cannot be reached.
    pub(super) async fn open(
        client: &Client,
        namespace: &str,
        name: &str,
        device: GuestDevice,
    ) -> Result<Self, HandshakeError> {
        let open = Self::upgrade(client, namespace, name, device);
        timeout(CONNECT, open).await.map_err(|_| HandshakeError::TooLate)?
    }

    async fn upgrade(
        client: &Client,
        namespace: &str,
        name: &str,
        device: GuestDevice,
    ) -> Result<Self, HandshakeError> {
        let key = generate_key();
        let request = Request::get(path(namespace, name, device))
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key)
            .header(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
            .body(Body::empty())
            .map_err(HandshakeError::Request)?;
        let response = client.send(request).await.map_err(HandshakeError::Unreached)?;
        let code = response.status();
        if code.is_client_error() || code.is_server_error() {
            let body = to_bytes(Collected::new(response.into_body()), LONGEST_ERROR).await;
            return Err(refusal(code, &body.unwrap_or_default()));
        }
        if code != StatusCode::SWITCHING_PROTOCOLS || !is_accepted(response.headers(), &key) {
            return Err(HandshakeError::NoWebSocket);
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(HandshakeError::Upgrade)?;
        Ok(Self::over(TokioIo::new(upgraded)).await)
    }

    /// Returns a websocket on a connection that has been upgraded.
    pub(super) async fn over(connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let config = WebSocketConfig::default()
            .max_message_size(Some(LARGEST_MESSAGE))
            .max_frame_size(Some(LARGEST_MESSAGE));
        let connection: Box<dyn ClientStream> = Box::new(connection);
        Self {
            stream: WebSocketStream::from_raw_socket(connection, Role::Client, Some(config)).await,
            last: Instant::now(),
        }
    }

    /// Waits for the next event. Cancel safe: no event is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> SocketEvent {
        loop {
            let message = match timeout(PING, self.stream.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(_)) | None) => return SocketEvent::Lost,
                Err(_) if self.last.elapsed() > IDLE_TIMEOUT => return SocketEvent::Lost,
                Err(_) => {
                    if self.stream.send(Message::Ping(Bytes::new())).await.is_err() {
                        return SocketEvent::Lost;
                    }
                    continue;
                }
            };
            self.last = Instant::now();
            match message {
                Message::Binary(data) => return SocketEvent::Data(data),
                Message::Text(text) => return SocketEvent::Data(text.into()),
                Message::Close(Some(frame)) => {
                    return SocketEvent::Closed {
                        code: frame.code.into(),
                        reason: frame.reason.to_string(),
                    };
                }
                Message::Close(None) => return SocketEvent::Lost,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Sends bytes. An error is ignored, because the next event reports that the connection has ended.
    pub(super) async fn send(&mut self, bytes: Vec<u8>) {
        let _ = self.stream.send(Message::Binary(bytes.into())).await;
    }
}

/// Returns the path of a subresource. The query keeps KubeVirt from taking a display from its current client, which is
/// its default.
fn path(namespace: &str, name: &str, device: GuestDevice) -> String {
    let subresource = match device {
        GuestDevice::Console => "console",
        GuestDevice::Display { take: true } => "vnc",
        GuestDevice::Display { take: false } => "vnc?preserveSession=true",
    };
    format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{}/{subresource}",
        segment(namespace),
        segment(name)
    )
}

/// Returns whether a response accepts the request with this key (RFC 6455, 4.1).
fn is_accepted(headers: &HeaderMap, key: &str) -> bool {
    let has = |name, expected: &str| {
        headers
            .get(name)
            .is_some_and(|value| value.as_bytes() == expected.as_bytes())
    };
    let subprotocol = headers.get(SEC_WEBSOCKET_PROTOCOL);
    has(SEC_WEBSOCKET_ACCEPT, &derive_accept_key(key.as_bytes()))
        && subprotocol.is_none_or(|subprotocol| subprotocol.as_bytes() == SUBPROTOCOL.as_bytes())
}

/// Returns the error for a refusal, with the message of a Kubernetes Status or the plain text of the response.
fn refusal(code: StatusCode, body: &[u8]) -> HandshakeError {
    let status = serde_json::from_slice::<Status>(body).ok();
    let text = status
        .and_then(|status| status.message)
        .unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    let message = if text.is_empty() {
        format!("the API server responded with {code}")
    } else {
        text
    };
    HandshakeError::Status {
        code: code.as_u16(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_the_subresource_and_nothing_else() {
        for (device, name, expected) in [
            (GuestDevice::Console, "web", "web/console"),
            (
                GuestDevice::Display { take: false },
                "web",
                "web/vnc?preserveSession=true",
            ),
            (GuestDevice::Display { take: true }, "web", "web/vnc"),
            (GuestDevice::Console, "a/b?c", "a%2Fb%3Fc/console"),
        ] {
            assert_eq!(
                path("shop", name, device),
                format!("/apis/subresources.kubevirt.io/v1/namespaces/shop/virtualmachineinstances/{expected}")
            );
        }
    }

    #[test]
    fn refusal_has_the_message_of_the_api_server() {
        for (body, expected) in [
            (
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"virtualmachineinstances \"web\" is forbidden","code":403}"#,
                "virtualmachineinstances \"web\" is forbidden",
            ),
            (
                "Active VNC connection. Request denied.\n",
                "Active VNC connection. Request denied.",
            ),
            ("", "the API server responded with 403 Forbidden"),
        ] {
            let refused = refusal(StatusCode::FORBIDDEN, body.as_bytes());
            assert_eq!(refused.to_string(), expected);
        }
    }

    #[test]
    fn response_is_for_the_key_and_the_subprotocol() {
        // Example of RFC 6455, 1.3.
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        for (accept, subprotocol, expected) in [
            ("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", Some(SUBPROTOCOL), true),
            ("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", None, true),
            ("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", Some("v4.channel.k8s.io"), false),
            ("another", Some(SUBPROTOCOL), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept.parse().unwrap());
            if let Some(subprotocol) = subprotocol {
                headers.insert(SEC_WEBSOCKET_PROTOCOL, subprotocol.parse().unwrap());
            }
            assert_eq!(is_accepted(&headers, key), expected, "{accept} {subprotocol:?}");
        }
    }
}
