//! Reviews deletions of Drydock's components. No component may be deleted while other objects need it.
//!
//! The verdict is derived from the caches of the kinds, without a request. If a cache is not synced, or its watch has a
//! problem, the deletion is refused temporarily, because the cache may lack objects. A kind that the API server does
//! not serve has no objects.

use drydock_api::{
    kubevirt::{VirtualMachine, VirtualMachineInstanceReplicaSet},
    maintenance::{self, Group},
    removal::CONFIRM,
};
use drydock_core::removal::{RemainingObjects, RemovalVerdict, ReviewedDeletion, verdict, webhook::PATH};
use drydock_runtime::{Cache, WatchProblem};
use kube::{ResourceExt, core::admission::AdmissionResponse};
use tracing::info;

use super::{ReviewRequest, denied_with};
use crate::{
    instances::Instances,
    maintenances::Maintenances,
    webhook_server::{Handlers, handlers::Handler},
};

/// Status code and reason of a refusal because of remaining objects.
const IN_USE: (u16, &str) = (403, "Forbidden");
/// Status code and reason of a temporary refusal.
const UNKNOWN: (u16, &str) = (503, "ServiceUnavailable");

/// Reviews deletions.
#[derive(Clone, Debug)]
pub(crate) struct RemovalReview {
    machines: Cache<VirtualMachine>,
    instances: Instances,
    sets: Cache<VirtualMachineInstanceReplicaSet>,
    maintenances: Maintenances,
}

impl RemovalReview {
    /// Creates a review with these caches.
    pub(crate) fn new(
        machines: Cache<VirtualMachine>,
        instances: Instances,
        sets: Cache<VirtualMachineInstanceReplicaSet>,
        maintenances: Maintenances,
    ) -> Self {
        Self {
            machines,
            instances,
            sets,
            maintenances,
        }
    }

    /// Returns the handler of [`PATH`].
    pub(crate) fn handlers(self) -> Handlers {
        let handler = Handler::from(move |request: ReviewRequest| {
            let review = self.clone();
            async move { review.review_deletion(&request) }
        });
        Handlers::from_iter([(PATH, handler)])
    }

    fn review_deletion(&self, request: &ReviewRequest) -> AdmissionResponse {
        let response = AdmissionResponse::from(request);
        let place = request
            .namespace
            .as_deref()
            .filter(|_| request.kind.kind != "Namespace");
        let place = place.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let part = format!("{} {place}{}", request.kind.kind, request.name);
        let annotations = request.old_object.as_ref().map(ResourceExt::annotations);
        let deletion = ReviewedDeletion {
            user: request.user_info.username.as_deref().unwrap_or_default(),
            part: &part,
            confirmed: annotations
                .and_then(|annotations| annotations.get(CONFIRM))
                .map(String::as_str)
                == Some("true"),
        };
        match verdict(deletion, &self.left()) {
            RemovalVerdict::Allowed => response,
            RemovalVerdict::InUse(why) => {
                info!(
                    part,
                    user = deletion.user,
                    "deletion denied: virtual machines or node maintenances still exist"
                );
                denied_with(response, why, IN_USE)
            }
            RemovalVerdict::Unknown(why) => denied_with(response, why, UNKNOWN),
        }
    }

    /// Returns the objects that still need Drydock.
    fn left(&self) -> Vec<RemainingObjects> {
        let [medik8s, kubevirt] =
            Group::ALL.map(|group| left(maintenance::KIND, self.maintenances.of_group(group).shown()));
        vec![
            left("VirtualMachine", &self.machines),
            left("VirtualMachineInstanceReplicaSet", &self.sets),
            left("VirtualMachineInstance", self.instances.objects.shown()),
            medik8s,
            kubevirt,
        ]
    }
}

/// Returns the objects of a cache, including those that cannot be read.
fn left<K>(kind: &'static str, cache: &Cache<K>) -> RemainingObjects {
    let state = cache.sync_state();
    if state.problem == Some(WatchProblem::KindMissing) {
        return RemainingObjects::all(kind, Vec::new());
    }
    let keys = cache.keys().into_iter();
    let mut names: Vec<String> = keys
        .chain(cache.unreadable().into_keys())
        .map(|key| key.to_string())
        .collect();
    names.sort();
    names.dedup();
    RemainingObjects {
        count: state.is_clear().then_some(names.len()),
        kind,
        names,
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::maintenance::NodeMaintenance;
    use serde_json::{Value, json};

    use super::*;

    fn review(machines: Cache<VirtualMachine>, maintenances: Maintenances) -> RemovalReview {
        RemovalReview::new(machines, Instances::filled([]), Cache::filled([]), maintenances)
    }

    fn machine() -> VirtualMachine {
        let machine = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
        });
        serde_json::from_value(machine).unwrap()
    }

    /// Returns the deletion of the controller's Deployment, which has these annotations.
    fn request(annotations: &Value) -> ReviewRequest {
        let kind = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
        let resource = json!({"group": "apps", "version": "v1", "resource": "deployments"});
        serde_json::from_value(json!({
            "uid": "u", "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": "drydock-controller", "namespace": "drydock", "operation": "DELETE",
            "userInfo": {"username": "admin"},
            "oldObject": {
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "drydock-controller", "namespace": "drydock", "annotations": annotations},
            },
            "dryRun": false,
        }))
        .unwrap()
    }

    #[test]
    fn deletion_is_refused_while_the_caches_hold_dependents() {
        let none = json!({});
        let maintenance: NodeMaintenance =
            serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": {"nodeName": "n"}})).unwrap();
        for (name, review, annotations, expected) in [
            (
                "nothing",
                review(Cache::filled([]), Maintenances::filled([])),
                &none,
                None,
            ),
            (
                "a machine",
                review(Cache::filled([machine()]), Maintenances::filled([])),
                &none,
                Some((
                    403,
                    "Deployment drydock/drydock-controller is needed by 1 VirtualMachine (default/web)",
                )),
            ),
            (
                "a machine, confirmed",
                review(Cache::filled([machine()]), Maintenances::filled([])),
                &json!({"drydock.dev/confirm-removal": "true"}),
                None,
            ),
            (
                "a machine, not quite confirmed",
                review(Cache::filled([machine()]), Maintenances::filled([])),
                &json!({"drydock.dev/confirm-removal": "false"}),
                Some((403, "VirtualMachine (default/web)")),
            ),
            (
                "a maintenance of KubeVirt's group",
                review(
                    Cache::filled([]),
                    Maintenances::filled([(Group::KubeVirt, maintenance)]),
                ),
                &none,
                Some((403, "1 NodeMaintenance (m)")),
            ),
            (
                "machines that are not listed yet",
                review(Cache::default(), Maintenances::filled([])),
                &none,
                Some((503, "cannot determine yet whether any VirtualMachine exists")),
            ),
        ] {
            let response = review.review_deletion(&request(annotations));
            assert_eq!(response.allowed, expected.is_none(), "{name}");
            if let Some((code, text)) = expected {
                assert_eq!(response.result.code, code, "{name}");
                assert!(
                    response.result.message.contains(text),
                    "{name}: {}",
                    response.result.message
                );
            }
        }
    }
}
