//! Faults while a guest runs on its target after a switch to post-copy, and waits for the rest of its memory.
//!
//! The two QEMU processes transfer this memory on streams between them, so the processes that only monitor may end and
//! restart. If a stream breaks, the guest runs on neither node, and this is reported.
//!
//! This is only true once the guest runs on the target. If the target's libvirtd ends between the switch and that
//! moment, its successor ends the guest, as libvirt does with every guest that has not fully arrived.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationPhase},
    names::conditions as types,
};
use drydock_tests::{
    Cluster,
    faults::{
        Case, Component, FaultKind, Moment, Side,
        strike::{Blow, Sides},
    },
    guests::{NAMESPACE, instance},
    migration_summary::summary,
    migrations::{node_of, pod_has_ended},
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::LogParams};
use serde_json::json;

/// Name of the guest.
const NAME: &str = "switched";
/// Limits with which the guest is switched after 2 s, or later if its disks take longer.
///
/// This is long before its memory has been sent once; the rest takes more than a minute.
const LIMITS: &str = "allowPostCopy: true\nbandwidthPerMigration: 1Mi\ncompletionTimeoutPerGiB: 2\nprogressTimeout: 0";
/// Processes that only monitor the migration.
const WATCHERS: [(Component, Side); 5] = [
    (Component::Libvirtd, Side::Target),
    (Component::Libvirtd, Side::Source),
    (Component::Agent, Side::Target),
    (Component::Agent, Side::Source),
    (Component::Controller, Side::Neither),
];

fn kill(part: Component, side: Side) -> Case {
    Case {
        kind: FaultKind::Kill,
        part,
        side,
        moment: Moment::Running,
    }
}

/// A guest that was switched to post-copy, and whose memory follows slowly.
struct Switched {
    migration: String,
    sides: Sides,
}

impl Switched {
    async fn begin(cluster: &Cluster) -> Result<Self> {
        let instance = cluster.until_vm_condition(NAME, types::LIVE_MIGRATABLE, "True").await?;
        let source = node_of(&instance)?;
        let is_target = |node: &&String| **node != source;
        let target = cluster.nodes.iter().find(is_target).context("one node")?.clone();
        let source_pod = cluster.until_one_pod(NAME).await?;
        let migration = cluster.migrate(NAME).await?;
        until_risk(cluster, &migration, "Switched").await?;
        let goes_there = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            node == Some(&target) && !pod_has_ended(pod)
        };
        let pods = cluster.launchers_of(&instance).await?;
        let target_pod = pods.into_iter().find(goes_there);
        ensure!(target_pod.is_some(), "no target pod");
        Ok(Self {
            migration,
            sides: Sides {
                source,
                target,
                source_pod,
                target_pod,
            },
        })
    }

    async fn strike(&self, cluster: &Cluster, part: Component, side: Side) -> Result<()> {
        let blow = Blow::prepare(cluster, kill(part, side), &self.sides).await?;
        self.runs_there(cluster).await?;
        until_risk(cluster, &self.migration, "Switched").await?;
        blow.strike()
    }

    async fn runs_there(&self, cluster: &Cluster) -> Result<()> {
        let pod = self.sides.target_pod.as_ref().context("no target pod")?.name_any();
        until_some("ticks of the guest on the target", || async {
            let log = cluster.pods().logs(&pod, &LogParams::default()).await?;
            Ok(log.contains("tick ").then_some(()))
        })
        .await
    }

    /// Removes the bandwidth limit, so that the rest of the memory follows as fast as possible.
    async fn memory_follows(&self, cluster: &Cluster) -> Result<()> {
        let unlimited = json!({"execute": "migrate-set-parameters", "arguments": {"max-postcopy-bandwidth": 0}});
        until_some("the source's libvirtd", || async {
            let sent = cluster
                .send_qmp(&self.sides.source_pod, NAMESPACE, NAME, &unlimited)
                .await;
            Ok(sent.ok())
        })
        .await
    }

    /// Returns the number of QEMU processes with the guest on the source and on the target.
    fn guests(&self, cluster: &Cluster) -> Result<[usize; 2]> {
        let on = |node| cluster.guests_on(node, NAMESPACE, NAME);
        Ok([on(&self.sides.source)?, on(&self.sides.target)?])
    }
}

/// Waits until the migration reports the risk of post-copy with this reason.
async fn until_risk(cluster: &Cluster, migration: &str, reason: &str) -> Result<()> {
    let what = format!("the risk {reason} of post-copy");
    until(cluster.migrations(), migration, &what, |migration| {
        risk(migration).is_some_and(|found| found == reason) || is_final(migration)
    })
    .await
    .and_then(|migration| {
        ensure!(!is_final(&migration), "the migration ended: {}", summary(&migration));
        Ok(())
    })
}

fn is_final(migration: &VirtualMachineInstanceMigration) -> bool {
    migration.phase().is_some_and(MigrationPhase::is_final)
}

fn risk(migration: &VirtualMachineInstanceMigration) -> Option<String> {
    let conditions = &migration.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == "PostCopy")?;
    found.reason.clone()
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn monitors_may_end_in_post_copy_and_broken_stream_is_reported() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.limit_migrations(LIMITS).await?;
    cluster.apply(&instance(NAME, "count: 200ms")).await?;
    cluster.until_console(NAME, "tick 3 ").await?;
    for (part, side) in WATCHERS {
        let what = || format!("{part:?} of {side:?}");
        if matches!(part, Component::Agent | Component::Controller) {
            cluster.renew_killed(0).await?;
        }
        let switched = Switched::begin(&cluster).await.with_context(what)?;
        switched.strike(&cluster, part, side).await.with_context(what)?;
        switched.memory_follows(&cluster).await.with_context(what)?;
        let (migration, moved) = cluster.until_migrated(&switched.migration).await.with_context(what)?;
        let mode = migration.status.and_then(|status| status.source?.mode);
        assert_eq!(mode, Some(MigrationMode::PostCopy), "{}", what());
        assert_eq!(node_of(&moved)?, switched.sides.target, "{}", what());
        cluster.until_one_pod(NAME).await.with_context(what)?;
        assert_eq!(switched.guests(&cluster)?, [0, 1], "{}", what());
        cluster.goes_on(NAME).await.with_context(what)?;
        cluster.until_whole().await?;
    }

    cluster.renew_killed(0).await?;
    let switched = Switched::begin(&cluster).await?;
    switched.strike(&cluster, Component::Tunnel, Side::Source).await?;
    until_risk(&cluster, &switched.migration, "PostCopyBroken").await?;
    // No component can know which copy has to be resumed, so both copies are left unchanged.
    assert_eq!(switched.guests(&cluster)?, [1, 1]);
    cluster
        .until_events("VirtualMachineInstance", NAME, &["PostCopyBroken"])
        .await?;
    cluster.reset().await?;
    cluster.no_guests().await?;
    assert_eq!(switched.guests(&cluster)?, [0, 0]);
    cluster.until_whole().await
}
