//! Serves HTTP requests of controllers for a guest.

use std::{path::PathBuf, sync::Arc};

use drydock_api::{
    launcher::RUN_VOLUME,
    node_api::{GuestReport, GuestStream, NodeApiRefusal, NodeApiRequest, RefusalReason, STREAM_PROTOCOL},
};
use drydock_core::{
    guest_agent::{self, Replies},
    guest_command::is_here,
};
use drydock_host::{
    domain::CallError,
    pod_folder::{FolderError, PodFolder},
};
use drydock_runtime::chain;
use http::{
    Method, Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, UPGRADE},
};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::streams::{StreamKey, StreamSocket, Streams, socket};
use crate::guests::GuestDirectory;

/// Maximum number of concurrent reports, because libvirt passes on up to 8 MiB from a guest.
const MAX_CONCURRENT_REPORTS: usize = 4;

/// Handler of requests, with the resources that requests need.
pub(super) struct RequestHandler {
    guests: GuestDirectory,
    streams: Streams,
    kubelet: PathBuf,
    node: String,
    reports: Semaphore,
}

impl RequestHandler {
    pub(super) fn new(guests: GuestDirectory, streams: Streams, kubelet: PathBuf, node: String) -> Self {
        Self {
            guests,
            streams,
            kubelet,
            node,
            reports: Semaphore::new(MAX_CONCURRENT_REPORTS),
        }
    }

    /// Serves a request. A stream that results from the request keeps the permit `place`.
    pub(super) async fn serve(
        &self,
        request: http::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Response<Full<Bytes>> {
        let uri = request.uri().clone();
        match (NodeApiRequest::parse(uri.path(), uri.query()), request.method()) {
            (Some(NodeApiRequest::Command(uid, command)), &Method::PUT) => {
                let result = self.guests.command(uid, command).await;
                result.map_or_else(|refusal| refused(&refusal), |()| empty(StatusCode::OK))
            }
            (Some(NodeApiRequest::Report(uid, report)), &Method::GET) => {
                let result = self.report(uid, report).await;
                result.unwrap_or_else(|refusal| refused(&refusal))
            }
            (Some(NodeApiRequest::Stream(uid, stream, preserve)), &Method::GET) => {
                let result = self.stream(uid, stream, preserve, request, place).await;
                result.unwrap_or_else(|refusal| refused(&refusal))
            }
            (Some(_), _) => empty(StatusCode::METHOD_NOT_ALLOWED),
            (None, _) => empty(StatusCode::NOT_FOUND),
        }
    }

    /// Reads a report about a guest. Only a few reports are read concurrently, because guest agents may take long.
    async fn report(&self, uid: &str, report: GuestReport) -> Result<Response<Full<Bytes>>, NodeApiRefusal> {
        let seen = self.guests.seen(uid)?;
        is_here(&seen.instance, &self.node)?;
        let Ok(_place) = self.reports.try_acquire() else {
            let message = format!("the node already reads {MAX_CONCURRENT_REPORTS} guest reports; try again later");
            return Err(NodeApiRefusal::new(RefusalReason::TooMany, message));
        };
        let guest = self.guests.connection(uid).await?;
        let failed = |error: CallError| NodeApiRefusal::new(RefusalReason::Failed, chain(&error).to_string());
        if report == GuestReport::Screenshot {
            let picture = guest.screenshot().await.map_err(failed)?;
            return document(&picture.media_type, picture.bytes);
        }
        let commands = guest_agent::commands(report);
        let messages: Vec<String> = commands.iter().map(|command| guest_agent::message(command)).collect();
        let mut replies = Replies::default();
        let received = guest.agent_commands(&messages).await.map_err(failed)?;
        for (command, reply) in commands.iter().zip(received) {
            match reply {
                Ok(reply) => replies.add(command, &reply),
                // The agent may not know the command. A report of a single command then fails, because its list would
                // be empty, which is wrong.
                Err(error) if commands.len() == 1 => return Err(failed(error)),
                Err(_) => {}
            }
        }
        document("application/json", replies.document(report).to_string().into_bytes())
    }

    async fn stream(
        &self,
        uid: &str,
        stream: GuestStream,
        preserve: bool,
        request: http::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Result<Response<Full<Bytes>>, NodeApiRefusal> {
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

    /// Connects to the socket of a stream. The previous client of the stream is disconnected first, because QEMU and
    /// the launcher serve a single client.
    async fn socket(&self, uid: &str, stream: GuestStream, preserve: bool) -> Result<StreamSocket, NodeApiRefusal> {
        let seen = self.guests.seen(uid)?;
        is_here(&seen.instance, &self.node)?;
        let pod_uid = seen.pod_uid.ok_or_else(|| NodeApiRefusal {
            reason: RefusalReason::NotHere,
            message: "the guest has no pod on this node".to_owned(),
        })?;
        let failed = |error: FolderError| NodeApiRefusal {
            reason: RefusalReason::Failed,
            message: match error {
                FolderError::NotThere { .. } => format!(
                    "the guest's pod has no socket for the {}: an earlier version of Drydock started the pod; the pod \
                     is replaced when the guest migrates or restarts",
                    stream.as_str()
                ),
                error => chain(&error).to_string(),
            },
        };
        let folder = PodFolder::new(&self.kubelet, &pod_uid, RUN_VOLUME).map_err(failed)?;
        let place = self.streams.take(StreamKey::new(uid, stream), preserve)?;
        let connection = folder.connect(socket(stream)).await.map_err(failed)?;
        Ok(StreamSocket { connection, place })
    }
}

fn refused(refusal: &NodeApiRefusal) -> Response<Full<Bytes>> {
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

fn document(media_type: &str, bytes: Vec<u8>) -> Result<Response<Full<Bytes>>, NodeApiRefusal> {
    let media_type = http::HeaderValue::from_str(media_type)
        .map_err(|_| NodeApiRefusal::new(RefusalReason::Failed, "the screenshot has no valid media type"))?;
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    Ok(response)
}

fn empty(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}
