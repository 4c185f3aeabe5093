//! The console in a cluster, for several users. Each user is identified by a bearer token.
//!
//! ```text
//!  browser ─▶ proxy with OIDC, or none ──TLS──▶ guard (headers) ─┬─▶ documents, the same for everybody
//!                                                                └─▶ /api/: token ─▶ Users ─▶ the routes of that user
//!  API server ◀── SelfSubjectReview, watches, writes ── client with that token ◀───────────────┘
//! ```
//!
//! The pods have no rights and no token of their own, and do not impersonate users. A request has the rights of its
//! token, which is in the header `Authorization: Bearer`. A proxy adds the header, or the page sets it to the token
//! that the user has pasted. There are no cookies, and nothing is stored on disk.
//!
//! Each token has its own objects, watches and routes ([`users`]), to which no other token has a reference.
//! [`guard`](super::guard) documents the requests that are refused before that, and why a token that a proxy adds is
//! not sufficient.
//!
//! The API server's proxy to Services (`kubectl proxy`, `/api/v1/namespaces/NAMESPACE/services/NAME/proxy/`) cannot be
//! used for the console: it removes the caller's credentials, and its pages share the origin of the API server.
//!
//! # Certificates
//!
//! The pods may not create Secrets, and two replicas have to serve the same certificate. The controller therefore
//! writes a certificate for the Service's names into a Secret of the manifests and renews it. Its authority is not
//! trusted by anything else. The pods mount the Secret. If the user provides a certificate in another Secret, for
//! example with cert-manager, the pods serve that one.

mod certificate;
mod token;
mod users;

#[cfg(test)]
mod tests;

use std::{process::ExitCode, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{AUTHORIZATION, STRICT_TRANSPORT_SECURITY, WWW_AUTHENTICATE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::any,
};
use drydock_runtime::{
    Admin, CancellationToken, Component, LogHandle, Process, Readiness, StartParameters, Threads, chain, metrics,
    tls_port::{self, ServedCertificate, TlsPort},
};
use futures::StreamExt as _;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tower::ServiceExt as _;

use super::{
    Mode, documents, error,
    guard::{self, Hosts},
    harden,
    settings::Listening,
};
use crate::cluster::ClusterContext;
use token::Token;
use users::{Denied, UserLimits, UserMetrics, Users};

/// Time for which requests are still accepted after the order to stop. Services remove endpoints within a second or
/// two.
const LEAVE: Duration = Duration::from_secs(4);
/// HSTS header: a browser that has received it connects only with TLS for a year.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");
const COMPONENT: Component = Component {
    name: "drydock-console",
    version: env!("CARGO_PKG_VERSION"),
};

/// Serves the console until the process has to stop.
pub(crate) fn run(options: Listening) -> ExitCode {
    let start = StartParameters {
        threads: Threads::Many(2),
        ..StartParameters::new(COMPONENT, options.logs.clone())
    };
    start.run(|process, logs| wire(options, process, logs))
}

async fn wire(
    options: Listening,
    process: Process,
    logs: LogHandle,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut registry = metrics::registry(COMPONENT);
    let counted = UserMetrics::register(&mut registry);
    let handshake_failures = Counter::default();
    registry.register(
        "drydock_console_handshake_failures",
        "TLS handshakes that failed",
        handshake_failures.clone(),
    );
    let readiness = Readiness::new();
    let served = ServedCertificate::new(readiness.handle("certificate"));
    process.spawn(
        "reading the certificate",
        certificate::keep(options.certificates.clone(), served.clone(), process.stopping()),
    );
    let admin = Admin {
        readiness,
        registry: Arc::new(registry),
        logs,
    };
    admin.serve(&process, options.metrics_bind_address).await?;
    let closing = CancellationToken::new();
    let (stopping, close) = (process.stopping(), closing.clone());
    process.spawn("closing pages", async move {
        stopping.cancelled().await;
        tokio::time::sleep(LEAVE).await;
        close.cancel();
    });
    let address = options.address;
    let config = tls_port::builder()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(served));
    let config = Arc::new(tls_port::finish(config));
    let port = TlsPort {
        name: "console",
        config: Box::new(move || config.clone()),
        router: router(Front::new(&options, counted, process.clone(), closing)),
        handshake_failures,
        leave: LEAVE,
    };
    port.serve(&process, address).await?;
    Ok(())
}

/// State that all users share.
struct Front {
    hosts: Hosts,
    users: Users,
}

impl Front {
    /// Returns a state without users. All pages end when `closing` is cancelled.
    fn new(options: &Listening, metrics: UserMetrics, process: Process, closing: CancellationToken) -> Arc<Self> {
        let cluster = ClusterContext {
            context: options.cluster_name.clone(),
            server: options.server.url.to_string(),
            user: String::new(),
            careful: options.careful.is_match(&options.cluster_name),
        };
        let limits = UserLimits {
            users: options.max_users,
            ..UserLimits::default()
        };
        Arc::new(Self {
            hosts: Hosts::new(&options.hosts, &options.namespace),
            users: Users::new(
                options.server.clone(),
                cluster,
                options.read_only,
                limits,
                metrics,
                process,
                closing,
            ),
        })
    }
}

fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/api/{*path}", any(serve))
        .with_state(front.clone())
        .merge(documents(Mode::InCluster))
        .layer(middleware::from_fn_with_state(front, guarded))
}

/// Rejects requests that the guard does not admit, and sets the headers of all responses.
async fn guarded(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    // On localhost, a browser would also apply HSTS to every other service of the user's machine.
    let is_own_machine = guard::is_own_machine(request.headers());
    let admitted = guard::admit_in_cluster(request.method(), request.uri().path(), request.headers(), &front.hosts);
    let mut response = match admitted {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    harden(&mut response);
    if !is_own_machine {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HSTS);
    }
    response
}

/// Serves a request with the routes of its user. The response ends when the user's token is no longer valid.
async fn serve(State(front): State<Arc<Front>>, mut request: Request) -> Response {
    let entered = match Token::of(request.headers()) {
        Ok(token) => front.users.enter(token).await,
        Err(missing) => Err(Denied::NoToken(missing)),
    };
    let visit = match entered {
        Ok(visit) => visit,
        Err(denied) => return denied.into_response(),
    };
    request.headers_mut().remove(AUTHORIZATION);
    let Ok(response) = visit.user.routes().oneshot(request).await;
    if response.status() == StatusCode::FORBIDDEN {
        // The API server may have rejected the token itself, so the token is reviewed again.
        visit.user.review_now();
    }
    let ended = visit.user.ended();
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(ended.cancelled_owned())))
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let message = chain(&self).to_string();
        match self {
            Self::NoToken(_) => unauthorized("Bearer", &json!({"error": message})),
            // `reason` is shown to a user who was signed in or has tried to sign in.
            Self::Refused(_) => unauthorized(
                "Bearer error=\"invalid_token\"",
                &json!({"error": message, "reason": message}),
            ),
            Self::TooManyOfUser(_) | Self::TooManyRequests(_) => error(StatusCode::TOO_MANY_REQUESTS, &message),
            Self::Full(_) | Self::Busy => error(StatusCode::SERVICE_UNAVAILABLE, &message),
            Self::NotReviewed(_) => error(StatusCode::BAD_GATEWAY, &message),
        }
    }
}

fn unauthorized(challenge: &'static str, body: &serde_json::Value) -> Response {
    (
        StatusCode::UNAUTHORIZED,
        [(WWW_AUTHENTICATE, challenge)],
        axum::Json(body),
    )
        .into_response()
}
