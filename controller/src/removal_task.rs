//! Keeps the webhook configuration that protects Drydock from being removed while it is in use.
//!
//! ```text
//!  drydock-removal ──watch──▶ RemovalTask ──▶ core: as wanted? ──▶ the leader applies it
//!       ClusterRole ──get──────────┘ (its owner)
//! ```
//!
//! The CA bundle in it is written by [`certificates`](crate::certificates).

use std::time::Duration;

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    removal::{CONFIGURATION, OWNER},
};
use drydock_core::removal::webhook::{configuration, is_as_wanted};
use drydock_runtime::{Cache, Key, Trigger, Watch, WatchStarter, lease::LeaderTerm};
use jiff::Timestamp;
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, rbac::v1::ClusterRole};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::Value;
use tracing::info;

use crate::{certificates::SERVICE, reconciler::triggered::Triggered};

/// Keeps the configuration.
pub(crate) struct RemovalTask {
    configurations: Api<ValidatingWebhookConfiguration>,
    owners: Api<ClusterRole>,
    shown: Cache<ValidatingWebhookConfiguration>,
    namespace: String,
}

impl RemovalTask {
    /// Starts watching. `namespace` is the controller's own; the triggers are notified of changes of the configuration.
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        namespace: String,
        (changed, on_change): (&Trigger, &Trigger),
    ) -> Self {
        let watch = Watch::<ValidatingWebhookConfiguration>::one(client.clone(), CONFIGURATION, "removal webhook");
        Self {
            shown: watches.start(watch.wakes(changed).wakes(on_change)),
            configurations: Api::all(client.clone()),
            owners: Api::all(client),
            namespace,
        }
    }

    /// Returns the cache of the configuration.
    pub(crate) fn shown(&self) -> Cache<ValidatingWebhookConfiguration> {
        self.shown.clone()
    }
}

impl Triggered for RemovalTask {
    type Kept = ();
    const NAME: &'static str = "removal";
    const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
    const FAILURE: &'static str = "the webhook that protects Drydock from removal could not be configured";

    async fn wait_until_synced(&self) {
        self.shown.wait_until_synced().await;
    }

    /// Applies the configuration unless it is up to date.
    async fn reconcile(&self, (): &mut (), term: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
        let wanted = change(&self.owners, &self.shown, &self.namespace).await?;
        let Some(wanted) = wanted.filter(|_| term.is_valid()) else {
            return Ok(None);
        };
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        self.configurations
            .patch(CONFIGURATION, &parameters, &Patch::Apply(wanted))
            .await?;
        info!("Drydock is protected from being removed while virtual machines or maintenances exist");
        Ok(None)
    }
}

/// Returns the desired configuration, if the actual one differs. It is not restored while its owner is being deleted.
async fn change(
    owners: &Api<ClusterRole>,
    shown: &Cache<ValidatingWebhookConfiguration>,
    namespace: &str,
) -> kube::Result<Option<Value>> {
    let owner = owners.get(OWNER).await?;
    let Some(uid) = owner.uid().filter(|_| owner.metadata.deletion_timestamp.is_none()) else {
        return Ok(None);
    };
    let wanted = configuration(namespace, SERVICE, &uid);
    let shown = shown.get(&Key::cluster(CONFIGURATION));
    let found = shown.and_then(|shown| serde_json::to_value(&*shown).ok());
    Ok(found
        .is_none_or(|found| !is_as_wanted(&found, &wanted))
        .then_some(wanted))
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::api_server;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn webhook_configuration_is_restored_unless_the_owner_goes() {
        let stored = |uid: &str| -> ValidatingWebhookConfiguration {
            serde_json::from_value(configuration("drydock", SERVICE, uid)).unwrap()
        };
        let mut without_webhooks = stored("u1");
        without_webhooks.webhooks = None;
        let role = json!({"metadata": {"name": OWNER, "uid": "u1"}});
        let leaving = json!({"metadata": {"name": OWNER, "uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (name, owner, shown, expected) in [
            ("there is none", &role, Cache::filled([]), true),
            ("it is there", &role, Cache::filled([stored("u1")]), false),
            ("it has another owner", &role, Cache::filled([stored("u0")]), true),
            ("it is changed", &role, Cache::filled([without_webhooks]), true),
            ("the owner goes", &leaving, Cache::filled([]), false),
        ] {
            let (client, mut server) = api_server();
            let owners = Api::all(client);
            let serve = async { server.next_request().await.with(owner) };
            let (change, ()) = tokio::join!(change(&owners, &shown, "drydock"), serve);
            let wanted = expected.then(|| configuration("drydock", SERVICE, "u1"));
            assert_eq!(change.unwrap(), wanted, "{name}");
        }
    }
}
