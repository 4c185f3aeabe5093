//! Marks of instances that are to leave their nodes, as the planner writes them.

use drydock_api::kubevirt::{VirtualMachineInstance, status::Evacuation};
use drydock_core::eviction::mark;
use drydock_runtime::clock;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// Marks an instance to leave a node, if it is still as it was looked at. Returns it as it is then.
///
/// # Errors
/// If the API server does not do it; a conflict if the instance has changed.
pub(super) async fn set(
    api: &Api<VirtualMachineInstance>,
    instance: &VirtualMachineInstance,
    node: &str,
    evacuation: &Evacuation,
) -> kube::Result<VirtualMachineInstance> {
    apply(
        api,
        instance,
        mark::status(instance, Some((node, evacuation)), clock::now()),
    )
    .await
}

/// Takes an instance's mark away, if it is still as it was looked at. Returns it as it is then.
///
/// # Errors
/// If the API server does not do it; a conflict if the instance has changed.
pub(super) async fn take_away(
    api: &Api<VirtualMachineInstance>,
    instance: &VirtualMachineInstance,
) -> kube::Result<VirtualMachineInstance> {
    match apply(api, instance, mark::status(instance, None, clock::now())).await {
        // Somebody else has written some of it, which is left then and is no whole mark: all of it goes, whosever.
        Err(kube::Error::Api(refused)) if refused.is_invalid() => {
            let patch = json!({"metadata": identity(instance), "status": mark::removal(instance)});
            let parameters = PatchParams {
                field_manager: Some(mark::FIELD_MANAGER.into()),
                ..PatchParams::default()
            };
            api.patch_status(&instance.name_any(), &parameters, &Patch::Merge(patch))
                .await
        }
        done => done,
    }
}

async fn apply(
    api: &Api<VirtualMachineInstance>,
    instance: &VirtualMachineInstance,
    status: Value,
) -> kube::Result<VirtualMachineInstance> {
    let apply = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": identity(instance),
        "status": status,
    });
    let parameters = PatchParams::apply(mark::FIELD_MANAGER).force();
    api.patch_status(&instance.name_any(), &parameters, &Patch::Apply(apply))
        .await
}

/// Which instance is meant, and in which state.
fn identity(instance: &VirtualMachineInstance) -> Value {
    json!({
        "name": instance.name_any(),
        "uid": instance.uid(),
        "resourceVersion": instance.resource_version(),
    })
}

#[cfg(test)]
mod tests {
    use drydock_api::kubevirt::status::DrainRequest;
    use jiff::Timestamp;

    use super::*;
    use crate::asked_api_server::api_server;

    fn marked() -> VirtualMachineInstance {
        let instance: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "db", "uid": "1", "resourceVersion": "5"},
            "spec": {"domain": {"devices": {}}},
            "status": {"conditions": [
                {"type": "EvictionRequested", "status": "True"},
                {"type": "LiveMigratable", "status": "True"},
            ]},
        }))
        .unwrap();
        mark::marked(&instance, "a", &mark::new(DrainRequest::Taint, Timestamp::UNIX_EPOCH))
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_of_which_somebody_else_has_written_a_part_goes_as_a_whole() {
        let (client, mut server) = api_server();
        let (api, instance) = (Api::namespaced(client, "shop"), marked());
        let answers = async {
            let asked = server.asked().await;
            assert_eq!(asked.body["status"], json!({}));
            assert!(
                asked.query().contains("fieldManager=drydock-evacuation"),
                "{}",
                asked.query()
            );
            asked.refuse(422, "Invalid");
            let asked = server.asked().await;
            assert_eq!(asked.body["metadata"]["resourceVersion"], "5");
            let status = asked.body["status"].as_object().unwrap().clone();
            assert!(status["evacuation"].is_null() && status["evacuationNodeName"].is_null());
            let kept = status["conditions"].as_array().unwrap();
            assert_eq!((kept.len(), &kept[0]["type"]), (1, &json!("LiveMigratable")));
            asked.with(&json!(instance));
        };
        let (done, ()) = tokio::join!(take_away(&api, &instance), answers);
        done.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_is_not_taken_from_an_instance_that_has_changed() {
        let (client, mut server) = api_server();
        let (api, instance) = (Api::namespaced(client, "shop"), marked());
        let answer = async { server.asked().await.refuse(409, "Conflict") };
        let (done, ()) = tokio::join!(take_away(&api, &instance), answer);
        assert!(matches!(done, Err(kube::Error::Api(refused)) if refused.is_conflict()));
    }
}
