use axum::http::header::{HOST, SET_COOKIE};
use kube::Config;
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;

const PORT: u16 = 7000;

/// Returns a console for an API server that does not exist.
fn console(read_only: bool) -> (Arc<Local>, Process) {
    drydock_runtime::install_crypto();
    let client = Client::try_from(Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
    let process = Process::new();
    let cluster = ClusterContext {
        careful: true,
        ..ClusterContext::default()
    };
    let local = Local {
        shared: ConsoleContext::start(&client, cluster, read_only, &process),
        sessions: ConsoleSessions::default(),
        port: PORT,
    };
    (Arc::new(local), process)
}

/// A request to the console.
struct ConsoleCall<'a> {
    method: &'a str,
    path: &'a str,
    session: Option<&'a str>,
    body: Value,
}

async fn send(local: &Arc<Local>, request: ConsoleCall<'_>) -> (Response, Value) {
    let mut built = Request::builder()
        .method(request.method)
        .uri(request.path)
        .header(HOST, format!("127.0.0.1:{PORT}"))
        .header(CONTENT_TYPE, "application/json");
    if let Some(session) = request.session {
        built = built.header(guard::SESSION, session);
    }
    let built = built.body(Body::from(request.body.to_string())).unwrap();
    let response = router(local.clone()).oneshot(built).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let value = serde_json::from_slice(&bytes).unwrap_or_default();
    (Response::from_parts(parts, Body::empty()), value)
}

fn reading(path: &str) -> ConsoleCall<'_> {
    ConsoleCall {
        method: "GET",
        path,
        session: None,
        body: Value::Null,
    }
}

fn writing<'a>(path: &'a str, session: Option<&'a str>, body: Value) -> ConsoleCall<'a> {
    ConsoleCall {
        method: "POST",
        path,
        session,
        body,
    }
}

#[tokio::test]
async fn every_response_has_the_headers_and_no_cookie() {
    let (local, _process) = console(false);
    for (path, status) in [
        ("/", 200),
        ("/nodes/worker-1", 200),
        ("/live.js", 200),
        ("/console.css", 200),
        ("/icon.svg", 200),
        ("/api/live?path=/nodes", 403),
        ("/api/v1/secrets", 403),
        ("/secrets", 404),
    ] {
        let (response, _) = send(&local, reading(path)).await;
        assert_eq!(response.status(), status, "{path}");
        let headers = response.headers();
        assert_eq!(headers[CONTENT_SECURITY_POLICY], POLICY, "{path}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(headers[name], value, "{path}");
        }
        assert!(!headers.contains_key(SET_COOKIE), "{path}");
    }
}

#[tokio::test]
async fn link_is_good_for_one_session() {
    let (local, _process) = console(false);
    let link = local.link().unwrap();
    let key = link.split_once("#key=").unwrap().1;
    let (response, body) = send(&local, writing("/api/session", None, json!({"key": key}))).await;
    assert_eq!(response.status(), 200);
    let session = body["session"].as_str().unwrap();
    let (response, body) = send(&local, writing("/api/session", None, json!({"key": key}))).await;
    assert_eq!(response.status(), 403);
    assert_eq!(
        body["error"],
        "this link was already used: each link of the console works only once"
    );
    let (response, body) = send(&local, writing("/api/link", Some(session), json!({}))).await;
    assert_eq!(response.status(), 200);
    let other = body["link"].as_str().unwrap();
    assert!(other.starts_with("http://127.0.0.1:7000/#key=") && other != link);
}

#[tokio::test]
async fn session_opens_no_other_route() {
    let (local, _process) = console(false);
    let session = local.sessions.exchange(&local.sessions.link().unwrap()).unwrap();
    for path in [
        "/api/v1/secrets",
        "/api",
        "/api/live/../v1/nodes",
        "/apis/apps/v1/deployments",
    ] {
        let request = ConsoleCall {
            session: Some(&session),
            ..reading(path)
        };
        let (response, _) = send(&local, request).await;
        assert_eq!(response.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn nothing_is_started_without_a_confirmation() {
    let (local, _process) = console(false);
    let session = local.sessions.exchange(&local.sessions.link().unwrap()).unwrap();
    for confirm in ["", "a", "a b c"] {
        let body = json!({"nodes": "a b", "confirm": confirm});
        let (response, body) = send(&local, writing("/api/start", Some(&session), body)).await;
        assert_eq!(
            (response.status().as_u16(), &body["error"]),
            (422, &"type `a b` to confirm".into())
        );
    }
    // The next step is a request to the API server, which does not exist.
    let body = json!({"nodes": "a b", "confirm": "a b"});
    let (response, _) = send(&local, writing("/api/start", Some(&session), body)).await;
    assert_eq!(response.status(), 502);
    let (response, _) = send(&local, writing("/api/start", Some(&session), json!({"node": "a"}))).await;
    assert_eq!(response.status(), 422);
}

#[tokio::test]
async fn nothing_is_written_by_a_console_that_only_reads() {
    let (local, _process) = console(true);
    let session = local.sessions.exchange(&local.sessions.link().unwrap()).unwrap();
    for (path, body) in [
        ("/api/start", json!({"nodes": "a", "confirm": "a"})),
        ("/api/stop", json!({"node": "a"})),
        ("/api/cancel", json!({"namespace": "shop", "name": "m"})),
        ("/api/guest/input", json!({"guest": "1", "text": "ls"})),
    ] {
        let (response, body) = send(&local, writing(path, Some(&session), body)).await;
        assert_eq!(response.status(), 403);
        assert_eq!(body["error"], "this console was started with --read-only");
    }
}

#[tokio::test]
async fn guest_is_reached_with_a_session_while_opened() {
    let (local, _process) = console(false);
    let shared = &local.shared;
    let session = local.sessions.exchange(&local.sessions.link().unwrap()).unwrap();
    let frame = "/api/guest/frame?guest=1&width=4&height=2";
    let key =
        json!({"kind": "key", "key": "a", "code": "KeyA", "down": true, "ctrl": false, "alt": false, "shift": false});
    for (session, body, expected) in [
        (None, json!({"guest": "1", "inputs": [key]}), 403),
        (Some(session.as_str()), json!({"guest": "1", "inputs": [key]}), 404),
        (Some(&session), json!({"guest": "../1", "inputs": []}), 404),
        (Some(&session), json!({"guest": "1", "text": "ls", "enter": "yes"}), 404),
        (
            Some(&session),
            json!({"guest": "1", "inputs": [{"kind": "reset"}]}),
            422,
        ),
        (Some(&session), json!({"guest": "1", "path": "/api/v1/secrets"}), 422),
    ] {
        let (response, _) = send(&local, writing("/api/guest/input", session, body.clone())).await;
        assert_eq!(response.status(), expected, "{body}");
    }
    for (session, expected) in [(None, 403), (Some(session.as_str()), 404)] {
        let request = ConsoleCall {
            session,
            ..reading(frame)
        };
        assert_eq!(send(&local, request).await.0.status(), expected);
    }
    // The API server does not exist, so the connection ends at once. The guest is open nevertheless.
    let opened = shared.guests.open(
        &shared.client,
        ("shop", "web"),
        view::GuestDevice::Display { take: false },
    );
    let id = opened.shown().id;
    let input = json!({"guest": id.to_string(), "inputs": [key]});
    let (response, _) = send(&local, writing("/api/guest/input", Some(&session), input.clone())).await;
    assert_eq!(response.status(), 200);
    let request = ConsoleCall {
        session: Some(&session),
        ..reading("/api/guest/frame?guest=1&width=4&height=2")
    };
    assert_eq!(send(&local, request).await.0.status(), 409);
    drop(opened);
    let (response, _) = send(&local, writing("/api/guest/input", Some(&session), input)).await;
    assert_eq!(response.status(), 404);
}

#[tokio::test]
async fn document_marks_the_current_section_in_the_navigation() {
    let (local, _process) = console(false);
    for (path, section) in [
        ("/", Some("/nodes")),
        ("/virtual-machines/shop/web/console", Some("/virtual-machines")),
        ("/check", Some("/check")),
        ("/stop/a", None),
    ] {
        let request = Request::builder().uri(path).header(HOST, format!("127.0.0.1:{PORT}"));
        let response = router(local.clone())
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let marked = text.matches("aria-current").count();
        assert_eq!(marked, usize::from(section.is_some()), "{path}");
        let item = section.map(|section| format!("<li><a href=\"{section}\" aria-current=\"page\""));
        assert!(item.is_none_or(|item| text.contains(&item)), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn console_server_ends_once_idle() {
    let (local, _process) = console(false);
    let begun = Instant::now();
    let open = Active::new(&local.shared);
    let ends = async {
        idle(&local.shared, IDLE).await;
        begun.elapsed()
    };
    let closes = async {
        tokio::time::sleep(IDLE + Duration::from_secs(60)).await;
        drop(open);
    };
    let (ended, ()) = tokio::join!(ends, closes);
    assert_eq!(ended.as_secs(), (IDLE + Duration::from_secs(60) + IDLE).as_secs());
}
