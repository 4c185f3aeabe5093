//! From HTTP to a guest.

use std::{path::PathBuf, sync::Arc};

use drydock_api::{
    launcher::RUN_VOLUME,
    node_api::{GuestStream, PRESERVE_SESSION, Refusal, RefusalReason, Request, STREAM_PROTOCOL},
};
use drydock_core::guest_command::is_here;
use drydock_host::pod_folder::{FolderError, PodFolder};
use drydock_runtime::chain;
use http::{
    Method, Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, UPGRADE},
};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::streams::{Socket, StreamKey, Streams, socket};
use crate::guests::GuestDirectory;

/// What requests need.
pub(super) struct Requests {
    guests: GuestDirectory,
    streams: Streams,
    kubelet: PathBuf,
    node: String,
}

impl Requests {
    pub(super) fn new(guests: GuestDirectory, streams: Streams, kubelet: PathBuf, node: String) -> Self {
        Self {
            guests,
            streams,
            kubelet,
            node,
        }
    }

    /// Serves a request. A stream that follows keeps `place`.
    pub(super) async fn serve(
        &self,
        request: http::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        match (Request::parse(&path), request.method()) {
            (Some(Request::Command(uid, command)), &Method::PUT) => {
                let result = self.guests.command(uid, command).await;
                result.map_or_else(|refusal| refused(&refusal), |()| empty(StatusCode::OK))
            }
            (Some(Request::Stream(uid, stream)), &Method::GET) => {
                let preserve = request.uri().query() == Some(PRESERVE_SESSION);
                let result = self.stream(uid, stream, preserve, request, place).await;
                result.unwrap_or_else(|refusal| refused(&refusal))
            }
            (Some(_), _) => empty(StatusCode::METHOD_NOT_ALLOWED),
            (None, _) => empty(StatusCode::NOT_FOUND),
        }
    }

    async fn stream(
        &self,
        uid: &str,
        stream: GuestStream,
        preserve: bool,
        request: http::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let upgrades = |value: &http::HeaderValue| value.as_bytes() == STREAM_PROTOCOL.as_bytes();
        if !request.headers().get(UPGRADE).is_some_and(upgrades) {
            return Ok(empty(StatusCode::UPGRADE_REQUIRED));
        }
        let socket = self.socket(uid, stream, preserve).await?;
        self.streams.carry(hyper::upgrade::on(request), socket, place);
        let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
        let headers = response.headers_mut();
        headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, http::HeaderValue::from_static(STREAM_PROTOCOL));
        Ok(response)
    }

    /// Connects to the socket of a stream. What used the stream before is disconnected first: QEMU and the launcher serve a
    /// single client.
    async fn socket(&self, uid: &str, stream: GuestStream, preserve: bool) -> Result<Socket, Refusal> {
        let seen = self.guests.seen(uid)?;
        is_here(&seen.instance, &self.node)?;
        let pod_uid = seen.pod_uid.ok_or_else(|| Refusal {
            reason: RefusalReason::NotHere,
            message: "the guest has no pod here".to_owned(),
        })?;
        let failed = |error: FolderError| Refusal {
            reason: RefusalReason::Failed,
            message: match error {
                FolderError::NotThere { .. } => format!(
                    "the guest's pod has no socket for its {}: it was started by an earlier version, which ends when the \
                     guest migrates or restarts",
                    stream.as_str()
                ),
                error => chain(&error).to_string(),
            },
        };
        let folder = PodFolder::new(&self.kubelet, &pod_uid, RUN_VOLUME).map_err(failed)?;
        let place = self.streams.take(StreamKey::new(uid, stream), preserve)?;
        let connection = folder.connect(socket(stream)).await.map_err(failed)?;
        Ok(Socket { connection, place })
    }
}

fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let code = match refusal.reason {
        RefusalReason::NotHere => StatusCode::NOT_FOUND,
        RefusalReason::Conflict | RefusalReason::InUse => StatusCode::CONFLICT,
        RefusalReason::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        RefusalReason::Failed | RefusalReason::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let body = serde_json::to_vec(refusal).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn empty(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}
