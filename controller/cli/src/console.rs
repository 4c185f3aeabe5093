//! `kubectl drydock console`: the web console on the user's machine, with the rights of the user.
//!
//! ```text
//!  browser ─▶ guard (headers) ─┬─▶ /, /nodes, ...       the same empty document, with a script and a style sheet
//!                              ├─▶ /api/session          exchanges the key of a link for the key of a session
//!                              ├─▶ /api/live?path=       the parts of a page, then their changes, as lines of JSON
//!                              ├─▶ /api/start, /api/stop, /api/cancel: the writes
//!                              └─▶ /api/guest/input, /api/guest/frame: keys to, and pixels of, a guest that a page shows
//!  API server ─watches─▶ store ─▶ Snapshot ─▶ drydock_view ─▶ pages (HTML) ─▶ difference to the state of the browser
//! ```
//!
//! There is no general proxy. A stolen session can do no more than the console can, which is less than the user can.
//!
//! The console in a cluster has a [`ConsoleContext`] and [`routes`] for each token, behind a guard of its own:
//! `incluster`.

mod actions;
mod guard;
mod guest;
mod incluster;
mod live;
mod page;
mod pages;
mod rights;
mod sessions;
pub(crate) mod settings;
mod store;
mod url;
mod view;

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State},
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use drydock_runtime::{Process, clock::Instant};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use serde::Deserialize;
use serde_json::json;
use tokio::{net::TcpListener, sync::watch, time::sleep_until};

use crate::{
    cluster::ClusterContext,
    failure::{CommandError, Exit},
};
use guard::GuardRefusal;
use guest::OpenGuests;
use sessions::ConsoleSessions;
use settings::ConsoleOptions;
use store::Store;
use view::ViewPath;

pub(crate) use incluster::run as serve_in_cluster;

const DOCUMENT: &str = include_str!("console/assets/document.html");
/// Content of a tab without a session. The first is for the user's machine, the second for a cluster.
const LINK_NEEDED: &str = include_str!("console/assets/link-needed.html");
const SIGN_IN: &str = include_str!("console/assets/sign-in.html");
/// Form in the header of a tab with a session. The first is for the user's machine, the second for a cluster.
const LINK: &str = r#"<form id="other" data-post="/api/link" hidden><button type="submit">Link for another browser</button><p class="error" role="alert" hidden></p></form>"#;
const SIGN_OUT: &str = r#"<form id="other" data-token hidden><button type="submit">Sign out</button></form>"#;
const SCRIPT: &str = include_str!("console/assets/live.js");
const ICON: &str = include_str!("console/assets/icon.svg");
const STYLE: &str = include_str!("console/assets/console.css");

/// Time without a request or an open page after which the console ends, because it holds the user's credentials.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// Content security policy: nothing is loaded from other origins, nothing inline is run, and no other page may show the
/// console in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// State that all requests of a user share.
struct ConsoleContext {
    client: Client,
    cluster: ClusterContext,
    store: Store,
    guests: Arc<OpenGuests>,
    read_only: bool,
    /// Number of open pages and requests in progress.
    active: AtomicUsize,
    /// Time at which a request or an open page last ended.
    last: watch::Sender<Instant>,
}

impl ConsoleContext {
    /// Starts the watches with this client. They run as long as `process`.
    fn start(client: &Client, cluster: ClusterContext, read_only: bool, process: &Process) -> Arc<Self> {
        Arc::new(Self {
            store: Store::start(client, process),
            guests: OpenGuests::new(process),
            client: client.clone(),
            cluster,
            read_only,
            active: AtomicUsize::new(0),
            last: watch::Sender::new(Instant::now()),
        })
    }
}

/// The console on the user's machine.
struct Local {
    shared: Arc<ConsoleContext>,
    sessions: ConsoleSessions,
    port: u16,
}

/// Serves the console until Ctrl-C.
///
/// # Errors
/// If the API server cannot be reached, or the port is taken.
pub(crate) async fn serve(
    client: &Client,
    options: ConsoleOptions,
    cluster: ClusterContext,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    // Credentials that need the terminal are requested now, before the first page is shown.
    let nodes = Api::<Node>::all(client.clone());
    match nodes.list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => {}
        // The page shows the missing right.
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        Err(error) => return Err(CommandError::Request(error)),
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| CommandError::Port { address, source })?;
    let port = listener.local_addr()?.port();
    let process = Process::new();
    let local = Arc::new(Local {
        shared: ConsoleContext::start(client, cluster, options.read_only, &process),
        sessions: ConsoleSessions::default(),
        port,
    });
    let link = local.link()?;
    writeln!(out, "{link}")?;
    out.flush()?;
    eprintln!(
        "The link works once, on this machine. Ctrl-C ends the console; maintenance that was started in the console \
         continues."
    );
    let exit = tokio::select! {
        served = async { axum::serve(listener, router(local.clone())).await } => served.map(|()| Exit::Done).map_err(CommandError::Output),
        _ = tokio::signal::ctrl_c() => Ok(Exit::Done),
        () = idle(&local.shared, IDLE) => {
            eprintln!("the console ends because it was not used for 8 h");
            Ok(Exit::Done)
        }
    };
    process.stop();
    exit
}

/// Waits until the console has been unused for this long.
async fn idle(shared: &ConsoleContext, limit: Duration) {
    let mut last = shared.last.subscribe();
    loop {
        let end = *last.borrow_and_update() + limit;
        tokio::select! {
            _ = last.changed() => {}
            () = sleep_until(end) => if shared.active.load(Ordering::Relaxed) == 0 {
                return;
            } else {
                shared.last.send_replace(Instant::now());
            }
        }
    }
}

impl Local {
    /// Returns a link that works once.
    fn link(&self) -> Result<String, CommandError> {
        let key = self.sessions.link().map_err(|_| CommandError::NoRandom)?;
        Ok(format!("http://127.0.0.1:{}/#key={key}", self.port))
    }
}

/// A request in progress, or an open page.
struct Active(Arc<ConsoleContext>);

impl Active {
    fn new(shared: &Arc<ConsoleContext>) -> Self {
        shared.active.fetch_add(1, Ordering::Relaxed);
        Self(shared.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
        self.0.last.send_replace(Instant::now());
    }
}

fn router(local: Arc<Local>) -> Router {
    Router::new()
        .route(guard::EXCHANGE, post(exchange))
        .route("/api/link", post(link))
        .with_state(local.clone())
        .merge(routes(local.shared.clone()))
        .merge(documents(Mode::Local))
        .layer(middleware::from_fn_with_state(local, guarded))
}

/// Returns the routes of a user's pages and actions, for requests that the guard has admitted.
fn routes(shared: Arc<ConsoleContext>) -> Router {
    Router::new()
        .route("/api/live", get(live))
        .route("/api/start", post(actions::start))
        .route("/api/stop", post(actions::stop))
        .route("/api/cancel", post(actions::cancel))
        .route(guest::INPUT, post(guest::input))
        .route(guest::FRAME, get(guest::frame))
        .with_state(shared)
}

/// Returns the files that are the same for all users.
///
/// These are the document of all pages, its script, its style sheet and its icon.
fn documents(mode: Mode) -> Router {
    let asset = |kind: &'static str, text: &'static str| get(move || async move { ([(CONTENT_TYPE, kind)], text) });
    Router::new()
        .route("/live.js", asset("text/javascript; charset=utf-8", SCRIPT))
        .route("/icon.svg", asset("image/svg+xml", ICON))
        .route("/console.css", asset("text/css; charset=utf-8", STYLE))
        .fallback(document)
        .with_state(mode.document().into())
}

/// Rejects requests that the guard does not admit, and sets the headers of all responses.
async fn guarded(State(local): State<Arc<Local>>, request: Request, next: Next) -> Response {
    let active = Active::new(&local.shared);
    let path = request.uri().path();
    let admitted = guard::admit(request.method(), path, request.headers(), local.port, &local.sessions);
    let mut response = match admitted {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    drop(active);
    harden(&mut response);
    response
}

/// Sets the headers of all responses.
fn harden(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

impl IntoResponse for GuardRefusal {
    fn into_response(self) -> Response {
        error(self.status(), &self.to_string())
    }
}

/// Returns a response with a human-readable error.
fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": message}))).into_response()
}

/// Location in which the console is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The console runs on the user's machine. A link identifies the user.
    Local,
    /// The console runs in a cluster. A bearer token identifies the user.
    InCluster,
}

impl Mode {
    /// Returns the document of all pages.
    fn document(self) -> String {
        let (name, other, sign_in) = match self {
            Self::Local => ("local", LINK, LINK_NEEDED),
            Self::InCluster => ("in-cluster", SIGN_OUT, SIGN_IN),
        };
        let parts = [("MODE", name), ("OTHER", other), ("SIGN_IN", sign_in.trim_end())];
        let fill = |text: String, (name, part): (&str, &str)| text.replace(&format!("{{{{{name}}}}}"), part);
        parts.into_iter().fold(DOCUMENT.to_owned(), fill)
    }
}

/// Serves the document of all pages. Their content comes from `/api/live`, which needs a session or a token.
async fn document(State(document): State<Arc<str>>, request: Request) -> Response {
    let path = request.uri().path();
    let parsed = ViewPath::parse(path).filter(|_| !path.starts_with("/api/"));
    let Some(parsed) = parsed else {
        return error(StatusCode::NOT_FOUND, "this page does not exist");
    };
    let kind = [(CONTENT_TYPE, "text/html; charset=utf-8")];
    match parsed.view.section() {
        None => (kind, document.to_string()).into_response(),
        Some(section) => {
            let item = format!("<li><a href=\"{section}\"");
            (kind, document.replace(&item, &format!("{item} aria-current=\"page\""))).into_response()
        }
    }
}

#[derive(Deserialize)]
struct Exchange {
    key: String,
}

async fn exchange(State(local): State<Arc<Local>>, Json(exchange): Json<Exchange>) -> Response {
    match local.sessions.exchange(&exchange.key) {
        Some(session) => Json(json!({"session": session})).into_response(),
        None => error(
            StatusCode::FORBIDDEN,
            "this link was already used: each link of the console works only once",
        ),
    }
}

async fn link(State(local): State<Arc<Local>>) -> Response {
    match local.link() {
        Ok(link) => Json(json!({"link": link})).into_response(),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, &failure.to_string()),
    }
}

#[derive(Deserialize)]
struct LiveQuery {
    path: String,
}

async fn live(State(shared): State<Arc<ConsoleContext>>, Query(query): Query<LiveQuery>) -> Response {
    let Some(path) = ViewPath::parse(&query.path) else {
        return error(StatusCode::NOT_FOUND, "this page does not exist");
    };
    let lines = live::lines(Active::new(&shared), path);
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

#[cfg(test)]
mod tests;
