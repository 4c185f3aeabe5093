//! Tests the loss of the leadership during each request of a task: nothing is sent until the next term, which repeats
//! all requests.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use drydock_runtime::{
    Process, Trigger,
    fake::{ApiServer, api_server, candidate, keep_elected_while},
    lease::Leadership,
};
use kube::Client;
use serde_json::json;

/// Time for which no request may be sent.
const QUIET: Duration = Duration::from_secs(600);

/// Runs a task once for each of its requests, and loses the leadership during that request. `start` starts the task,
/// which sends requests for objects with these names in each term. `on_standby` counts work that the task also does
/// without leading, if it has any.
pub(crate) async fn check_each_request<F: Future<Output = ()>>(
    names: &[&str],
    start: impl Fn(Client, Process, Leadership) -> F,
    on_standby: Option<&AtomicUsize>,
) {
    let done = || on_standby.map_or(0, |count| count.load(Ordering::Relaxed));
    for (lost_at, name) in names.iter().enumerate() {
        let process = Process::new();
        let (leadership, leases) = candidate(&process, Trigger::new());
        let leads = Arc::new(AtomicBool::new(true));
        let (client, mut server) = api_server();
        let running = start(client, process.clone(), leadership.clone());
        let test = async {
            serve(&mut server, &names[..lost_at]).await;
            let outstanding = server.next_request().await;
            let before = done();
            leads.store(false, Ordering::Relaxed);
            while leadership.term().is_some() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            outstanding.with(&json!({"metadata": {"name": "late"}}));
            assert!(server.is_left_alone_for(QUIET).await, "lost at {name}");
            assert!(on_standby.is_none() || done() > before, "on the standby");
            leads.store(true, Ordering::Relaxed);
            serve(&mut server, names).await;
            assert!(server.is_left_alone_for(QUIET).await, "lost at {name}");
            process.stop();
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(running, test) } => {}
            () = keep_elected_while(leases, Arc::clone(&leads)) => {}
        }
    }
}

/// Accepts requests for objects with these names, in this order.
async fn serve(server: &mut ApiServer, names: &[&str]) {
    for name in names {
        let request = server.next_request().await;
        assert!(request.path().ends_with(name), "{}", request.path());
        request.with(&json!({"metadata": {"name": name}}));
    }
}
