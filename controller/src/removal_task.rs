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
use drydock_runtime::{
    Backoff, Cache, Key, Process, Trigger, Watch, Watches, chain, clock,
    lease::{Leadership, Term},
};
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, rbac::v1::ClusterRole};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::Value;
use tracing::{info, warn};

use crate::certificates::SERVICE;

/// Keeps the configuration while this replica leads.
pub(crate) struct RemovalTask {
    configurations: Api<ValidatingWebhookConfiguration>,
    owners: Api<ClusterRole>,
    shown: Cache<ValidatingWebhookConfiguration>,
    namespace: String,
    changed: Trigger,
    leadership: Leadership,
    process: Process,
}

impl RemovalTask {
    /// Starts watching. `namespace` is the controller's own; `on_change` is notified of changes of the configuration.
    pub(crate) fn new(
        client: Client,
        watches: &Watches,
        namespace: String,
        on_change: &Trigger,
        leadership: Leadership,
        process: Process,
    ) -> Self {
        let changed = Trigger::new();
        let watch = Watch::<ValidatingWebhookConfiguration>::one(client.clone(), CONFIGURATION, "removal webhook");
        Self {
            shown: watches.start(watch.wakes(&changed).wakes(on_change)),
            configurations: Api::all(client.clone()),
            owners: Api::all(client),
            namespace,
            changed,
            leadership,
            process,
        }
    }

    /// Returns the cache of the configuration.
    pub(crate) fn shown(&self) -> Cache<ValidatingWebhookConfiguration> {
        self.shown.clone()
    }

    /// Reconciles on every change while this process leads, until it stops.
    pub(crate) async fn run(mut self) {
        let stopping = self.process.stopping();
        while let Some(term) = stopping.run_until_cancelled(self.leadership.elected()).await {
            stopping.run_until_cancelled(self.keep(term)).await;
        }
    }

    /// Reconciles on every change until the leadership term ends.
    async fn keep(&self, term: Term) {
        self.shown.wait_until_synced().await;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        loop {
            let mut wake = None;
            match self.reconcile(&term).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    warn!(error = %chain(&error), "the webhook that protects Drydock from removal could not be configured");
                    wake = Some(clock::now() + backoff.delay());
                }
            }
            tokio::select! {
                () = term.lost().cancelled() => return,
                () = self.changed.notified() => {}
                () = clock::sleep_until(wake) => {}
            }
        }
    }

    /// Applies the configuration unless it is up to date.
    async fn reconcile(&self, term: &Term) -> kube::Result<()> {
        let Some(wanted) = change(&self.owners, &self.shown, &self.namespace).await? else {
            return Ok(());
        };
        if !term.is_valid() {
            return Ok(());
        }
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        self.configurations
            .patch(CONFIGURATION, &parameters, &Patch::Apply(wanted))
            .await?;
        info!("Drydock is protected from being removed while virtual machines or maintenances exist");
        Ok(())
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
    async fn configuration_is_restored_unless_its_owner_goes() {
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
