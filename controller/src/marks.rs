//! Marks of instances that are to leave their nodes, as they are written and taken away.

use drydock_api::kubevirt::{VirtualMachineInstance, status::Evacuation};
use drydock_core::eviction::mark;
use drydock_runtime::clock;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// That an instance is to leave a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark<'a> {
    pub(crate) node: &'a str,
    pub(crate) evacuation: &'a Evacuation,
}

/// In which state an instance has to be to be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// As it was looked at.
    Unchanged,
    /// In any, as long as it is the same instance.
    Any,
}

impl Mark<'_> {
    /// Marks an instance. Returns it as it is then.
    ///
    /// # Errors
    /// If the API server does not do it; a conflict if the instance is another, or not in that state any more.
    pub(crate) async fn set(
        self,
        api: &Api<VirtualMachineInstance>,
        instance: &VirtualMachineInstance,
        state: State,
        dry_run: bool,
    ) -> kube::Result<VirtualMachineInstance> {
        let apply = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": identity(instance, state),
            "status": mark::status(instance, self.node, self.evacuation, clock::now()),
        });
        let mut parameters = PatchParams::apply(mark::FIELD_MANAGER).force();
        parameters.dry_run = dry_run;
        api.patch_status(&instance.name_any(), &parameters, &Patch::Apply(apply))
            .await
    }
}

/// Takes an instance's mark away, if it is still as it was looked at. Returns it as it is then.
///
/// It is no apply without the mark: that leaves what another field manager has written of it, if only a part.
///
/// # Errors
/// If the API server does not do it; a conflict if the instance has changed.
pub(crate) async fn take_away(
    api: &Api<VirtualMachineInstance>,
    instance: &VirtualMachineInstance,
) -> kube::Result<VirtualMachineInstance> {
    let patch = json!({
        "metadata": identity(instance, State::Unchanged),
        "status": mark::removal(instance),
    });
    let parameters = PatchParams {
        field_manager: Some(mark::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    api.patch_status(&instance.name_any(), &parameters, &Patch::Merge(patch))
        .await
}

/// Which instance is meant, and in which state.
fn identity(instance: &VirtualMachineInstance, state: State) -> Value {
    let mut identity = json!({"name": instance.name_any(), "uid": instance.uid()});
    if state == State::Unchanged {
        identity["resourceVersion"] = json!(instance.resource_version());
    }
    identity
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
    async fn a_mark_is_taken_away_as_a_whole_and_nothing_else() {
        let (client, mut server) = api_server();
        let (api, instance) = (Api::namespaced(client, "shop"), marked());
        let answers = async {
            let asked = server.asked().await;
            assert!(
                asked.query().contains("fieldManager=drydock-evacuation"),
                "{}",
                asked.query()
            );
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

    #[tokio::test(start_paused = true)]
    async fn the_planner_marks_an_instance_as_it_looked_at_it_and_an_eviction_in_any_state() {
        let instance = marked();
        let evacuation = mark::new(DrainRequest::Taint, Timestamp::UNIX_EPOCH);
        let mark = Mark {
            node: "a",
            evacuation: &evacuation,
        };
        for (state, version) in [(State::Unchanged, json!("5")), (State::Any, Value::Null)] {
            let (client, mut server) = api_server();
            let api = Api::namespaced(client, "shop");
            let answers = async {
                let asked = server.asked().await;
                assert_eq!(asked.body["metadata"]["uid"], "1");
                assert_eq!(asked.body["metadata"]["resourceVersion"], version);
                assert_eq!(asked.body["status"]["evacuationNodeName"], "a");
                asked.with(&json!(instance));
            };
            let (done, ()) = tokio::join!(mark.set(&api, &instance, state, false), answers);
            done.unwrap();
        }
    }
}
