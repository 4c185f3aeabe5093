//! Reviews creations and changes of NodeMaintenances.
//!
//! ```text
//!  CREATE ─▶ node exists? ─▶ no maintenance yet? ─▶ etcd keeps quorum? ─▶ node reserved ─▶ still none? ─▶ allowed
//!  UPDATE ─▶ same node? ─▶ allowed
//! ```
//!
//! The messages and their order are those of the node maintenance operators, whose clients search for them. If two
//! maintenances are created at the same time, one is refused, regardless of their groups and of the replicas that
//! review them: see [`drydock_core::maintenance::reservation`]. A dry run reserves nothing and returns a preview as
//! warnings.

mod quorum;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use drydock_api::maintenance::{Group, NodeMaintenance};
use drydock_core::maintenance::{is_over, reservation};
use drydock_runtime::{Cache, Key, chain, clock};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    core::admission::{AdmissionResponse, Operation},
};
use serde_json::Value;
use tracing::{debug, warn};

use super::{ReviewRequest, denied_with, raw};
use crate::{
    maintenances::Maintenances,
    requests::{deleting_version, writing},
    webhook_server::{Handlers, handlers::Handler},
};

/// Path of the webhook.
pub(crate) const PATH: &str = "/validate/nodemaintenances";
/// Time limit of all requests to the API server together. It is shorter than the API server's timeout of the webhook.
const WITHIN: Duration = Duration::from_secs(8);
/// Maximum number of attempts to reserve a node, because two requests may take over an expired reservation at the same
/// time.
const TRIES: usize = 3;
/// Status code and reason of refusals, as in the operators.
const FORBIDDEN: (u16, &str) = (403, "Forbidden");

/// Returns the preview of a drain of the node with this name, one line for each item.
pub(crate) type Preview = Arc<dyn Fn(&str) -> Vec<String> + Send + Sync>;

/// Reviews NodeMaintenances.
#[derive(Clone)]
pub(crate) struct MaintenanceReview {
    client: Client,
    nodes: Cache<Node>,
    maintenances: Maintenances,
    reservations: Api<Lease>,
    preview: Preview,
}

/// Human-readable message of a refusal.
type RefusalMessage = String;

impl MaintenanceReview {
    /// Creates a review over these caches and the API server. Reservations are created in `namespace`.
    pub(crate) fn new(
        client: Client,
        nodes: Cache<Node>,
        maintenances: Maintenances,
        namespace: &str,
        preview: Preview,
    ) -> Self {
        Self {
            reservations: Api::namespaced(client.clone(), namespace),
            client,
            nodes,
            maintenances,
            preview,
        }
    }

    /// Returns the handler of [`PATH`].
    pub(crate) fn handlers(self) -> Handlers {
        let handler = Handler::from(move |request: ReviewRequest| {
            let review = self.clone();
            async move { review.respond(&request).await }
        });
        Handlers::from_iter([(PATH, handler)])
    }

    async fn respond(&self, request: &ReviewRequest) -> AdmissionResponse {
        let response = AdmissionResponse::from(request);
        let Some(group) = Group::named(&request.kind.group) else {
            return refused(
                response,
                &format!("NodeMaintenance is not of group {:?}", request.kind.group),
            );
        };
        let (new, old) = (raw(request.object.as_ref()), raw(request.old_object.as_ref()));
        match (&request.operation, new, old) {
            (Operation::Create, Some(new), _) => {
                let node = node_name(&new);
                match tokio::time::timeout(WITHIN, self.created(group, &new, node, request)).await {
                    Ok(Ok(warnings)) => warned(response, warnings),
                    Ok(Err(why)) => refused(response, &why),
                    Err(_) => refused(
                        response,
                        "could not get node for validating spec.NodeName, please try again: the API server did not respond in time",
                    ),
                }
            }
            (Operation::Update, Some(new), Some(old)) if node_name(&new) != node_name(&old) => {
                refused(response, "updating spec.NodeName isn't allowed")
            }
            _ => response,
        }
    }

    /// Returns the warnings for a new maintenance that is admitted.
    async fn created(
        &self,
        group: Group,
        new: &Value,
        node: &str,
        request: &ReviewRequest,
    ) -> Result<Vec<String>, RefusalMessage> {
        let found = self.node(node).await?;
        self.none_shown(node).await?;
        quorum::check(&self.client, group, &found).await?;
        if request.dry_run {
            return Ok((self.preview)(node));
        }
        let name = new
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let object = format!("{}/{name}", group.as_str());
        let uid = new.pointer("/metadata/uid").and_then(Value::as_str);
        let reserved = self.reserve(node, &object, uid.unwrap_or(&request.uid)).await?;
        if let Err(why) = self.none_stored(node).await {
            self.give_up(&reserved).await;
            return Err(why);
        }
        Ok(Vec::new())
    }

    async fn node(&self, name: &str) -> Result<Arc<Node>, RefusalMessage> {
        if let Some(node) = self.nodes.get(&Key::cluster(name)) {
            return Ok(node);
        }
        let missing = || format!("invalid nodeName, no node with name {name} found");
        // Names with these characters are not valid in a path of the API server.
        if name.is_empty() || name.contains(['/', '%', '?', '#']) {
            return Err(missing());
        }
        match Api::<Node>::all(self.client.clone()).get_opt(name).await {
            Ok(Some(node)) => Ok(Arc::new(node)),
            Ok(None) => Err(missing()),
            Err(error) => Err(format!(
                "could not get node for validating spec.NodeName, please try again: {}",
                chain(&error)
            )),
        }
    }

    /// Checks that a node has no maintenance in the caches. Cached maintenances are confirmed with the API server,
    /// because the caches may be outdated.
    async fn none_shown(&self, node: &str) -> Result<(), RefusalMessage> {
        for (group, shown) in self.maintenances.of_node(node) {
            let api = Api::<NodeMaintenance>::all_with(self.client.clone(), &group);
            let stored = api.get_opt(&shown.name_any()).await.map_err(|error| unsure(&error))?;
            if stored.is_some_and(|stored| stored.spec.node_name == node && !is_over(&stored)) {
                return Err(exists(node));
            }
        }
        Ok(())
    }

    /// Checks that the API server has no maintenance of a node, bypassing all caches.
    async fn none_stored(&self, node: &str) -> Result<(), RefusalMessage> {
        let [one, other] = Group::ALL.map(|group| self.none_stored_of(group, node));
        tokio::try_join!(one, other).map(|_| ())
    }

    async fn none_stored_of(&self, group: Group, node: &str) -> Result<(), RefusalMessage> {
        let api = Api::<NodeMaintenance>::all_with(self.client.clone(), &group);
        match api.list(&ListParams::default()).await {
            Ok(stored)
                if stored
                    .items
                    .iter()
                    .any(|stored| stored.spec.node_name == node && !is_over(stored)) =>
            {
                Err(exists(node))
            }
            Ok(_) => Ok(()),
            // The kind is not installed in this API group.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(unsure(&error)),
        }
    }

    /// Reserves a node for an object with this UID. Returns the reservation.
    async fn reserve(&self, node: &str, object: &str, uid: &str) -> Result<Lease, RefusalMessage> {
        let parameters = writing();
        for _ in 0..TRIES {
            let now = clock::now();
            let mut wanted = reservation::of(node, object, uid, now);
            match self.reservations.create(&parameters, &wanted).await {
                Ok(made) => return Ok(made),
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(unsure(&error)),
            }
            let name = reservation::name(node);
            let Some(there) = self.reservations.get_opt(&name).await.map_err(|error| unsure(&error))? else {
                continue;
            };
            if !reservation::is_free(&there, object, now) {
                debug!(node, object, "another maintenance of this node is being created");
                return Err(format!("{}: {}", exists(node), reservation::message(&there, now)));
            }
            wanted.metadata.resource_version = there.metadata.resource_version;
            match self.reservations.replace(&name, &parameters, &wanted).await {
                Ok(taken) => return Ok(taken),
                Err(kube::Error::Api(status)) if status.code == 409 || status.is_not_found() => {}
                Err(error) => return Err(unsure(&error)),
            }
        }
        Err(exists(node))
    }

    /// Deletes a reservation that is not needed. If that fails, the reservation expires.
    async fn give_up(&self, reserved: &Lease) {
        let parameters = deleting_version(reserved.uid(), reserved.resource_version());
        if let Err(error) = self.reservations.delete(&reserved.name_any(), &parameters).await {
            debug!(error = %chain(&error), "could not delete a reservation; the reservation will expire");
        }
    }
}

fn node_name(object: &Value) -> &str {
    object
        .pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn exists(node: &str) -> RefusalMessage {
    format!("invalid nodeName, a NodeMaintenance for node {node} already exists")
}

fn unsure(error: &kube::Error) -> RefusalMessage {
    warn!(error = %chain(error), "maintenance denied: a request to the API server failed");
    format!(
        "could not list NodeMaintenances for validating spec.NodeName, please try again: {}",
        chain(error)
    )
}

fn refused(response: AdmissionResponse, why: &str) -> AdmissionResponse {
    denied_with(response, why, FORBIDDEN)
}

fn warned(mut response: AdmissionResponse, warnings: Vec<String>) -> AdmissionResponse {
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    response
}
