use drydock_runtime::fake::{ApiServer, api_server};
use http::Method;
use k8s_openapi::api::core::v1::Pod;

use super::*;

pub(super) fn instance() -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
        "spec": {"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"},
        "status": {"phase": "Running", "nodeName": "a", "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    }))
    .unwrap()
}

pub(super) fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "virt-launcher-web-1", "namespace": "shop", "uid": "p",
            "labels": {"kubevirt.io": "virt-launcher", "drydock.dev/launcher": "l1"},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "u",
                "controller": true,
            }],
        },
        "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"},
    }))
    .unwrap()
}

fn task() -> (PdbTask, ApiServer) {
    let (client, server) = api_server();
    let (context, _) = GuestContext::empty(client);
    context.instances.objects.show([instance()]);
    context.launchers.show([pod()]);
    (PdbTask::new(context), server)
}

#[tokio::test(start_paused = true)]
async fn pdb_refusal_is_reported_and_throttling_is_not() {
    let key = Key::namespaced("shop", "web");
    for (code, reason, reported) in [
        (403, "Forbidden", true),
        (409, "Conflict", false),
        (429, "TooManyRequests", false),
        (500, "InternalError", false),
    ] {
        let (task, mut server) = task();
        let served = async {
            let create = server.next_request().await;
            assert_eq!(create.method, Method::POST);
            create.refuse(code, reason);
            if reported {
                let status = server.next_request().await;
                assert!(status.path().ends_with("/virtualmachineinstances/web/status"));
                assert_eq!(
                    status.body["status"]["conditions"][0]["message"]
                        .as_str()
                        .map(|text| text.contains("403")),
                    Some(true)
                );
                status.with(&json!(instance()));
            }
        };
        let (reconciled, ()) = tokio::join!(task.reconcile(&key), served);
        assert!(reconciled.is_err(), "{code}");
        assert!(server.is_left_alone().await, "{code}");
    }
}
