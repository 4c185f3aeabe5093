//! Drains complete despite failures of the controller, its certificates and the API server in the meantime.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drydock_api::{kubevirt::Phase, leases::CONTROLLER_LEASE};
use drydock_tests::{
    Cluster,
    cluster::{now, setting},
    drains::{
        FLAGS, GUESTS_ALONE, clean_for_drains, counting, counting_on_linux, drain, started_on_the_first, until_on,
    },
    guests::meanwhile,
    own_parts::CONTROLLERS,
    watching::until_some,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn pdbs_hold_without_controller_and_drain_then_continues() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let guests = [
        ("held", counting("held", "LiveMigrate"), "True"),
        ("plain", counting("plain", "None"), "True"),
    ];
    started_on_the_first(&cluster, &guests).await?;
    let scaled =
        |replicas: &str| cluster.kubectl(&["-n", "drydock", "scale", "deployment/drydock-controller", replicas]);
    scaled("--replicas=0")?;
    let away = async {
        until_some("the deletion of the controller's pods", || async {
            let pods = cluster.kubectl(&[
                "-n",
                "drydock",
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/name=drydock-controller",
                "-o",
                "name",
            ])?;
            Ok(pods.trim().is_empty().then_some(()))
        })
        .await?;
        let refused = drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=12s"]);
        until_some("the end of the pod whose guest may be shut down", || async {
            let plain = cluster.instances().get("plain").await?;
            Ok(cluster.launchers_of(&plain).await?.is_empty().then_some(()))
        })
        .await?;
        anyhow::Ok(format!("{:#}", refused.err().context("the drain succeeded")?))
    }
    .await;
    scaled("--replicas=2")?;
    cluster.rolled_out(CONTROLLERS)?;
    let text = away?;
    ensure!(text.contains("disruption budget"), "{text}");
    // Only the agent of its node has observed how the guest ended.
    let plain = cluster.until_phase("plain", Phase::Succeeded).await?;
    let reason = plain.status.and_then(|status| status.reason);
    assert_eq!(reason.as_deref(), Some("Evicted"));
    drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=90s"])?;
    until_on(&cluster, "held", &second).await?;
    cluster.goes_on("held").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

/// Number of times that the leading controller is killed; overridden by the environment variable `DRYDOCK_KILLS`.
const KILLS: usize = 3;
/// The Secret with the certificates of the webhooks.
const CERTIFICATES: &str = "drydock-webhook-certificates";

/// Kills the controllers on the leader's node.
async fn kill_the_leader(cluster: &Cluster) -> Result<()> {
    let leading = cluster.leading_controller().await?;
    let node = leading
        .spec
        .and_then(|spec| spec.node_name)
        .context("the pod has no node")?;
    let script = "for process in /proc/[0-9]*; do
        if [ \"$(cat $process/comm 2>/dev/null)\" = drydock-control ]; then kill -9 ${process#/proc/}; fi
    done";
    cluster.on_node(&node, script).map(drop)
}

/// Disturbances of the control plane during a drain.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// The processes of the leading replica, and of any other on its node, are killed.
    LeaderKilled,
    /// The API server is restarted.
    ApiServerRestarted,
    /// The Secret with the certificates of the webhooks is deleted, and then created again.
    CertificatesLost,
    /// Another holder takes the leader election Lease, and never renews it.
    LeaseStolen,
}

impl Disturbance {
    async fn happen(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::LeaderKilled => kill_the_leader(cluster).await,
            Self::ApiServerRestarted => cluster.embedded("restart", &["kube-apiserver"]).map(drop),
            Self::CertificatesLost => cluster.delete(&["secret", CERTIFICATES, "--namespace=drydock"]),
            Self::LeaseStolen => {
                let now = serde_json::to_value(MicroTime(now()))?;
                let stolen =
                    json!({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 10, "renewTime": now}});
                Api::<Lease>::namespaced(cluster.client.clone(), "drydock")
                    .patch(CONTROLLER_LEASE, &PatchParams::default(), &Patch::Merge(&stolen))
                    .await?;
                Ok(())
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drain_completes_despite_control_plane_disturbances() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let nodes = [cluster.first().to_owned(), cluster.second().to_owned()];
    let guests = ["shaken-one", "shaken-two"].map(|name| (name, counting_on_linux(name, "LiveMigrate"), "True"));
    started_on_the_first(&cluster, &guests).await?;
    let kills: usize = setting("DRYDOCK_KILLS").map_or(Ok(KILLS), |text| text.parse())?;
    let mut disturbances = vec![Disturbance::LeaderKilled; kills];
    disturbances.extend([
        Disturbance::ApiServerRestarted,
        Disturbance::CertificatesLost,
        Disturbance::LeaseStolen,
    ]);
    for (round, disturbance) in disturbances.into_iter().enumerate() {
        // If a replica were killed once more, the restart back-off of both replicas could exceed the duration of the
        // drain.
        cluster.renew_killed(1).await?;
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        let mut arguments = vec!["drain", from.as_str()];
        arguments.extend(FLAGS);
        arguments.extend([GUESTS_ALONE, "--timeout=85s"]);
        let draining = cluster.kubectl_begun(&arguments)?;
        // Each round disturbs the drain after a different time within its duration, the same in every run.
        let moment = Duration::from_millis(100 + u64::try_from(round)? * 1931 % 4000);
        meanwhile(moment).await;
        disturbance.happen(&cluster).await?;
        let what = || format!("round {round}, {disturbance:?} after {moment:?}");
        let ended = draining.finish();
        if matches!(disturbance, Disturbance::ApiServerRestarted) {
            // kubectl fails when the API server is unreachable; a second attempt continues the drain.
            drain(&cluster, from, &[GUESTS_ALONE, "--timeout=85s"]).with_context(what)?;
        } else {
            ended.with_context(what)?;
        }
        for (name, ..) in &guests {
            until_on(&cluster, name, to).await?;
            cluster.until_one_pod(name).await?;
        }
        cluster.kubectl(&["uncordon", from])?;
    }
    for (name, ..) in &guests {
        cluster.goes_on(name).await?;
    }
    cluster.no_guests().await
}
