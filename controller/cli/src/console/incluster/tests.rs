use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicBool, Ordering},
};

use axum::http::{
    HeaderMap, Method, Uri,
    header::{HOST, SET_COOKIE},
};
use drydock_runtime::Registry;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};

use super::*;
use crate::connection::Server;
use crate::console::guard::SESSION;

/// Time limit that is longer than any step of these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// An API server that knows tokens. Each token has the name of its user and the nodes that the user may see.
#[derive(Default)]
struct ApiServer {
    tokens: Mutex<HashMap<&'static str, (&'static str, Vec<&'static str>)>>,
    /// Number of requests by their credentials.
    seen: Mutex<BTreeMap<String, usize>>,
    is_down: AtomicBool,
}

impl ApiServer {
    fn issue(&self, token: &'static str, user: &'static str, nodes: &[&'static str]) {
        self.tokens.lock().insert(token, (user, nodes.to_vec()));
    }

    fn revoke(&self, token: &str) {
        self.tokens.lock().remove(token);
    }
}

fn status(code: u16, reason: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
}

async fn respond(State(server): State<Arc<ApiServer>>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if server.is_down.load(Ordering::Relaxed) {
        return status(503, "ServiceUnavailable");
    }
    let credentials = headers[AUTHORIZATION].to_str().unwrap().to_owned();
    *server.seen.lock().entry(credentials.clone()).or_default() += 1;
    let token = credentials.strip_prefix("Bearer ").unwrap();
    let Some((user, nodes)) = server.tokens.lock().get(token).cloned() else {
        return status(401, "Unauthorized");
    };
    let query = uri.query().unwrap_or_default();
    match (method, uri.path()) {
        (Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews") => axum::Json(json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
            "status": {"userInfo": {"username": user}}}))
        .into_response(),
        (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => axum::Json(json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": {},
            "status": {"allowed": user == "anna"}}))
        .into_response(),
        (Method::GET, "/api/v1/nodes") if query.contains("watch=true") => {
            Body::from_stream(stream::pending::<Result<String, std::convert::Infallible>>()).into_response()
        }
        (Method::GET, "/api/v1/nodes") => {
            let nodes = nodes
                .iter()
                .map(|name| json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}}));
            axum::Json(
                json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "1"},
                "items": nodes.collect::<Vec<_>>()}),
            )
            .into_response()
        }
        (Method::DELETE, _) => status(403, "Forbidden"),
        _ => status(404, "NotFound"),
    }
}

/// A console in a cluster, and its API server.
struct Setup {
    api: Arc<ApiServer>,
    front: Arc<Front>,
    closing: CancellationToken,
    registry: Registry,
}

async fn setup(limits: UserLimits) -> Setup {
    drydock_runtime::install_crypto();
    let api = Arc::new(ApiServer::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let process = Process::new();
    let serve = axum::serve(listener, Router::new().fallback(respond).with_state(api.clone()));
    process.spawn("API server", async move { serve.await.unwrap() });
    let server = Server {
        url: format!("http://{address}").parse().unwrap(),
        authority: None,
    };
    let (closing, mut registry) = (CancellationToken::new(), Registry::default());
    let cluster = ClusterContext {
        context: "staging".into(),
        ..ClusterContext::default()
    };
    let metrics = UserMetrics::register(&mut registry);
    let front = Arc::new(Front {
        hosts: Hosts::new(&["console.example.org".to_owned()], "drydock"),
        users: Users::new(server, cluster, false, limits, metrics, process, closing.clone()),
    });
    Setup {
        api,
        front,
        closing,
        registry,
    }
}

impl Setup {
    async fn send(&self, method: &str, path: &str, token: Option<&str>, body: &Value) -> Response {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "console.example.org")
            .header(SESSION, "token")
            .header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = router(self.front.clone()).oneshot(request).await;
        response.unwrap()
    }

    async fn open(&self, token: &str) -> Response {
        self.send("GET", "/api/live?path=/nodes", Some(token), &Value::Null)
            .await
    }

    /// Returns the status and the body of a refusal.
    async fn refused(&self, token: Option<&str>) -> (u16, Value) {
        value(self.send("GET", "/api/live?path=/nodes", token, &Value::Null).await).await
    }

    fn tokens(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find(|line| line.starts_with("drydock_console_tokens "));
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    }

    /// Waits until the console keeps the objects of this number of tokens.
    async fn until_kept(&self, number: &str) {
        let kept = async {
            while self.tokens() != number {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, kept).await.unwrap();
    }
}

async fn value(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Returns the first line of a page, and the stream of the following lines.
async fn first(response: Response) -> (String, axum::body::BodyDataStream) {
    assert_eq!(response.status(), 200);
    let mut lines = response.into_body().into_data_stream();
    let line = timeout(PATIENCE, lines.next()).await.unwrap().unwrap().unwrap();
    (String::from_utf8(line.to_vec()).unwrap(), lines)
}

/// Waits until the stream of a page has ended.
async fn until_ended(mut lines: axum::body::BodyDataStream) {
    let rest = async { while lines.next().await.is_some() {} };
    timeout(PATIENCE, rest).await.unwrap();
}

#[tokio::test]
async fn users_see_only_permitted_objects_and_the_own_name() {
    let setup = setup(UserLimits::default()).await;
    setup.api.issue("of-anna", "anna", &["worker-1", "worker-2"]);
    setup.api.issue("of-ben", "ben", &["worker-2"]);
    let (annas, _open) = first(setup.open("of-anna").await).await;
    let (bens, _open_too) = first(setup.open("of-ben").await).await;
    assert!(annas.contains("worker-1") && annas.contains("worker-2") && annas.contains(" as anna"));
    assert!(!bens.contains("worker-1") && bens.contains("worker-2") && bens.contains(" as ben"));
    assert!(bens.contains("you lack the right to create") && !annas.contains("you lack the right to create"));
    assert!(annas.contains("staging") && !annas.contains("of-anna") && !bens.contains("anna"));
    // Each page has requested its objects with its own token.
    let seen = setup.api.seen.lock().clone();
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["Bearer of-anna", "Bearer of-ben"]);
    assert_eq!(setup.tokens(), "2");
    // A second page with the same token does not list objects again.
    let before = seen["Bearer of-ben"];
    let (_, _third) = first(setup.open("of-ben").await).await;
    let reviews = setup.api.seen.lock()["Bearer of-ben"] - before;
    assert_eq!(
        (reviews, setup.tokens().as_str()),
        (3, "2"),
        "the rights alone are reviewed"
    );
}

#[tokio::test]
async fn token_that_is_missing_or_refused_shows_nothing() {
    let setup = setup(UserLimits::default()).await;
    let (code, body) = setup.refused(None).await;
    assert_eq!((code, body.get("reason")), (401, None), "nobody has signed in yet");
    let response = setup.open("guess").await;
    assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer error=\"invalid_token\"");
    let (code, body) = value(response).await;
    assert_eq!(code, 401);
    let reason = "the API server does not accept the token: it was not issued for this cluster, was revoked, or its \
                  ServiceAccount was deleted";
    assert_eq!((&body["reason"], &body["error"]), (&reason.into(), &reason.into()));
    // {"exp":1}
    let (_, body) = setup.refused(Some("e30.eyJleHAiOjF9.x")).await;
    let reason = "the API server does not accept the token: it expired at 1970-01-01 00:00:01 UTC";
    assert_eq!(body["reason"], reason);
    setup.api.issue("no-name", "system:anonymous", &["worker-1"]);
    assert_eq!(setup.refused(Some("no-name")).await.0, 401);
    setup.api.is_down.store(true, Ordering::Relaxed);
    let (code, body) = setup.refused(Some("guess")).await;
    assert_eq!((code, body.get("reason")), (502, None), "it may be valid");
    assert_eq!(setup.tokens(), "0");
}

#[tokio::test]
async fn documents_need_no_token_and_have_no_data() {
    let setup = setup(UserLimits::default()).await;
    for (path, expected) in [
        ("/", 200),
        ("/nodes/worker-1", 200),
        ("/live.js", 200),
        ("/secrets", 404),
        ("/api", 404),
        ("/api/live", 401),
        ("/api/v1/secrets", 401),
        ("/api/session", 401),
        ("/api/link", 401),
    ] {
        let response = setup.send("GET", path, None, &Value::Null).await;
        assert_eq!(response.status(), expected, "{path}");
        let headers = response.headers();
        assert_eq!(headers[STRICT_TRANSPORT_SECURITY], HSTS, "{path}");
        assert_eq!(headers["content-security-policy"], super::super::POLICY, "{path}");
        assert!(!headers.contains_key(SET_COOKIE), "{path}");
    }
    assert!(setup.api.seen.lock().is_empty());
    setup.api.issue("of-anna", "anna", &[]);
    for path in ["/api/v1/secrets", "/api/session", "/api/link"] {
        let response = setup.send("GET", path, Some("of-anna"), &Value::Null).await;
        assert_eq!(response.status(), 404, "{path}");
    }
    let response = setup.send("GET", "/nodes", None, &Value::Null).await;
    let document = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let document = String::from_utf8(document.to_vec()).unwrap();
    assert!(document.contains("Sign out") && document.contains("id=\"token\"") && !document.contains("{{"));
    assert!(document.contains("<a href=\"/nodes\" aria-current=\"page\">"));
    assert!(!document.contains("Link for another browser"));
}

#[tokio::test]
async fn localhost_gets_no_strict_transport_security_header() {
    let setup = setup(UserLimits::default()).await;
    let request = Request::builder().uri("/").header(HOST, "localhost:8443");
    let request = request.body(Body::empty()).unwrap();
    let Ok(response) = router(setup.front.clone()).oneshot(request).await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key(STRICT_TRANSPORT_SECURITY));
}

#[tokio::test]
async fn pages_end_once_the_token_is_revoked() {
    let limits = UserLimits {
        review: Duration::from_millis(50),
        ..UserLimits::default()
    };
    let setup = setup(limits).await;
    setup.api.issue("of-anna", "anna", &["worker-1"]);
    let (_, lines) = first(setup.open("of-anna").await).await;
    setup.api.is_down.store(true, Ordering::Relaxed);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(setup.tokens(), "1", "an API server that fails has not refused it");
    setup.api.is_down.store(false, Ordering::Relaxed);
    setup.api.revoke("of-anna");
    until_ended(lines).await;
    setup.until_kept("0").await;
    assert_eq!(setup.refused(Some("of-anna")).await.0, 401);
}

#[tokio::test]
async fn write_that_is_refused_has_the_token_reviewed() {
    let setup = setup(UserLimits::default()).await;
    setup.api.issue("of-anna", "anna", &["worker-1"]);
    let (_, lines) = first(setup.open("of-anna").await).await;
    let cancel = json!({"namespace": "shop", "name": "m"});
    let (code, _) = value(setup.send("POST", "/api/cancel", Some("of-anna"), &cancel).await).await;
    assert_eq!((code, setup.tokens().as_str()), (403, "1"), "a right is missing");
    setup.api.revoke("of-anna");
    let (code, _) = value(setup.send("POST", "/api/cancel", Some("of-anna"), &cancel).await).await;
    assert_eq!(code, 403);
    until_ended(lines).await;
}

#[tokio::test]
async fn objects_of_a_user_are_dropped_once_unused() {
    let limits = UserLimits {
        idle: Duration::from_millis(300),
        ..UserLimits::default()
    };
    let setup = setup(limits).await;
    setup.api.issue("of-anna", "anna", &["worker-1"]);
    let (_, lines) = first(setup.open("of-anna").await).await;
    sleep(Duration::from_millis(700)).await;
    assert_eq!(setup.tokens(), "1", "a page is open");
    drop(lines);
    setup.until_kept("0").await;
    let (page, _open) = first(setup.open("of-anna").await).await;
    assert!(page.contains("worker-1"));
}

#[tokio::test]
async fn number_of_tokens_and_requests_is_limited() {
    let limits = UserLimits {
        users: 3,
        of_user: 2,
        requests: 2,
        ..UserLimits::default()
    };
    let setup = setup(limits).await;
    for (token, user) in [
        ("a1", "anna"),
        ("a2", "anna"),
        ("a3", "anna"),
        ("b", "ben"),
        ("c", "cleo"),
    ] {
        setup.api.issue(token, user, &[]);
    }
    let (_, first_page) = first(setup.open("a1").await).await;
    let (_, _second_page) = first(setup.open("a1").await).await;
    let (code, body) = setup.refused(Some("a1")).await;
    let message = "the console serves at most 2 open pages and requests of a token at once; close some pages";
    assert_eq!((code, &body["error"]), (429, &message.into()));
    drop(first_page);
    let (_, _first_page) = first(setup.open("a1").await).await;
    let (_, of_second) = first(setup.open("a2").await).await;
    let (code, body) = setup.refused(Some("a3")).await;
    assert!(
        code == 429 && body["error"].as_str().unwrap().contains("at most 2 tokens of a user"),
        "{body}"
    );
    let (_, _of_ben) = first(setup.open("b").await).await;
    let (code, body) = setup.refused(Some("c")).await;
    assert!(
        code == 503 && body["error"].as_str().unwrap().contains("at most 3 tokens at once"),
        "{body}"
    );
    // The objects of a token without an open page are dropped to make room.
    drop(of_second);
    let (_, _of_cleo) = first(setup.open("c").await).await;
    assert_eq!(setup.tokens(), "3");
}

#[tokio::test]
async fn all_pages_end_with_the_console() {
    let setup = setup(UserLimits::default()).await;
    setup.api.issue("of-anna", "anna", &["worker-1"]);
    let (_, lines) = first(setup.open("of-anna").await).await;
    setup.closing.cancel();
    until_ended(lines).await;
    setup.until_kept("0").await;
}
