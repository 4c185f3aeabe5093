//! Converts HTTP requests into operations: parses the path, authenticates the user, and checks the user's permissions.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::to_bytes,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header::CONNECTION},
    response::Response,
};
use drydock_core::subresources::{
    ApiPath, GroupResource, PublicDocument, SubresourceError, SubresourceOperation, SubresourceTarget, discovery,
    front_proxy::RequestUser, operation, verb,
};
use drydock_runtime::{CancellationToken, clock::Instant, tls_port::PeerCertificate};
use futures::FutureExt;
use tracing::info;

use super::{
    calls::ApiCalls, client_trust::ClientTrust, metrics::SubresourceMetrics, reply::json_response,
    stream_sessions::StreamSessions, websocket::Handshake,
};

/// Maximum size of a request body: a virtual machine, which API servers limit to 3 MiB.
const LARGEST: usize = 3 << 20;

/// Serves requests.
pub(super) struct SubresourceHandler {
    pub(super) calls: ApiCalls,
    pub(super) sessions: StreamSessions,
    pub(super) trust: ClientTrust,
    pub(super) metrics: SubresourceMetrics,
    pub(super) version: &'static str,
    pub(super) deadline: Duration,
    pub(super) stopping: CancellationToken,
}

/// Serves one request.
pub(super) async fn serve(
    State(requests): State<Arc<SubresourceHandler>>,
    Extension(PeerCertificate(peer)): Extension<PeerCertificate>,
    request: Request,
) -> Response {
    let began = Instant::now();
    let path = ApiPath::parse(request.uri().path());
    let label = label(request.method().as_str(), &path);
    let user = requests.trust.user(peer.as_ref(), request.headers());
    let reply = AssertUnwindSafe(requests.reply(&path, user, request)).catch_unwind();
    let reply = match tokio::time::timeout(requests.deadline, reply).await {
        Ok(Ok(reply)) => reply,
        // An object that causes a panic must not end the process. The panic has been logged.
        Ok(Err(_)) => Err(SubresourceError::internal(
            "the request failed; the controller's log contains the cause",
        )),
        Err(_) => Err(SubresourceError::internal("the request took too long")),
    };
    let mut response = match reply {
        Ok(response) => response,
        Err(failure) => {
            if failure.code >= 500 {
                info!(
                    request = label,
                    code = failure.code,
                    error = failure.message,
                    "subresource request failed"
                );
            }
            let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            json_response(code, &failure.to_status())
        }
    };
    if requests.stopping.is_cancelled() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    requests
        .metrics
        .count_response(label, response.status().as_u16(), began.elapsed());
    response
}

/// Returns the name of the requested operation, for logs and metrics.
fn label(method: &str, path: &ApiPath) -> &'static str {
    match path {
        ApiPath::Open(PublicDocument::Health) => "healthz",
        ApiPath::Open(_) => "discovery",
        ApiPath::Target(target) => operation(method, target).map_or("unsupported", |operation| operation.as_str()),
        ApiPath::Unknown => "unknown",
    }
}

impl SubresourceHandler {
    async fn reply(
        &self,
        path: &ApiPath,
        user: Option<RequestUser>,
        request: Request,
    ) -> Result<Response, SubresourceError> {
        let method = request.method().as_str().to_owned();
        match path {
            ApiPath::Unknown => Err(SubresourceError::no_such_path()),
            ApiPath::Open(_) if method != "GET" && method != "HEAD" => Err(SubresourceError::method_not_allowed("GET")),
            ApiPath::Open(PublicDocument::Health) => {
                let found = self.calls.api_server_version().await;
                let code = if found.is_ok() {
                    StatusCode::OK
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                };
                Ok(json_response(code, &discovery::health(found)))
            }
            ApiPath::Open(document) => {
                let document =
                    discovery::document(document, self.version).ok_or_else(SubresourceError::no_such_path)?;
                Ok(json_response(StatusCode::OK, &document))
            }
            ApiPath::Target(target) => {
                let user = user.ok_or_else(SubresourceError::unauthorized)?;
                self.authorize(&user, &method, target).await?;
                let operation = operation(&method, target)?;
                if let SubresourceOperation::Stream(_) | SubresourceOperation::PortForward = operation {
                    return self.connect(operation, target, &user, request).await;
                }
                let body = to_bytes(request.into_body(), LARGEST)
                    .await
                    .map_err(|_| SubresourceError::bad_request("the request body exceeds 3 MiB or is incomplete"))?;
                self.calls.execute(operation, target, &body).await
            }
        }
    }

    /// Connects the client to a guest with a websocket.
    async fn connect(
        &self,
        operation: SubresourceOperation,
        target: &SubresourceTarget,
        user: &RequestUser,
        mut request: Request,
    ) -> Result<Response, SubresourceError> {
        let handshake = Handshake::of(&mut request)?;
        let place = self.sessions.place(&user.name)?;
        let connected = match operation {
            SubresourceOperation::Stream(stream) => {
                let preserve = preserves_session(request.uri().query().unwrap_or_default());
                self.calls.stream(target, stream, preserve).await?
            }
            _ => self.calls.port_forward(target).await?,
        };
        let response = handshake.response();
        self.sessions.begin(handshake, connected, operation, target, place);
        Ok(response)
    }

    /// Checks whether the user may execute this request on this object.
    async fn authorize(
        &self,
        user: &RequestUser,
        method: &str,
        target: &SubresourceTarget,
    ) -> Result<(), SubresourceError> {
        let has_name = target.resource != GroupResource::ExpandSpec;
        let Some(verb) = verb(method, has_name) else {
            return Err(SubresourceError::method_not_allowed("GET, PUT"));
        };
        match self.calls.review(user, verb, target).await? {
            None => Ok(()),
            Some(reason) => Err(SubresourceError::forbidden(refusal(user, verb, target, &reason))),
        }
    }
}

/// Returns whether a client requests not to replace another client. A value that cannot be parsed counts as false, as
/// in KubeVirt.
fn preserves_session(query: &str) -> bool {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs
        .find(|(name, _)| *name == "preserveSession")
        .map(|(_, value)| value);
    // Values that Go's `strconv.ParseBool` accepts as true.
    value.is_some_and(|value| ["1", "t", "T", "true", "TRUE", "True"].contains(&value))
}

/// Returns the message of kube-apiserver for a missing permission.
fn refusal(user: &RequestUser, verb: &str, target: &SubresourceTarget, reason: &str) -> String {
    let resource = match target.subresource.as_str() {
        "" => target.resource.plural().to_owned(),
        subresource => format!("{}/{subresource}", target.resource.plural()),
    };
    let SubresourceTarget { namespace, name, .. } = target;
    let why = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    format!(
        "{}.{} \"{name}\" is forbidden: User \"{}\" cannot {verb} resource \"{resource}\" in API group \"{}\" in the \
         namespace \"{namespace}\"{why}",
        target.resource.plural(),
        drydock_core::subresources::GROUP,
        user.name,
        drydock_core::subresources::GROUP,
    )
}
