//! Tests with sessions of the node's tunnel whose migrations the watches show or do not show.

use std::sync::Arc;

use drydock_runtime::{
    Process,
    fake::{ReceivedRequest, WriteFault},
};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    super::{
        LocalMigrations,
        fixture::{DOMAIN, Fixture, UID, fixture},
    },
    *,
};
use crate::{guests::Host, tunnel::local::SessionSpec};

const LIST: &str = "/apis/kubevirt.io/v1/virtualmachineinstancemigrations";
const GET: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations/move";

/// Returns a source with this status, whose tunnel has the session.
async fn with_session(status: &Value) -> Fixture {
    let fixture = fixture(status, Role::Source).await;
    let spec = SessionSpec {
        migration: UID.into(),
        role: Role::Source,
        pod_uid: "0a".into(),
        domain: DOMAIN.into(),
    };
    fixture.tunnels.own().unwrap().prepare(spec).await.unwrap();
    let mut sessions = fixture.tunnels.sessions();
    sessions
        .wait_for(|known| known.sessions.contains_key(UID))
        .await
        .unwrap();
    fixture
}

fn migrating() -> Value {
    json!({"phase": "Running", "source": {"state": "Migrating"}})
}

fn settled() -> Value {
    json!({"phase": "Failed", "source": {"state": "Stayed"}})
}

type HostSender = watch::Sender<Option<Arc<Host>>>;

/// Returns the migrations of a node whose watches show the migration of the fixture if `is_shown`.
fn migrations(fixture: &Fixture, is_shown: bool, process: &Process) -> (LocalMigrations, HostSender) {
    let shown = is_shown.then(|| fixture.around.stored());
    let host = fixture.receiver.borrow().host.clone();
    let (host, receiver) = watch::channel(Some(host));
    let migrations = LocalMigrations::new(
        fixture.shared.clone(),
        MigrationWatches::filled(shown, []),
        fixture.tunnels.clone(),
        receiver,
        process.clone(),
    );
    (migrations, host)
}

/// Responds to the list request for migrations from this node.
fn respond(request: ReceivedRequest, items: &[Value]) {
    assert_eq!((&request.method, request.path()), (&Method::GET, LIST));
    assert!(request.query().contains("status.source.node"), "{}", request.line);
    assert!(!request.query().contains("resourceVersion"), "{}", request.line);
    request.list("9", items);
}

#[tokio::test(start_paused = true)]
async fn session_absent_from_the_cache_is_closed_once_unneeded() {
    for is_deleted in [true, false] {
        let mut fixture = with_session(&migrating()).await;
        let (migrations, _host) = migrations(&fixture, false, &Process::new());
        let mut sessions = fixture.tunnels.sessions();
        let around = &mut fixture.around;
        let api_server = async {
            around.server.next_request().await.refuse(500, "InternalError");
            let needed = serde_json::to_value(around.stored()).unwrap();
            respond(around.server.next_request().await, &[needed]);
            let request = around.server.next_request().await;
            assert_eq!(around.tunnel.calls(), ["prepare"], "the session is kept");
            around.update(&settled());
            let over = (!is_deleted).then(|| serde_json::to_value(around.stored()).unwrap());
            respond(request, over.as_slice());
            sessions.wait_for(|known| known.sessions.is_empty()).await.unwrap();
            assert!(around.server.is_left_alone().await);
        };
        tokio::select! {
            () = migrations.run() => panic!("the process does not stop"),
            () = api_server => {}
        }
        assert_eq!(fixture.around.tunnel.calls(), ["prepare", "close"]);
    }
}

#[tokio::test(start_paused = true)]
async fn session_is_kept_until_the_api_server_could_be_read() {
    for fault in WriteFault::ALL {
        let mut fixture = with_session(&migrating()).await;
        let (migrations, _host) = migrations(&fixture, false, &Process::new());
        let mut sessions = fixture.tunnels.sessions();
        let around = &mut fixture.around;
        let api_server = async {
            for _ in 0..3 {
                around.server.next_request().await.fail(fault);
                let failed = clock::Instant::now();
                assert!(
                    around.server.is_left_alone_for(AGAIN.0 / 4).await,
                    "{fault:?}: read again at once"
                );
                assert!(failed.elapsed() >= AGAIN.0 / 4, "{fault:?}");
                assert_eq!(around.tunnel.calls(), ["prepare"], "{fault:?}: the session is not kept");
            }
            respond(around.server.next_request().await, &[]);
            sessions.wait_for(|known| known.sessions.is_empty()).await.unwrap();
        };
        tokio::select! {
            () = migrations.run() => panic!("the process does not stop"),
            () = api_server => {}
        }
        assert_eq!(fixture.around.tunnel.calls(), ["prepare", "close"], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn session_of_a_settled_migration_is_closed_unread() {
    let mut fixture = with_session(&settled()).await;
    let (migrations, _host) = migrations(&fixture, true, &Process::new());
    tokio::select! {
        () = migrations.run() => panic!("the process does not stop"),
        alone = fixture.around.server.is_left_alone() => assert!(alone),
    }
    assert_eq!(fixture.around.tunnel.calls(), ["prepare", "close"]);
}

#[tokio::test(start_paused = true)]
async fn status_of_a_session_shown_late_is_read_first() {
    let mut fixture = with_session(&migrating()).await;
    let process = Process::new();
    let (mut migrations, _host) = migrations(&fixture, true, &process);
    migrations.first = false;
    let host = fixture.receiver.borrow().host.clone();
    migrations.reconcile(&host);
    let request = fixture.around.server.next_request().await;
    assert_eq!((&request.method, request.path()), (&Method::GET, GET));
    process.stop();
}
