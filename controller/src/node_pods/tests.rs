use std::sync::mpsc;

use drydock_runtime::{
    Process, Readiness, WatchMetrics,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use serde_json::{Value, json};

use super::*;

struct Setup {
    pods: NodePods,
    server: ApiServer,
    notified: mpsc::Receiver<String>,
}

fn setup() -> Setup {
    let (client, server) = api_server();
    let watches = WatchStarter::new(&Process::new(), &Readiness::new(), &WatchMetrics::default());
    let (notify, notified) = mpsc::channel();
    let pods = NodePods::start(&client, &watches, move |node| {
        let _ = notify.send(node.to_owned());
    });
    Setup { pods, server, notified }
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1",
                     "annotations": {"kubernetes.io/config.mirror": "m", "other": "o"}, "labels": {"a": "b"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    })
}

/// Responds to the initial list of a watch. Returns the watch request, which stays open until it is dropped.
async fn listed(server: &mut ApiServer, pods: &[Value]) -> ReceivedRequest {
    let request = server.next_request().await;
    assert_eq!(request.path(), "/api/v1/pods");
    request.streams("Pod", pods, "7");
    server.next_request().await
}

#[tokio::test(start_paused = true)]
async fn node_is_watched_once_while_kept() {
    let Setup {
        pods,
        mut server,
        notified,
    } = setup();
    assert!(pods.of("n").is_none(), "nobody keeps it");
    let (one, two) = (pods.keep("n"), pods.keep("n"));
    assert!(pods.of("n").is_none(), "nothing was listed yet");
    let watch = listed(&mut server, &[pod("p")]).await;
    assert!(watch.query().contains("spec.nodeName%3Dn"), "{}", watch.query());
    let shown = pods.of("n").unwrap();
    assert_eq!(shown.len(), 1);
    assert!(notified.try_iter().all(|node| node == "n"));
    assert!(pods.are_current("n"));
    drop(one);
    assert!(pods.of("n").is_some(), "the other one still keeps it");
    drop(two);
    assert!(pods.of("n").is_none());
    assert!(!pods.are_current("n"));
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn node_kept_again_gets_a_new_list() {
    let Setup { pods, mut server, .. } = setup();
    let first = pods.keep("n");
    let _open = listed(&mut server, &[pod("p")]).await;
    drop(first);
    let _again = pods.keep("n");
    assert!(pods.of("n").is_none(), "what was known may be old");
    let _open = listed(&mut server, &[]).await;
    assert_eq!(pods.of("n").unwrap(), []);
}

#[test]
fn unused_pod_fields_are_pruned_and_wake_no_task() {
    let mut old: Pod = serde_json::from_value(pod("p")).unwrap();
    prune(&mut old);
    assert_eq!(old.metadata.annotations.as_ref().unwrap().len(), 1);
    assert!(old.spec.as_ref().unwrap().containers.is_empty());
    assert_eq!(old.status.as_ref().unwrap().pod_ip, None);
    let mut new = old.clone();
    new.metadata.resource_version = Some("2".into());
    let change = |new: &Pod| CacheChange::Object {
        key: drydock_runtime::Key::of(new),
        old: Some(Arc::new(old.clone())),
        new: Some(Arc::new(new.clone())),
    };
    assert!(!matters(&change(&new)));
    new.metadata.deletion_grace_period_seconds = Some(3);
    assert!(matters(&change(&new)));
}
