//! Renews certificates repeatedly; no admission, stream or migration may fail because of a renewal.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::names::conditions;
use drydock_tests::{
    Cluster,
    display::Display,
    guests::instance,
    session::Session,
    watching::{until, until_some},
};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        apps::v1::Deployment,
        core::v1::Secret,
    },
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;

const SECRET: &str = "drydock-webhook-certificates";
/// Number of renewals while streams are open.
///
/// Each renewal takes about five seconds, since all components have to know a new CA before it is used.
const RENEWALS: usize = 9;
/// Number of renewals after the controllers' restart, which ends the streams of the old controllers.
const RENEWALS_AFTER_RESTART: usize = 2;
/// Renewal at which the Secret is deleted.
const DELETION: usize = 3;
/// Renewal at which a migration starts, which lasts for more than one renewal.
const MIGRATION: usize = 5;
/// Renewal at which the Secret's content is replaced by garbage.
const GARBAGE: usize = 7;

/// CAs valid for 20 seconds and certificates valid for 10, each renewed after a fifth of its lifetime, and slow
/// migrations.
const LIFETIMES: &str = "apiVersion: hco.kubevirt.io/v1beta1\nkind: HyperConverged\nmetadata:\n  name: \
                         kubevirt-hyperconverged\n  namespace: drydock\nspec:\n  certConfig:\n    ca: {duration: 20s, \
                         renewBefore: 16s}\n    server: {duration: 10s, renewBefore: 8s}\n  \
                         liveMigrationConfig: {bandwidthPerMigration: 3Mi, completionTimeoutPerGiB: 0, progressTimeout: 0}\n";

fn machine() -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"generateName": "certificates-"},
        "spec": {
            "runStrategy": "Halted",
            "template": {"spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}}},
        },
    }))?)
}

fn machines(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "kubevirt.io".into(),
        version: "v1".into(),
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        plural: "virtualmachines".into(),
    };
    Api::namespaced_with(cluster.client.clone(), "default", &kind)
}

/// A console, a display and a port of a guest that stay connected during the test.
struct Streams {
    console: Session,
    display: Display,
    port: Session,
}

impl Streams {
    async fn open(cluster: &Cluster, guest: &str) -> Result<Self> {
        let mut console = cluster.virtctl_at_terminal(&["console", guest])?;
        console.until_printed("Successfully connected").await?;
        for (input, printed) in [("\n", "login:"), ("root\n", "Password:"), ("fedora\n", "# ")] {
            console.write(input)?;
            console.until_printed(printed).await?;
        }
        Ok(Self {
            console,
            display: Display::open(cluster, guest).await?,
            port: cluster.virtctl_begun(&["port-forward", "--stdio=true", &format!("vmi/{guest}"), "7"])?,
        })
    }

    /// Uses each stream once, and waits for the guest's response.
    async fn use_all(&mut self, renewal: usize) -> Result<()> {
        self.console.write(&format!("echo $(({renewal} + 1000))-still\n"))?;
        self.console.until_printed(&format!("{}-still", renewal + 1000)).await?;
        self.port.write(&format!("echo {renewal}.\n"))?;
        self.port.until_printed(&format!("echo {renewal}.\n")).await?;
        self.display.refresh()
    }
}

/// Pause between admissions. Without it, the admissions would take a processor away from the other components.
const BETWEEN_ADMISSIONS: Duration = Duration::from_millis(20);

/// Creates machines by dry run in an endless loop; returns only with an error.
async fn keep_creating(machines: &Api<DynamicObject>, admitted: &AtomicU64) -> Result<()> {
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let machine = machine()?;
    loop {
        let before = admitted.load(Ordering::Relaxed);
        let created = machines.create(&parameters, &machine).await;
        created.with_context(|| format!("after {before} admissions"))?;
        admitted.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(BETWEEN_ADMISSIONS).await;
    }
}

fn entry(secret: &Secret, key: &str) -> Option<Vec<u8>> {
    secret.data.as_ref()?.get(key).map(|value| value.0.clone())
}

/// Returns how often an API server has continued after a failed call of one of Drydock's webhooks.
///
/// The API server may continue if the failure policy of the webhook is Ignore.
fn ignored_failures(cluster: &Cluster) -> Result<f64> {
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"])?;
    let ours = metrics.lines().filter(|line| {
        line.starts_with("apiserver_admission_webhook_fail_open_count{") && line.contains("drydock.dev")
    });
    ours.map(|line| {
        let value = line.rsplit(' ').next().context("a metric without a value")?;
        Ok(value.parse::<f64>()?)
    })
    .sum()
}

/// Waits until the CA bundle of every webhook is exactly the one in the Secret.
async fn until_published(cluster: &Cluster, secrets: &Api<Secret>) -> Result<()> {
    let mutating = Api::<MutatingWebhookConfiguration>::all(cluster.client.clone());
    let validating = Api::<ValidatingWebhookConfiguration>::all(cluster.client.clone());
    until_some("webhooks that trust the bundle of the Secret", || async {
        let Some(bundle) = secrets
            .get_opt(SECRET)
            .await?
            .and_then(|secret| entry(&secret, "ca.crt"))
        else {
            return Ok(None);
        };
        let mutating = mutating.get("drydock").await?.webhooks.unwrap_or_default();
        let validating = validating.get("drydock").await?.webhooks.unwrap_or_default();
        let mutating = mutating.into_iter().map(|webhook| webhook.client_config.ca_bundle);
        let mut bundles = mutating.chain(validating.into_iter().map(|webhook| webhook.client_config.ca_bundle));
        let bundle = Some(ByteString(bundle));
        Ok(bundles.all(|held| held == bundle).then_some(()))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn admissions_streams_and_migrations_outlast_renewals() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.controllers_apart().await?;
    let (guest, mover) = ("watched", "mover");
    cluster.apply(&instance(guest, "count: 1s\nlisten: 7")).await?;
    cluster.apply(&instance(mover, "count: 1s")).await?;
    for name in [guest, mover] {
        cluster.until_console(name, "drydock-guest ready").await?;
        cluster
            .until_vm_condition(name, conditions::LIVE_MIGRATABLE, "True")
            .await?;
    }
    let secrets = Api::<Secret>::namespaced(cluster.client.clone(), "drydock");
    until(secrets.clone(), SECRET, "a certificate", |secret: &Secret| {
        entry(secret, "tls.crt").is_some()
    })
    .await?;
    until_published(&cluster, &secrets).await?;
    cluster.kubectl_with(&["apply"], LIFETIMES)?;
    let before = ignored_failures(&cluster)?;
    let machines = machines(&cluster);
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), "drydock");
    let admitted = AtomicU64::new(0);
    let renewals = async {
        let mut streams = Some(Streams::open(&cluster, guest).await?);
        let mut migration = None;
        let mut seen = BTreeSet::new();
        while seen.len() < RENEWALS + RENEWALS_AFTER_RESTART {
            let what = format!("certificate number {}", seen.len());
            let secret = until(secrets.clone(), SECRET, &what, |secret: &Secret| {
                entry(secret, "tls.crt").is_some_and(|certificate| !seen.contains(&certificate))
            })
            .await?;
            let before = admitted.load(Ordering::Relaxed);
            seen.extend(entry(&secret, "tls.crt"));
            until_some("another admission", || async {
                Ok((admitted.load(Ordering::Relaxed) > before + 1).then_some(()))
            })
            .await?;
            if let Some(streams) = &mut streams {
                let used = streams.use_all(seen.len()).await;
                used.with_context(|| format!("after {} renewals", seen.len()))?;
            }
            // The changes are made through the API instead of kubectl, so that the admissions continue in the meantime.
            match seen.len() {
                DELETION => drop(secrets.delete(SECRET, &DeleteParams::default()).await?),
                GARBAGE => {
                    let garbage =
                        json!({"data": {"ca.crt": "eA==", "ca.key": "eA==", "tls.crt": "eA==", "tls.key": null}});
                    secrets
                        .patch(SECRET, &PatchParams::default(), &Patch::Merge(garbage))
                        .await?;
                }
                MIGRATION => migration = Some(cluster.migrate(mover).await?),
                RENEWALS => {
                    let moved = migration.take().context("no migration was created")?;
                    cluster.until_migrated(&moved).await?;
                    streams = None;
                    drop(deployments.restart("drydock-controller").await?);
                }
                _ => {}
            }
        }
        // Applying the manifest must not revert the webhooks' CA bundle.
        let applied = drydock_tests::cluster::repository().join("deploy/controller/webhooks.yaml");
        cluster.kubectl(&["apply", "-f", &applied.to_string_lossy()])?;
        until_published(&cluster, &secrets).await
    };
    tokio::select! {
        refused = keep_creating(&machines, &admitted) => refused.context("an admission failed")?,
        renewed = renewals => renewed?,
    }
    ensure!(admitted.load(Ordering::Relaxed) > 2 * RENEWALS as u64);
    ensure!(
        ignored_failures(&cluster)? <= before,
        "a webhook whose failure is ignored was refused"
    );
    cluster.no_guests().await?;
    cluster.reset().await
}
