//! Tests of evictions as an API server sends them, and of the requests to the API server in the meantime.

use drydock_api::hyperconverged::EvictionStrategy;
use drydock_core::{
    configuration::Configuration,
    eviction::{holding::REVIEW_DEADLINE, own_pdb},
};
use drydock_runtime::{
    Registry,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use http::Method;
use kube::core::admission::AdmissionReview;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::configuration_in_force::ConfigurationInForce;

pub(super) fn instance(change: impl FnOnce(&mut Value)) -> VirtualMachineInstance {
    let mut instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
        "spec": {"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"},
        "status": {"phase": "Running", "nodeName": "a", "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    });
    change(&mut instance);
    serde_json::from_value(instance).unwrap()
}

fn marked() -> VirtualMachineInstance {
    instance(|instance| instance["status"]["evacuationNodeName"] = json!("a"))
}

/// Returns the instance on another node, where it may have been before it moved to the pod.
fn elsewhere() -> VirtualMachineInstance {
    instance(|instance| instance["status"]["nodeName"] = json!("b"))
}

/// Returns the instance after its newest migration has moved it away from the pod.
pub(super) fn moved() -> VirtualMachineInstance {
    instance(|instance| {
        instance["status"]["nodeName"] = json!("b");
        instance["status"]["migrationState"] = json!({"sourcePod": "virt-launcher-web-1", "completed": true});
    })
}

pub(super) fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "virt-launcher-web-1", "namespace": "shop", "uid": "p",
            "labels": {"kubevirt.io": "virt-launcher", "drydock.dev/launcher": "l1"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"},
    }))
    .unwrap()
}

pub(super) fn review_request(change: impl FnOnce(&mut Value)) -> AdmissionRequest<DynamicObject> {
    let mut request = json!({
        "uid": "r", "kind": {"group": "policy", "version": "v1", "kind": "Eviction"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "eviction",
        "name": "virt-launcher-web-1", "namespace": "shop", "operation": "CREATE", "userInfo": {"username": "admin"},
        "object": {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "virt-launcher-web-1", "namespace": "shop"},
        },
        "oldObject": null, "dryRun": false, "options": null,
    });
    change(&mut request);
    let review: AdmissionReview<DynamicObject> = serde_json::from_value(
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}),
    )
    .unwrap();
    review.try_into().unwrap()
}

/// Returns the review in a cluster with these instances and pods, and the API server for further requests.
pub(super) fn evictions(
    instances: Vec<VirtualMachineInstance>,
    pods: Vec<Pod>,
    pdbs: Vec<k8s_openapi::api::policy::v1::PodDisruptionBudget>,
) -> (EvictionReviews, ApiServer, watch::Sender<u64>) {
    let (client, server) = api_server();
    let node = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"unschedulable": true}})).unwrap();
    let (context, _) = GuestContext::empty(client);
    context.launchers.nodes.nodes.show([node]);
    context.launchers.pdbs.show(pdbs);
    context.launchers.show(pods);
    context.instances.objects.show(instances);
    let (changed, news) = watch::channel(0);
    let held = HeldEvictions::register(&mut Registry::default());
    let evictions = EvictionReviews::new(context, news, held);
    (evictions, server, changed)
}

pub(super) fn text(response: &AdmissionResponse) -> (u16, &str, &str) {
    (response.result.code, &response.result.reason, &response.result.message)
}

const TRIGGERED: &str = r#"Eviction triggered evacuation of VMI "shop/web""#;
const IN_PROGRESS: &str = r#"Evacuation in progress: Eviction triggered evacuation of VMI "shop/web""#;

#[tokio::test(start_paused = true)]
async fn first_eviction_marks_the_instance_without_retry_after() {
    let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
    let question = review_request(|_| {});
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        let patch = server.next_request().await;
        assert_eq!(patch.method, Method::PATCH);
        assert_eq!(
            patch.path(),
            "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web/status"
        );
        assert!(!patch.query().contains("dryRun"));
        assert_eq!(patch.body["status"]["evacuationNodeName"], "a");
        assert_eq!(patch.body["status"]["evacuation"]["requestedBy"], "Cordon");
        let stored = serde_json::to_value(marked()).unwrap();
        patch.with(&stored);
    });
    assert!(!response.allowed);
    assert_eq!(text(&response), (429, "TooManyRequests", TRIGGERED));
    assert!(
        response
            .result
            .details
            .is_none_or(|details| details.retry_after_seconds == 0)
    );
    assert!(server.is_left_alone().await);
}

/// Receives a mark that requires this version of the instance.
async fn mark_of_version(server: &mut ApiServer, version: &str) -> ReceivedRequest {
    let patch = server.next_request().await;
    assert_eq!(patch.method, Method::PATCH);
    assert_eq!(patch.body["metadata"]["resourceVersion"], version);
    assert_eq!(patch.body["status"]["evacuationNodeName"], "a");
    patch
}

/// Responds to the reads of the pod and of this instance.
async fn serve_reads(server: &mut ApiServer, instance: &Value) {
    let get = server.next_request().await;
    assert!(get.method == Method::GET && get.path().ends_with("/pods/virt-launcher-web-1"));
    get.with(&serde_json::to_value(pod()).unwrap());
    let get = server.next_request().await;
    assert!(get.method == Method::GET && get.path().ends_with("/virtualmachineinstances/web"));
    get.with(instance);
}

#[tokio::test(start_paused = true)]
async fn mark_that_the_cache_does_not_show_is_kept() {
    let of_version =
        |version: &'static str| move |instance: &mut Value| instance["metadata"]["resourceVersion"] = json!(version);
    let failing = json!({"requestedBy": "Cordon", "requestedAt": "2026-01-01T00:00:00Z", "failures": 3});
    for (marked_node, expected) in [(Some("a"), IN_PROGRESS), (Some("b"), TRIGGERED), (None, TRIGGERED)] {
        let (evictions, mut server, _changed) = evictions(vec![instance(of_version("1"))], vec![pod()], vec![]);
        let (question, began) = (review_request(|_| {}), clock::Instant::now());
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            mark_of_version(&mut server, "1").await.refuse(409, "Conflict");
            let mut stored = serde_json::to_value(instance(of_version("7"))).unwrap();
            if let Some(node) = marked_node {
                stored["status"]["evacuationNodeName"] = json!(node);
                stored["status"]["evacuation"] = failing.clone();
            }
            serve_reads(&mut server, &stored).await;
            if expected == TRIGGERED {
                mark_of_version(&mut server, "7").await.with(&stored);
            }
        });
        assert!(!response.allowed);
        assert_eq!(text(&response), (429, "TooManyRequests", expected), "{marked_node:?}");
        assert_eq!(began.elapsed(), HOLD, "{marked_node:?}");
        assert!(server.is_left_alone().await, "{marked_node:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn mark_that_conflicts_each_time_is_given_up() {
    let changing = instance(|instance| instance["metadata"]["resourceVersion"] = json!("1"));
    let (evictions, mut server, _changed) = evictions(vec![changing.clone()], vec![pod()], vec![]);
    let question = review_request(|_| {});
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        for _ in 0..MAX_MARK_REPETITIONS {
            mark_of_version(&mut server, "1").await.refuse(409, "Conflict");
            serve_reads(&mut server, &serde_json::to_value(&changing).unwrap()).await;
        }
        mark_of_version(&mut server, "1").await.refuse(409, "Conflict");
    });
    assert!(!response.allowed && response.result.code == 429);
    let message = &response.result.message;
    assert!(
        message.starts_with("kubevirt failed marking the vmi for eviction: "),
        "{message}"
    );
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn instance_without_strategy_follows_the_configuration() {
    for (strategy, allowed) in [
        (EvictionStrategy::LiveMigrate, false),
        (EvictionStrategy::External, false),
        (EvictionStrategy::None, true),
    ] {
        let unresponsive = instance(|instance| {
            instance["spec"] = json!({"domain": {"devices": {}}});
            instance["status"]["evacuationNodeName"] = json!("a");
        });
        let (mut evictions, mut server, _changed) = evictions(vec![unresponsive], vec![pod()], vec![]);
        let (configuration, read) = ConfigurationInForce::pending(Configuration {
            eviction_strategy: strategy,
            ..Configuration::default()
        });
        evictions.context.launchers.configuration = configuration;
        let question = review_request(|_| {});
        let mut review = std::pin::pin!(evictions.review(&question));
        assert!(
            futures::poll!(&mut review).is_pending(),
            "built-in defaults are nobody's decision"
        );
        read.send_replace(true);
        assert_eq!(review.await.allowed, allowed, "{strategy:?}");
        assert!(server.is_left_alone().await);
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_eviction_makes_no_api_request() {
    let (evictions, mut server, _changed) = evictions(vec![marked()], vec![pod()], vec![]);
    let response = evictions.review(&review_request(|_| {})).await;
    assert_eq!(text(&response), (429, "TooManyRequests", IN_PROGRESS));
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn eviction_of_a_migrated_guest_is_granted_and_ends_the_pod() {
    let own = own_pdb::of(&pod()).unwrap();
    let (evictions, mut server, _changed) = evictions(vec![moved()], vec![pod()], vec![own]);
    let question = review_request(|_| {});
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        let delete = server.next_request().await;
        assert_eq!(delete.method, Method::DELETE);
        assert!(delete.path().ends_with("/pods/virt-launcher-web-1"));
        delete.with(&serde_json::to_value(pod()).unwrap());
    });
    assert!(response.allowed);
    // The PDB of the pod is deleted with the pod.
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn pdb_is_deleted_before_an_eviction_that_shuts_down() {
    let may_go = instance(|instance| instance["spec"]["evictionStrategy"] = json!("None"));
    let own = own_pdb::of(&pod()).unwrap();
    let (evictions, mut server, _changed) = evictions(vec![may_go], vec![pod()], vec![own]);
    let question = review_request(|_| {});
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        let delete = server.next_request().await;
        assert_eq!(delete.method, Method::DELETE);
        assert!(delete.path().ends_with("/poddisruptionbudgets/virt-launcher-web-1"));
        delete.with(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}));
    });
    assert!(response.allowed);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_held_for_a_bounded_time_and_only_a_few_are() {
    let (evictions, _server, changed) = evictions(vec![marked()], vec![pod()], vec![]);
    let question = review_request(|_| {});
    let began = clock::Instant::now();
    let mut held = JoinSet::new();
    for _ in 0..MAX_HELD_EVICTIONS {
        let (evictions, question) = (evictions.clone(), question.clone());
        held.spawn(async move { evictions.review(&question).await });
    }
    // Changes that do not matter do not end the hold.
    tokio::task::yield_now().await;
    changed.send_modify(|number| *number += 1);
    tokio::task::yield_now().await;
    // Evictions beyond the limit, and evictions that are never held, get a response at once.
    for other in [
        question.clone(),
        review_request(|request| request["dryRun"] = json!(true)),
        review_request(|request| request["object"]["deleteOptions"] = json!({"dryRun": ["All"]})),
        review_request(|request| {
            request["object"]["metadata"]["annotations"] = json!({"requested-by": "sigs.k8s.io/descheduler"});
        }),
    ] {
        let response = evictions.review(&other).await;
        assert_eq!(text(&response), (429, "TooManyRequests", IN_PROGRESS));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    while let Some(finished) = held.join_next().await {
        assert!(!finished.unwrap().allowed);
    }
    assert_eq!(began.elapsed(), HOLD);
}

#[tokio::test(start_paused = true)]
async fn eviction_is_not_held_for_a_guest_that_moves_too_late() {
    let sized = |mut instance: VirtualMachineInstance| {
        let status = instance.status.as_mut().unwrap();
        status.memory = serde_json::from_value(json!({"guestCurrent": "1Gi"})).unwrap();
        instance
    };
    let question = review_request(|_| {});
    for (takes, marks, held) in [
        (5, false, HOLD),
        (6, false, Duration::ZERO),
        // The first eviction of a drain waits for the other guests that are to leave.
        (4, true, HOLD),
        (5, true, SETTLED_AFTER),
    ] {
        let known = sized(if marks { instance(|_| {}) } else { marked() });
        let (mut evictions, mut server, _changed) = evictions(vec![known], vec![pod()], vec![]);
        evictions.context.rate = evictions.context.rate.learned(Duration::from_secs(takes), 1 << 30);
        let began = clock::Instant::now();
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            if marks {
                server
                    .next_request()
                    .await
                    .with(&serde_json::to_value(marked()).unwrap());
            }
        });
        let expected = if marks { TRIGGERED } else { IN_PROGRESS };
        assert_eq!(text(&response), (429, "TooManyRequests", expected));
        assert_eq!(began.elapsed(), held, "it takes {takes} s, marked now: {marks}");
    }
}

#[tokio::test(start_paused = true)]
async fn eviction_is_refused_in_time_by_a_slow_api_server() {
    // Seconds after which the API server stores the evacuation request; `None` if it never does.
    for (takes, message) in [(Some(2), TRIGGERED), (None, "the API server did not respond in time")] {
        let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
        let began = clock::Instant::now();
        let request = review_request(|_| {});
        let (response, _patch) = tokio::join!(evictions.review(&request), async {
            let patch = server.next_request().await;
            let Some(seconds) = takes else { return Some(patch) };
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            patch.with(&serde_json::to_value(marked()).unwrap());
            None
        });
        assert!(!response.allowed && response.result.code == 429);
        assert!(response.result.message.contains(message), "{}", response.result.message);
        assert_eq!(began.elapsed(), HOLD, "the mark takes {takes:?} s");
    }
}

#[test]
fn deadline_is_shorter_than_the_timeout_of_the_webhook() {
    let webhooks = include_str!("../../../../deploy/controller/webhooks.yaml");
    let (_, eviction) = webhooks.split_once("path: /validate/pods/eviction").unwrap();
    let (_, timeout) = eviction.split_once("timeoutSeconds: ").unwrap();
    let (seconds, _) = timeout.split_once('\n').unwrap();
    assert!(HOLD + GONE_WITHIN < REVIEW_DEADLINE && REVIEW_DEADLINE < Duration::from_secs(seconds.parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn pod_of_a_held_eviction_ends_once_the_guest_has_moved() {
    let (evictions, mut server, changed) = evictions(vec![], vec![pod()], vec![]);
    let (question, began) = (review_request(|_| {}), clock::Instant::now());
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        // The cache does not have the instance, so each verdict reads the instance from the API server.
        for now in [marked(), moved()] {
            server.next_request().await.with(&serde_json::to_value(now).unwrap());
            changed.send_modify(|number| *number += 1);
        }
        let delete = server.next_request().await;
        assert_eq!(delete.method, Method::DELETE);
        assert!(
            delete.path().ends_with("/pods/virt-launcher-web-1"),
            "{}",
            delete.path()
        );
        assert_eq!(delete.body["preconditions"]["uid"], "p");
        delete.with(&serde_json::to_value(pod()).unwrap());
    });
    assert!(response.allowed);
    // The watch has not shown the deletion of the pod.
    assert_eq!(began.elapsed(), GONE_WITHIN);
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn left_pod_is_awaited_by_few_and_never_by_the_descheduler() {
    let by_descheduler = review_request(|request| {
        request["object"]["metadata"]["annotations"] = json!({"requested-by": "sigs.k8s.io/descheduler"});
    });
    for (question, places) in [(by_descheduler, MAX_HELD_EVICTIONS), (review_request(|_| {}), 0)] {
        let (evictions, mut server, _changed) = evictions(vec![moved()], vec![pod()], vec![]);
        let _others: Vec<_> = (places..MAX_HELD_EVICTIONS)
            .map(|_| evictions.held.place().unwrap())
            .collect();
        let began = clock::Instant::now();
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let delete = server.next_request().await;
            assert_eq!(delete.method, Method::DELETE);
            delete.with(&serde_json::to_value(pod()).unwrap());
        });
        assert!(response.allowed);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_marks_nothing_for_good() {
    let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
    let question = review_request(|request| request["dryRun"] = json!(true));
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        let patch = server.next_request().await;
        assert!(patch.query().contains("dryRun=All"), "{}", patch.query());
        patch.with(&serde_json::to_value(marked()).unwrap());
    });
    assert_eq!(text(&response).2, TRIGGERED);
}

#[tokio::test(start_paused = true)]
async fn absence_is_confirmed_by_the_api_server() {
    for (pods, code, allowed) in [
        (vec![], 404, true),
        (vec![], 500, false),
        (vec![pod()], 404, true),
        (vec![pod()], 500, false),
    ] {
        let (evictions, mut server, _changed) = evictions(vec![], pods, vec![]);
        let question = review_request(|_| {});
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let get = server.next_request().await;
            assert_eq!(get.method, Method::GET);
            get.refuse(code, if code == 404 { "NotFound" } else { "InternalError" });
        });
        assert_eq!(response.allowed, allowed, "{code}");
        if !allowed {
            assert_eq!(response.result.code, 429);
            assert!(response.result.message.starts_with("kubevirt failed getting the vmi: "));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_not_let_go_by_a_cache_that_may_be_behind() {
    let cannot = |strategy: &str| {
        instance(|instance| {
            instance["spec"]["evictionStrategy"] = json!(strategy);
            instance["status"]["conditions"][0]["status"] = json!("False");
        })
    };
    let found = |instance: &VirtualMachineInstance| Ok(serde_json::to_value(instance).unwrap());
    let here = instance(|_| {});
    // State in the cache, state in the API server, whether the instance is marked, and whether the eviction is allowed.
    for (shown, expected, marks, allowed) in [
        (elsewhere(), found(&here), true, false),
        (elsewhere(), found(&elsewhere()), false, true),
        (elsewhere(), Err(500), false, false),
        (
            cannot("LiveMigrateIfPossible"),
            found(&cannot("LiveMigrateIfPossible")),
            false,
            true,
        ),
        (cannot("LiveMigrateIfPossible"), found(&here), true, false),
    ] {
        let (evictions, mut server, _changed) = evictions(vec![shown], vec![pod()], vec![]);
        let question = review_request(|request| request["dryRun"] = json!(true));
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let get = server.next_request().await;
            assert!(get.method == Method::GET && get.path().ends_with("/pods/virt-launcher-web-1"));
            get.with(&serde_json::to_value(pod()).unwrap());
            let get = server.next_request().await;
            assert!(get.method == Method::GET && get.path().ends_with("/virtualmachineinstances/web"));
            match &expected {
                Ok(instance) => get.with(instance),
                Err(code) => get.refuse(*code, "InternalError"),
            }
            if marks {
                let patch = server.next_request().await;
                assert_eq!(patch.method, Method::PATCH);
                patch.with(&serde_json::to_value(marked()).unwrap());
            }
        });
        assert_eq!(response.allowed, allowed, "{expected:?}");
        assert!(server.is_left_alone().await);
    }
    // The strategy `None` cannot have been another one before, so the cached state is sufficient.
    let (evictions, mut server, _changed) = evictions(vec![cannot("None")], vec![pod()], vec![]);
    assert!(evictions.review(&review_request(|_| {})).await.allowed);
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn unreadable_or_unmarkable_instance_is_reported() {
    let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
    let response = evictions
        .review(&review_request(|request| request["object"] = Value::Null))
        .await;
    assert!(
        response
            .result
            .message
            .starts_with("failed to parse the eviction object: ")
    );
    let question = review_request(|_| {});
    let (response, ()) = tokio::join!(evictions.review(&question), async {
        server.next_request().await.refuse(403, "Forbidden");
    });
    assert!(
        response
            .result
            .message
            .starts_with("kubevirt failed marking the vmi for eviction: ")
    );
    assert_eq!(response.result.code, 429);
}

#[tokio::test(start_paused = true)]
async fn eviction_of_another_pod_conflicts_and_does_nothing() {
    let with = |preconditions: Value| {
        review_request(move |request| request["object"]["deleteOptions"] = json!({"preconditions": preconditions}))
    };
    let current = || {
        let mut current = serde_json::to_value(pod()).unwrap();
        current["metadata"]["resourceVersion"] = json!("8");
        current
    };
    for (preconditions, text) in [
        (
            json!({"uid": "other"}),
            "the UID in the precondition (other) does not match the UID in record (p)",
        ),
        (
            json!({"uid": "p", "resourceVersion": "7"}),
            "the ResourceVersion in the precondition (7) does not match the ResourceVersion in record (8)",
        ),
    ] {
        let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
        let question = with(preconditions);
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let get = server.next_request().await;
            assert_eq!(get.method, Method::GET);
            get.with(&current());
        });
        assert!(!response.allowed);
        assert_eq!(
            (response.result.code, response.result.reason.as_str()),
            (409, "Conflict")
        );
        assert!(response.result.message.contains(text), "{}", response.result.message);
        assert!(server.is_left_alone().await, "no mark");
    }
    // The pod in the cache matches, so no request is needed.
    let (evictions, mut server, _changed) = evictions(vec![marked()], vec![pod()], vec![]);
    let response = evictions.review(&with(json!({"uid": "p"}))).await;
    assert_eq!(text(&response), (429, "TooManyRequests", IN_PROGRESS));
    assert!(server.is_left_alone().await);
}
