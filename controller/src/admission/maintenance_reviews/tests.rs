use std::collections::BTreeMap;

use drydock_runtime::{
    Cache,
    fake::{ApiServer, api_server},
};
use http::Method;
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionReview},
};
use serde_json::json;

use super::*;

const MEDIK8S: &str = "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances";
const KUBEVIRT: &str = "/apis/nodemaintenance.kubevirt.io/v1beta1/nodemaintenances";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/drydock/leases";

fn object(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "nodemaintenance.medik8s.io/v1beta1", "kind": "NodeMaintenance",
        "metadata": {"name": name}, "spec": {"nodeName": node},
    })
}

fn review_request(operation: &str, new: &Value, old: &Value, dry_run: bool) -> AdmissionRequest<DynamicObject> {
    let review: AdmissionReview<DynamicObject> = serde_json::from_value(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "request-1",
            "kind": {"group": "nodemaintenance.medik8s.io", "version": "v1beta1", "kind": "NodeMaintenance"},
            "resource": {"group": "nodemaintenance.medik8s.io", "version": "v1beta1", "resource": "nodemaintenances"},
            "name": "", "operation": operation, "userInfo": {"username": "somebody"},
            "object": new, "oldObject": old, "dryRun": dry_run, "options": null,
        },
    }))
    .unwrap();
    review.try_into().unwrap()
}

/// Returns the review in a cluster with node `n`, with these maintenances of the newer group in the cache.
fn review(shown: &[Value]) -> (MaintenanceReview, ApiServer) {
    let (client, server) = api_server();
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    let shown = shown
        .iter()
        .map(|object| (Group::Medik8s, serde_json::from_value(object.clone()).unwrap()));
    let review = MaintenanceReview::new(
        client,
        Cache::filled([node]),
        Maintenances::filled(shown),
        "drydock",
        Arc::new(|node| vec![format!("{node} would be emptied")]),
    );
    (review, server)
}

fn text(response: &AdmissionResponse) -> &str {
    assert!(!response.allowed);
    assert_eq!(
        (response.result.code, response.result.reason.as_str()),
        (403, "Forbidden")
    );
    &response.result.message
}

/// Responds to requests according to their paths until `response` is complete.
async fn with_responses(
    mut server: ApiServer,
    responses: BTreeMap<(Method, String), Result<Value, u16>>,
    reviewing: impl Future<Output = AdmissionResponse>,
) -> (AdmissionResponse, Vec<String>) {
    let mut seen = Vec::new();
    let serve = async {
        loop {
            let request = server.next_request().await;
            let what = (request.method.clone(), request.path().to_owned());
            seen.push(format!("{} {}", what.0, what.1));
            match responses.get(&what) {
                Some(Ok(value)) => request.with(value),
                Some(Err(409)) => request.refuse(409, "AlreadyExists"),
                Some(Err(code)) => request.refuse(*code, "NotFound"),
                None => panic!("nobody expects {what:?}"),
            }
        }
    };
    let response = tokio::select! { response = reviewing => response, () = serve => unreachable!() };
    (response, seen)
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

fn lease(object: &str, seconds_ago: i64) -> Value {
    let made = clock::now() - jiff::SignedDuration::from_secs(seconds_ago);
    let mut lease = json!(reservation::of("n", object, "other", made));
    lease["metadata"]["resourceVersion"] = "5".into();
    lease
}

fn responses(
    more: impl IntoIterator<Item = (Method, String, Result<Value, u16>)>,
) -> BTreeMap<(Method, String), Result<Value, u16>> {
    let mut responses = BTreeMap::from([
        ((Method::GET, MEDIK8S.to_owned()), Ok(list(&[]))),
        ((Method::GET, KUBEVIRT.to_owned()), Err(404)),
        ((Method::POST, LEASES.to_owned()), Ok(lease("o", 0))),
    ]);
    responses.extend(
        more.into_iter()
            .map(|(method, path, response)| ((method, path), response)),
    );
    responses
}

#[tokio::test(start_paused = true)]
async fn new_maintenance_reserves_the_node_past_the_caches() {
    let (review, server) = review(&[]);
    let question = review_request("CREATE", &object("m", "n"), &Value::Null, false);
    let (response, seen) = with_responses(server, responses([]), review.respond(&question)).await;
    assert!(response.allowed, "{response:?}");
    assert_eq!(
        seen,
        [
            format!("POST {LEASES}"),
            format!("GET {MEDIK8S}"),
            format!("GET {KUBEVIRT}")
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn reservation_has_the_uid_of_the_object() {
    let (review, mut server) = review(&[]);
    let mut object = object("m", "n");
    object["metadata"]["uid"] = json!("u");
    let question = review_request("CREATE", &object, &Value::Null, false);
    let reviewing = review.respond(&question);
    let request = tokio::select! { _ = reviewing => unreachable!(), request = server.next_request() => request };
    assert_eq!(request.path(), LEASES);
    assert_eq!(request.body["spec"]["holderIdentity"], "u");
}

#[tokio::test(start_paused = true)]
async fn dry_run_writes_nothing_and_returns_warnings() {
    let (review, server) = review(&[]);
    let question = review_request("CREATE", &object("m", "n"), &Value::Null, true);
    let (response, seen) = with_responses(server, BTreeMap::new(), review.respond(&question)).await;
    assert_eq!(response.warnings.unwrap(), ["n would be emptied"]);
    assert!(response.allowed && seen.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_texts_are_those_that_clients_know() {
    let (review, server) = review(&[object("old", "n")]);
    let question = review_request("CREATE", &object("m", "missing"), &Value::Null, false);
    let gone = BTreeMap::from([((Method::GET, "/api/v1/nodes/missing".to_owned()), Err(404))]);
    let (response, _) = with_responses(server, gone, review.respond(&question)).await;
    assert_eq!(text(&response), "invalid nodeName, no node with name missing found");

    let taken = "invalid nodeName, a NodeMaintenance for node n already exists";
    let (review, server) = self::review(&[object("old", "n")]);
    let question = review_request("CREATE", &object("m", "n"), &Value::Null, false);
    let there = BTreeMap::from([((Method::GET, format!("{MEDIK8S}/old")), Ok(object("old", "n")))]);
    let (response, _) = with_responses(server, there, review.respond(&question)).await;
    assert_eq!(text(&response), taken);

    let (review, server) = self::review(&[]);
    let (old, new) = (object("m", "n"), object("m", "o"));
    let question = review_request("UPDATE", &new, &old, false);
    let (response, _) = with_responses(server, BTreeMap::new(), review.respond(&question)).await;
    assert_eq!(text(&response), "updating spec.NodeName isn't allowed");
}

#[tokio::test(start_paused = true)]
async fn deleted_maintenance_still_in_the_cache_blocks_no_creation() {
    let (review, server) = review(&[object("old", "n")]);
    let question = review_request("CREATE", &object("m", "n"), &Value::Null, false);
    let gone = responses([(Method::GET, format!("{MEDIK8S}/old"), Err(404))]);
    let (response, _) = with_responses(server, gone, review.respond(&question)).await;
    assert!(response.allowed, "{response:?}");
}

#[tokio::test(start_paused = true)]
async fn second_maintenance_is_refused_by_reservation_or_storage() {
    let taken = "invalid nodeName, a NodeMaintenance for node n already exists";
    let question = || review_request("CREATE", &object("m", "n"), &Value::Null, false);
    let reserved = || (Method::GET, format!("{LEASES}/maintenance-n"), Ok(lease("else/x", 3)));
    let conflict = (Method::POST, LEASES.to_owned(), Err(409));
    let (review, server) = review(&[]);
    let (response, _) = with_responses(server, responses([conflict, reserved()]), review.respond(&question())).await;
    let reason = "else/x is being created, or was deleted at once; in the latter case, try again in 72 s";
    assert_eq!(text(&response), format!("{taken}: {reason}"));

    let (review, server) = self::review(&[]);
    let stored = responses([
        (Method::GET, MEDIK8S.to_owned(), Ok(list(&[object("other", "n")]))),
        (Method::DELETE, format!("{LEASES}/maintenance-n"), Ok(lease("o", 0))),
    ]);
    let (response, seen) = with_responses(server, stored, review.respond(&question())).await;
    assert_eq!(text(&response), taken);
    assert_eq!(
        seen.last().unwrap(),
        &format!("DELETE {LEASES}/maintenance-n"),
        "it is given up"
    );
}

#[tokio::test(start_paused = true)]
async fn expired_or_own_reservation_is_taken_over() {
    for there in [lease("else/x", 76), lease("nodemaintenance.medik8s.io/m", 1)] {
        let (review, server) = review(&[]);
        let question = review_request("CREATE", &object("m", "n"), &Value::Null, false);
        let path = format!("{LEASES}/maintenance-n");
        let all = responses([
            (Method::POST, LEASES.to_owned(), Err(409)),
            (Method::GET, path.clone(), Ok(there.clone())),
            (Method::PUT, path, Ok(there)),
        ]);
        let (response, _) = with_responses(server, all, review.respond(&question)).await;
        assert!(response.allowed, "{response:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_admitted_without_api_response() {
    let (review, mut server) = review(&[]);
    let question = review_request("CREATE", &object("m", "n"), &Value::Null, false);
    let reviewing = review.respond(&question);
    let unresponsive = async {
        let _request = server.next_request().await;
        std::future::pending::<()>().await;
    };
    let response = tokio::select! { response = reviewing => response, () = unresponsive => unreachable!() };
    assert!(text(&response).contains("please try again"));
}
