use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drydock_runtime::{
    Key, Readiness, Trigger, WatchMetrics, WorkQueueMetrics,
    fake::{ApiServer, OpenWatch, api_server, candidate, keep_elected_while},
};
use futures::FutureExt;
use serde_json::{Value, json};

use super::*;

const QUOTAS: &str = "/api/v1/resourcequotas";
const PATHS: [&str; 8] = [
    "/api/v1/limitranges",
    "/api/v1/namespaces",
    QUOTAS,
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
];

fn step() -> RefusedStep {
    RefusedStep::Drain(Key::namespaced("shop", "web"))
}

fn quota(namespace: &str, pods: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": namespace, "uid": namespace, "resourceVersion": version},
        "spec": {"hard": {"pods": pods}}, "status": {"hard": {"pods": pods}, "used": {"pods": "4"}},
    })
}

/// Serves the lists and watches that the task starts. Two namespaces have a quota.
async fn served(server: &mut ApiServer) -> BTreeMap<String, OpenWatch> {
    let mut open = BTreeMap::new();
    while open.len() < PATHS.len() {
        let request = server.next_request().await;
        let path = request.path().to_owned();
        if request.query().contains("watch=true") {
            open.insert(path, request.open());
        } else if path == QUOTAS {
            request.list("1", &[quota("shop", "4", "1"), quota("bank", "4", "1")]);
        } else {
            request.list("1", &[]);
        }
    }
    open
}

#[tokio::test(start_paused = true)]
async fn rules_are_watched_while_a_step_is_refused() {
    let (client, mut server) = api_server();
    let watches = WatchStarter::new(&Process::new(), &Readiness::new(), &WatchMetrics::default());
    let (refusals, queues) = (StepRefusals::default(), Queues::new(&WorkQueueMetrics::default()));
    let task = RefusalTask::new(client, watches, refusals.clone(), queues.clone());
    let wakes = || queues.drains.notified().now_or_never().is_some();
    let tested = async {
        assert!(server.is_left_alone().await, "nothing is refused");
        let refuse = || (0..10).for_each(|_| refusals.note(step(), "exceeded quota", clock::now()));
        refuse();
        let open = served(&mut server).await;
        assert_eq!(open.keys().map(String::as_str).collect::<Vec<_>>(), PATHS);
        // Changes before the start of the watch may have ended the refusal.
        assert!(wakes());

        refuse();
        let quotas = &open[QUOTAS];
        quotas.send("MODIFIED", &quota("bank", "5", "2"));
        assert!(server.is_left_alone_for(Duration::from_millis(10)).await);
        assert!(!wakes(), "a quota of another namespace");
        let before = refusals.of(&step(), clock::now()).unwrap().again_at;
        quotas.send("MODIFIED", &quota("shop", "5", "3"));
        queues.drains.notified().await;
        assert!(refusals.of(&step(), clock::now()).unwrap().again_at < before);

        refusals.forget(&step());
        assert!(server.is_left_alone().await);
        assert!(open.values().all(OpenWatch::is_closed));
        // The watches start again with the next refusal.
        refusals.note(step(), "exceeded quota", clock::now());
        assert_eq!(served(&mut server).await.len(), PATHS.len());
    };
    tokio::select! {
        () = task.observe() => panic!("it observes until the term ends"),
        () = tested => {}
    }
}

#[tokio::test(start_paused = true)]
async fn rules_are_not_watched_after_the_leadership_was_lost() {
    for is_listed in [false, true] {
        let process = Process::new();
        let (client, mut server) = api_server();
        let watches = WatchStarter::new(&process, &Readiness::new(), &WatchMetrics::default());
        let refusals = StepRefusals::default();
        let queues = Queues::new(&WorkQueueMetrics::default());
        let task = RefusalTask::new(client, watches, refusals.clone(), queues);
        let (leadership, leases) = candidate(&process, Trigger::new());
        let leads = Arc::new(AtomicBool::new(true));
        let tested = async {
            while leadership.term().is_none() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            refusals.note(step(), "exceeded quota", clock::now());
            let (mut open, mut lists) = (BTreeMap::new(), Vec::new());
            if is_listed {
                open = served(&mut server).await;
            } else {
                for _ in PATHS {
                    lists.push(server.next_request().await);
                }
            }
            leads.store(false, Ordering::Relaxed);
            while leadership.term().is_some() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            lists.into_iter().for_each(|list| list.list("1", &[]));
            assert!(server.is_left_alone_for(Duration::from_secs(600)).await, "{is_listed}");
            assert!(open.values().all(OpenWatch::is_closed));
            assert!(refusals.is_empty(), "of the earlier term");
            leads.store(true, Ordering::Relaxed);
            while leadership.term().is_none() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert!(server.is_left_alone_for(Duration::from_secs(600)).await, "{is_listed}");
            refusals.note(step(), "exceeded quota", clock::now());
            assert_eq!(served(&mut server).await.len(), PATHS.len());
            process.stop();
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(task.run(process.clone(), leadership.clone()), tested) } => {}
            () = keep_elected_while(leases, Arc::clone(&leads)) => {}
        }
    }
}
