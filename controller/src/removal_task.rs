//! Maintains the webhook configuration that protects Drydock from being removed while it is in use.
//!
//! ```text
//!  drydock-removal ──watch──▶ RemovalTask ──▶ core: as wanted? ──▶ the leader applies it
//!       ClusterRole ──get──────────┘ (its owner)
//! ```
//!
//! [`certificates`](crate::certificates) writes the CA bundle in the configuration.

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

/// Maintains the webhook configuration.
pub(crate) struct RemovalTask {
    configurations: Api<ValidatingWebhookConfiguration>,
    owners: Api<ClusterRole>,
    shown: Cache<ValidatingWebhookConfiguration>,
    namespace: String,
}

impl RemovalTask {
    /// Starts the watch. `namespace` is the controller's own. The triggers are notified of changes of the
    /// configuration.
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

    /// Applies the configuration if it is not up to date.
    async fn reconcile(&self, (): &mut (), term: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
        self.restore(|| term.is_valid()).await?;
        Ok(None)
    }
}

impl RemovalTask {
    /// Applies the configuration if it is not up to date and this process `leads`.
    async fn restore(&self, leads: impl Fn() -> bool) -> kube::Result<()> {
        let wanted = change(&self.owners, &self.shown, &self.namespace).await?;
        let Some(wanted) = wanted.filter(|_| leads()) else {
            return Ok(());
        };
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        self.configurations
            .patch(CONFIGURATION, &parameters, &Patch::Apply(wanted))
            .await?;
        info!("Drydock is protected from being removed while virtual machines or maintenances exist");
        Ok(())
    }
}

/// Returns the desired configuration if the actual one differs. The configuration is not restored while its owner is
/// being deleted.
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
    use drydock_runtime::{Events, fake::api_server};
    use serde_json::json;

    use super::*;
    use crate::fake_cluster::{
        FakeCluster,
        write_faults::{Again, Scenario, check_each_write},
    };

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

    const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/drydock-controller";
    const STORED: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/drydock-removal";

    /// A scenario in which the configuration is created, and restored after its webhooks were removed.
    struct Protection(RemovalTask);

    impl Scenario for Protection {
        fn start(client: Client, _: Events) -> Self {
            Self(RemovalTask {
                configurations: Api::all(client.clone()),
                owners: Api::all(client),
                shown: Cache::filled([]),
                namespace: "drydock".into(),
            })
        }

        fn show(&self, cluster: &FakeCluster) {
            let shown = cluster.all("validatingwebhookconfigurations");
            self.0.shown.show(shown, |_| ());
        }

        async fn reconcile(&self) -> Again {
            match self.0.restore(|| true).await {
                Ok(()) => Again::OnChange,
                Err(_) => Again::Failed,
            }
        }

        fn act(cluster: &mut FakeCluster) {
            let is_first = |role: &Value| role["metadata"]["labels"].is_null();
            if cluster.get(ROLE).is_some_and(is_first) {
                cluster.change(ROLE, |role| role["metadata"]["labels"] = json!({"attempt": "1"}));
                cluster.change(STORED, |stored| stored["webhooks"] = json!([]));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn removal_webhook_survives_each_write_fault() {
        let cluster = || {
            let role = json!({"metadata": {"name": OWNER, "uid": "u1"}});
            FakeCluster::with([("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)])
        };
        let write = "PATCH validatingwebhookconfigurations/drydock-removal";
        check_each_write::<Protection>(cluster, &[write; 2]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_no_longer_leads_does_not_restore_the_webhook() {
        let (client, mut server) = api_server();
        let task = RemovalTask {
            configurations: Api::all(client.clone()),
            owners: Api::all(client),
            shown: Cache::filled([]),
            namespace: "drydock".into(),
        };
        let serve = async {
            let role = json!({"metadata": {"name": OWNER, "uid": "u1"}});
            server.next_request().await.with(&role);
            assert!(server.is_left_alone().await);
        };
        let (restored, ()) = tokio::join!(task.restore(|| false), serve);
        restored.unwrap();
    }
}
