//! Sets and removes evacuation requests in the status of instances.

use drydock_api::kubevirt::{VirtualMachineInstance, names::conditions::EVICTION_REQUESTED, status::Evacuation};
use drydock_core::eviction::evacuation_request;
use drydock_runtime::{clock, version_of};
use json_patch::{PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    core::Status,
};
use serde_json::{Value, json};

/// Status code of the API server for a JSON patch with a failed test.
const UNPROCESSABLE: u16 = 422;
const CONFLICT: u16 = 409;

/// Request for an instance to leave a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvacuationRequest<'a> {
    pub(crate) node: &'a str,
    pub(crate) evacuation: &'a Evacuation,
}

impl EvacuationRequest<'_> {
    /// Marks an instance that has not changed since it was read, because it may have been marked in the meantime.
    /// Returns the updated instance.
    ///
    /// # Errors
    /// If the request to the API server fails; with a conflict if the instance was replaced or has changed.
    pub(crate) async fn set(
        self,
        api: &Api<VirtualMachineInstance>,
        instance: &VirtualMachineInstance,
        dry_run: bool,
    ) -> kube::Result<VirtualMachineInstance> {
        let apply = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": version_of(instance),
            "status": evacuation_request::status(instance, self.node, self.evacuation, clock::now()),
        });
        let mut parameters = PatchParams::apply(evacuation_request::FIELD_MANAGER).force();
        parameters.dry_run = dry_run;
        api.patch_status(&instance.name_any(), &parameters, &Patch::Apply(apply))
            .await
    }
}

/// Removes the evacuation request of an instance if the request has not changed since it was read. Returns the updated
/// instance.
///
/// Server-side apply without the evacuation request would leave the parts that another field manager has written. The
/// patch does not require the version that was read either, because an agent writes to an instance that has just
/// arrived.
///
/// # Errors
/// If the request to the API server fails; with a conflict if the evacuation request has changed.
pub(crate) async fn remove_from(
    api: &Api<VirtualMachineInstance>,
    instance: &VirtualMachineInstance,
) -> kube::Result<VirtualMachineInstance> {
    let parameters = PatchParams {
        field_manager: Some(evacuation_request::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let patch = Patch::<()>::Json(removal(instance));
    match api.patch_status(&instance.name_any(), &parameters, &patch).await {
        // A test of the patch has failed.
        Err(kube::Error::Api(status)) if status.code == UNPROCESSABLE => {
            let conflict = Status::failure(&status.message, "Conflict").with_code(CONFLICT);
            Err(kube::Error::Api(Box::new(conflict)))
        }
        result => result,
    }
}

/// Returns a patch that removes all parts of an instance's mark if they have not changed, regardless of their field
/// managers.
fn removal(instance: &VirtualMachineInstance) -> json_patch::Patch {
    let mut operations = vec![test(&["metadata", "uid"], json!(instance.uid()))];
    let status = instance.status.clone().unwrap_or_default();
    if let Some(node) = status.evacuation_node_name {
        let path = ["status", "evacuationNodeName"];
        operations.extend([test(&path, json!(node)), remove(&path)]);
    }
    if let Some(evacuation) = status.evacuation {
        operations.extend([
            test(&["status", "evacuation", "requestedBy"], json!(evacuation.requested_by)),
            test(&["status", "evacuation", "requestedAt"], json!(evacuation.requested_at)),
            remove(&["status", "evacuation"]),
        ]);
    }
    let mut conditions = status.conditions.iter();
    if let Some(index) = conditions.position(|condition| condition.type_ == EVICTION_REQUESTED) {
        let index = index.to_string();
        let path = ["status", "conditions", &index];
        let type_ = ["status", "conditions", &index, "type"];
        operations.extend([test(&type_, json!(EVICTION_REQUESTED)), remove(&path)]);
    }
    json_patch::Patch(operations)
}

fn test(path: &[&str], value: Value) -> PatchOperation {
    let path = PointerBuf::from_tokens(path.iter().copied());
    PatchOperation::Test(TestOperation { path, value })
}

fn remove(path: &[&str]) -> PatchOperation {
    let path = PointerBuf::from_tokens(path.iter().copied());
    PatchOperation::Remove(RemoveOperation { path })
}

#[cfg(test)]
mod tests {
    use drydock_api::kubevirt::status::DrainRequest;
    use drydock_runtime::fake::api_server;
    use jiff::Timestamp;

    use super::*;

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
        evacuation_request::marked(
            &instance,
            "a",
            &evacuation_request::new(DrainRequest::Taint, Timestamp::UNIX_EPOCH),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_is_taken_away_as_a_whole_and_nothing_else() {
        let (client, mut server) = api_server();
        let (api, instance) = (Api::namespaced(client, "shop"), marked());
        let serve = async {
            let request = server.next_request().await;
            assert!(
                request.query().contains("fieldManager=drydock-evacuation"),
                "{}",
                request.query()
            );
            let patch: json_patch::Patch = serde_json::from_value(request.body.clone()).unwrap();
            // Another writer changes the object in the meantime.
            let mut stored = json!(instance);
            stored["metadata"]["resourceVersion"] = json!("6");
            stored["status"]["phase"] = json!("Running");
            let others = stored["status"]["conditions"].as_array_mut().unwrap();
            others.push(json!({"type": "Ready", "status": "True"}));
            json_patch::patch(&mut stored, &patch).unwrap();
            assert!(
                stored["status"].get("evacuation").is_none() && stored["status"].get("evacuationNodeName").is_none()
            );
            let kept = stored["status"]["conditions"].as_array().unwrap();
            let kept: Vec<_> = kept.iter().map(|condition| &condition["type"]).collect();
            assert_eq!(kept, ["LiveMigratable", "Ready"]);
            request.with(&stored);
        };
        let (done, ()) = tokio::join!(remove_from(&api, &instance), serve);
        assert_eq!(done.unwrap().status.unwrap().evacuation_node_name, None);
    }

    #[test]
    fn no_other_mark_is_taken_away() {
        let patch = removal(&marked());
        let changes: [(&str, Value); 5] = [
            ("/metadata/uid", json!("2")),
            ("/status/evacuationNodeName", json!("b")),
            ("/status/evacuation/requestedBy", json!("Eviction")),
            ("/status/evacuation/requestedAt", json!("1970-01-01T00:00:01Z")),
            ("/status/conditions/0/type", json!("Paused")),
        ];
        for (path, value) in changes {
            let mut stored = json!(marked());
            *stored.pointer_mut(path).unwrap() = value;
            let before = stored.clone();
            assert!(json_patch::patch(&mut stored, &patch).is_err(), "{path}");
            assert_eq!(stored, before, "{path}");
        }
        // The instance has only a part of a mark, which is removed.
        for part in ["evacuation", "evacuationNodeName", "conditions"] {
            let mut stored = json!(marked());
            stored["status"].as_object_mut().unwrap().remove(part);
            let instance = serde_json::from_value(stored.clone()).unwrap();
            json_patch::patch(&mut stored, &removal(&instance)).unwrap();
            let left: VirtualMachineInstance = serde_json::from_value(stored).unwrap();
            let left = left.status.unwrap();
            assert_eq!((left.evacuation, left.evacuation_node_name), (None, None), "{part}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_that_has_changed_is_a_conflict() {
        let (client, mut server) = api_server();
        let (api, instance) = (Api::namespaced(client, "shop"), marked());
        let serve = async { server.next_request().await.refuse(422, "Invalid") };
        let (done, ()) = tokio::join!(remove_from(&api, &instance), serve);
        assert!(matches!(done, Err(kube::Error::Api(refused)) if refused.is_conflict()));
    }

    #[tokio::test(start_paused = true)]
    async fn mark_requires_the_version_that_was_read() {
        let instance = marked();
        let evacuation = evacuation_request::new(DrainRequest::Taint, Timestamp::UNIX_EPOCH);
        let mark = EvacuationRequest {
            node: "a",
            evacuation: &evacuation,
        };
        let (client, mut server) = api_server();
        let api = Api::namespaced(client, "shop");
        let serve = async {
            let request = server.next_request().await;
            assert_eq!(request.body["metadata"]["uid"], "1");
            assert_eq!(request.body["metadata"]["resourceVersion"], "5");
            assert_eq!(request.body["status"]["evacuationNodeName"], "a");
            request.with(&json!(instance));
        };
        let (done, ()) = tokio::join!(mark.set(&api, &instance, false), serve);
        done.unwrap();
    }
}
