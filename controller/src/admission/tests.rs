//! Tests of the responses in the form in which API servers read them.

use drydock_api::kubevirt::names::MIGRATION_FINALIZER;
use drydock_core::admission::{VERSION, reserved::CONTROLLER};
use drydock_runtime::{Registry, fake::api_server};
use kube::{
    Client,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    evictions::{EvictionReviews, HeldEvictions},
    handlers,
};
use crate::{configuration_in_force::ConfigurationInForce, guest_context::GuestContext};

fn instance() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "shop"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "ioThreadsPolicy": "auto", "devices": {"disks": [{"name": "root"}]}},
            "volumes": [{"name": "root", "containerDisk": {"image": "example.org/disk"}}],
        },
    })
}

/// Returns the request of an API server.
fn review_request(operation: &str, user: &str, new: &Value, old: &Value) -> AdmissionRequest<DynamicObject> {
    let review: AdmissionReview<DynamicObject> = serde_json::from_value(json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance"},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"},
            "name": "vm",
            "namespace": "shop",
            "operation": operation,
            "userInfo": {"username": user},
            "object": new,
            "oldObject": old,
            "options": null,
        },
    }))
    .unwrap();
    review.try_into().unwrap()
}

async fn response_to(path: &str, question: AdmissionRequest<DynamicObject>) -> AdmissionResponse {
    response_with(path, question, api_server().0).await
}

/// Returns the response in a cluster with the instance `vm` and an API server for further requests.
async fn response_with(path: &str, question: AdmissionRequest<DynamicObject>, client: Client) -> AdmissionResponse {
    let (context, _) = GuestContext::empty(client);
    context
        .instances
        .objects
        .show([serde_json::from_value(instance()).unwrap()]);
    let (_, news) = watch::channel(0);
    let held = HeldEvictions::register(&mut Registry::default());
    let evictions = EvictionReviews::new(context.clone(), news, held);
    let handlers = handlers(ConfigurationInForce::default(), context, evictions);
    let (_, handler) = handlers.get(path).unwrap();
    handler.review(question).await
}

#[tokio::test]
async fn defaulting_patch_keeps_existing_fields() {
    let path = "/mutate/virtualmachineinstances";
    let response = response_to(path, review_request("CREATE", "somebody", &instance(), &Value::Null)).await;
    assert!(response.allowed);
    let patch: json_patch::Patch = serde_json::from_slice(&response.patch.unwrap()).unwrap();
    let mut whole = instance();
    json_patch::patch(&mut whole, &patch).unwrap();
    assert_eq!(whole["spec"]["domain"]["cpu"]["model"], "host-model");
    assert_eq!(whole["spec"]["domain"]["ioThreadsPolicy"], "auto");
    assert_eq!(whole["spec"]["domain"]["devices"]["interfaces"][0]["name"], "default");
    assert_eq!(whole["metadata"], instance()["metadata"]);
    // No default is missing now.
    let again = response_to(path, review_request("CREATE", "somebody", &whole, &Value::Null)).await;
    assert!(again.allowed && again.patch.is_none());
    // Applying the manifest again replaces lists, and must not change their content.
    let mut applied = whole.clone();
    applied["spec"]["domain"]["devices"]["disks"] = instance()["spec"]["domain"]["devices"]["disks"].clone();
    let update = response_to(path, review_request("UPDATE", "somebody", &applied, &whole)).await;
    let patch: json_patch::Patch = serde_json::from_slice(&update.patch.unwrap()).unwrap();
    json_patch::patch(&mut applied, &patch).unwrap();
    assert_eq!(applied, whole);
    // An object that cannot be read is admitted, because validation reports the error.
    let garbage = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {}, "spec": 7});
    let let_through = response_to(path, review_request("CREATE", "somebody", &garbage, &Value::Null)).await;
    assert!(let_through.allowed && let_through.patch.is_none());
}

fn migration(of: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"generateName": "move-"},
        "spec": {"vmiName": of},
    })
}

#[tokio::test]
async fn migrations_are_labelled_and_held() {
    let path = "/mutate/virtualmachineinstancemigrations";
    let response = response_to(
        path,
        review_request("CREATE", "somebody", &migration("vm"), &Value::Null),
    )
    .await;
    let patch: json_patch::Patch = serde_json::from_slice(&response.patch.unwrap()).unwrap();
    let mut whole = migration("vm");
    json_patch::patch(&mut whole, &patch).unwrap();
    assert_eq!(whole["metadata"]["labels"], json!({"kubevirt.io/vmi-name": "vm"}));
    assert_eq!(whole["metadata"]["finalizers"], json!([MIGRATION_FINALIZER]));
    whole["metadata"]["labels"] = json!({});
    let update = response_to(path, review_request("UPDATE", "somebody", &whole, &whole)).await;
    assert!(update.allowed && update.patch.is_none());
}

#[tokio::test(start_paused = true)]
async fn migration_is_admitted_if_migratable_and_user_authorized() {
    let path = "/validate/virtualmachineinstancemigrations";
    let create = |user: &str, migration: &Value| review_request("CREATE", user, migration, &Value::Null);
    assert!(response_to(path, create("somebody", &migration("vm"))).await.allowed);

    let (client, mut server) = api_server();
    let served = async { server.next_request().await.refuse(404, "NotFound") };
    let missing = migration("db");
    let (response, ()) = tokio::join!(response_with(path, create("somebody", &missing), client), served);
    assert!(!response.allowed);
    assert_eq!(
        (response.result.code, response.result.message.as_str()),
        (422, "the VMI \"db\" does not exist under the cluster")
    );

    let mut urgent = migration("vm");
    urgent["spec"]["priority"] = json!("system-critical");
    assert!(response_to(path, create(CONTROLLER, &urgent)).await.allowed);
    let response = response_to(path, create("somebody", &urgent)).await;
    let causes = response.result.details.unwrap().causes;
    assert_eq!(
        (causes[0].reason.as_str(), causes[0].field.as_str()),
        ("FieldReserved", "spec.priority")
    );

    let mut marked = migration("vm");
    marked["metadata"]["annotations"] = json!({"kubevirt.io/evacuationMigration": "node1"});
    assert!(response_to(path, create(CONTROLLER, &marked)).await.allowed);
    for review_request in [
        create("somebody", &marked),
        review_request("UPDATE", "somebody", &marked, &migration("vm")),
    ] {
        let causes = response_to(path, review_request).await.result.details.unwrap().causes;
        assert_eq!(
            (causes[0].reason.as_str(), causes[0].field.as_str()),
            ("FieldReserved", "metadata.annotations[kubevirt.io/evacuationMigration]")
        );
    }

    // The review of an update does not depend on the cluster.
    let (mut old, mut new) = (migration("db"), migration("db"));
    old["metadata"]["labels"] = json!({"kubevirt.io/vmi-name": "db"});
    new["metadata"]["labels"] = json!({"kubevirt.io/vmi-name": "vm"});
    assert!(
        response_to(path, review_request("UPDATE", "somebody", &old, &old))
            .await
            .allowed
    );
    let response = response_to(path, review_request("UPDATE", "somebody", &new, &old)).await;
    assert_eq!(
        response.result.message,
        "selector label can't be modified on an in-flight migration"
    );
}

#[tokio::test]
async fn all_errors_are_in_one_refusal() {
    let mut object = instance();
    object["spec"]["domain"]["devices"]["gpus"] = json!([{"name": "a"}]);
    object["spec"]["domain"]["cpu"] = json!({"core": 2, "sockets": 600});
    let response = response_to(
        "/validate/virtualmachineinstances",
        review_request("CREATE", "somebody", &object, &Value::Null),
    )
    .await;
    assert!(!response.allowed);
    assert_eq!(
        (response.result.code, response.result.reason.as_str()),
        (422, "Invalid")
    );
    assert_eq!(
        response.result.message,
        format!(
            "spec.domain.cpu.core is not a field of VirtualMachineInstance; did you mean cores?; \
             spec.domain.devices.gpus is not supported by Drydock {VERSION}; \
             spec.domain.cpu.sockets: `600` is not allowed; allowed: 1 to 512"
        )
    );
    let causes = response.result.details.unwrap().causes;
    let causes_shown: Vec<_> = causes
        .iter()
        .map(|cause| (cause.reason.as_str(), format!("{}: {}", cause.field, cause.message)))
        .collect();
    // The causes in the form that kubectl prints.
    assert_eq!(
        causes_shown,
        [
            (
                "FieldUnknown",
                "spec.domain.cpu.core: not a field of VirtualMachineInstance; did you mean cores?".to_owned()
            ),
            (
                "FieldValueNotSupported",
                format!("spec.domain.devices.gpus: not supported by Drydock {VERSION}")
            ),
            (
                "FieldValueInvalid",
                "spec.domain.cpu.sockets: `600` is not allowed; allowed: 1 to 512".to_owned()
            ),
        ]
    );
}

#[tokio::test]
async fn an_instance_is_changed_by_the_controller_only() {
    let mut changed = instance();
    changed["spec"]["architecture"] = json!("amd64");
    let path = "/validate/virtualmachineinstances";
    let response = response_to(path, review_request("UPDATE", "somebody", &changed, &instance())).await;
    assert_eq!(response.result.message, "update of VMI object is restricted");
    assert!(!response.allowed);
    assert!(
        response_to(path, review_request("UPDATE", CONTROLLER, &changed, &instance()))
            .await
            .allowed
    );
    assert!(
        response_to(path, review_request("DELETE", "somebody", &Value::Null, &changed))
            .await
            .allowed
    );
}

#[tokio::test]
async fn each_kind_has_a_validation() {
    for (plural, prefix) in [
        ("virtualmachines", "spec.runStrategy must be set"),
        ("virtualmachineinstances", "spec must be set"),
        ("virtualmachineinstancereplicasets", "spec.selector"),
        ("virtualmachineinstancemigrations", "spec.vmiName must be set"),
    ] {
        let nothing = json!({"apiVersion": "kubevirt.io/v1", "kind": "X", "metadata": {"name": "x"}});
        let response = response_to(
            &format!("/validate/{plural}"),
            review_request("CREATE", "somebody", &nothing, &Value::Null),
        )
        .await;
        let message = response.result.message;
        assert!(message.starts_with(prefix), "{plural}: {message}");
    }
}
