//! Guests that modify their memory during a migration: whether the migration converges, the result if it does not, and
//! the reports.
//!
//! Four guests migrate concurrently, since each takes half a minute. The limits of a migration are recorded in its
//! status when it starts.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationPhase},
    names::conditions as types,
};
use drydock_tests::{
    Cluster,
    guests::instance,
    migrations::node_of,
    recorder::{Recorder, Snapshot},
    watching::{until, until_some},
};
use kube::ResourceExt;
use serde_json::Value;

/// Limits with a maximum of migrations that suffices for the test, no timeout for lack of progress, and a maximum
/// downtime that is too short for the memory that [`BUSY`] guests modify.
const LIMITS: &str =
    "parallelMigrationsPerCluster: 8\nparallelOutboundMigrationsPerNode: 8\nprogressTimeout: 0\nmaxDowntimeMs: 200";

/// Control lines of a guest that modifies 40 MiB per second, the same 4 MiB repeatedly: small guests have no more
/// memory.
const BUSY: &str = "count: 200ms\ndirty: 4\ndirty-interval: 100ms";
/// Control lines of a guest that modifies 80 MiB per second, the same 24 MiB repeatedly.
///
/// After a switch to post-copy, this memory follows for three seconds, so that the risk is reported before it is over.
const SWITCHING: &str = "count: 200ms\ndirty: 24\ndirty-interval: 300ms";
/// Control lines of a guest that modifies 1 MiB per second.
const CALM: &str = "count: 200ms\ndirty: 1\ndirty-interval: 1s";

/// Creates a migration with these limits, and waits until they are recorded in its status.
async fn migrate(cluster: &Cluster, name: &str, lines: &str) -> Result<String> {
    cluster.limit_migrations(&format!("{LIMITS}\n{lines}")).await?;
    let migration = cluster.migrate(name).await?;
    cluster
        .until_migration_has_been(&migration, MigrationPhase::PreparingTarget)
        .await?;
    Ok(migration)
}

/// Returns the recorded states of a migration, in order.
fn story<'a>(
    snapshots: &'a [Snapshot<VirtualMachineInstanceMigration>],
    name: &'a str,
) -> impl Iterator<Item = &'a VirtualMachineInstanceMigration> + Clone {
    snapshots.iter().filter_map(move |snapshot| snapshot.get(name))
}

/// Returns the progress summaries of a migration.
fn summaries(snapshots: &[Snapshot<VirtualMachineInstanceMigration>], name: &str) -> Vec<String> {
    let mut all: Vec<String> = story(snapshots, name)
        .filter_map(|migration| Some(migration.status.as_ref()?.source.as_ref()?.progress.clone()?.summary))
        .collect();
    all.dedup();
    all
}

fn mode(migration: &VirtualMachineInstanceMigration) -> Option<MigrationMode> {
    migration.status.as_ref()?.source.as_ref()?.mode
}

/// Starts guests with these control lines. Returns their nodes once they can be migrated and have started to count.
async fn start_guests(cluster: &Cluster, guests: &[(&str, &str)]) -> Result<Vec<String>> {
    for &(name, control) in guests {
        let memory = if control == SWITCHING {
            "memory: 160Mi"
        } else {
            "memory: 96Mi"
        };
        cluster
            .apply(&instance(name, control).replace("memory: 96Mi", memory))
            .await?;
    }
    let mut nodes = Vec::new();
    for (name, _) in guests {
        let running = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
        nodes.push(node_of(&running)?);
        cluster.until_console(name, "MiB").await?;
    }
    Ok(nodes)
}

/// Checks that a migration that does not converge fails with a reason, and that its guest stays on its node.
async fn check_stubborn(cluster: &Cluster, migration: &str, node: &str) -> Result<()> {
    let failed = until(cluster.migrations(), migration, "the end", |migration| {
        migration.phase().is_some_and(MigrationPhase::is_final)
    })
    .await?;
    let status = failed.status.clone().unwrap_or_default();
    assert_eq!(
        (status.phase, status.reason.as_deref()),
        (Some(MigrationPhase::Failed), Some("GuestStayed"))
    );
    let source = status.source.unwrap_or_default();
    assert_eq!(source.reason.as_deref(), Some("CompletionTimeExceeded"));
    let why = source.message.unwrap_or_default();
    ensure!(
        why.contains("of the allowed 45 s,") && why.contains("the migration is aborted"),
        "{why}"
    );
    // A guest that modifies the same few pages repeatedly modifies as much memory as one pass can send. It depends on
    // the machine whether the agent detects before the timeout that the migration will never converge. The simulator in
    // core tests that.
    let reasons = ["CompletionTimeExceeded"];
    cluster
        .until_events("VirtualMachineInstance", "stubborn", &reasons)
        .await?;
    assert_eq!(node_of(&cluster.instances().get("stubborn").await?)?, node);
    cluster.goes_on("stubborn").await
}

/// Returns the condition that reports the post-copy risk.
fn risk_of(migration: &VirtualMachineInstanceMigration) -> Option<Condition> {
    let conditions = migration.status.as_ref().map(|status| status.conditions.as_slice());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.find(|condition| condition.type_ == "PostCopy").cloned()
}

/// Checks that the post-copy risk is reported as long as it exists, and not afterwards.
async fn check_risk(
    cluster: &Cluster,
    snapshots: &[Snapshot<VirtualMachineInstanceMigration>],
    switched: &str,
) -> Result<()> {
    let risk = story(snapshots, switched)
        .find_map(risk_of)
        .context("the risk is not reported")?;
    assert_eq!(
        (risk.status.as_str(), risk.reason.as_deref()),
        ("True", Some("Switched"))
    );
    ensure!(
        risk.message
            .unwrap_or_default()
            .contains("the guest is lost if the connection breaks")
    );
    assert_eq!(risk_of(&cluster.migrations().get(switched).await?), None);
    Ok(())
}

/// Waits for the events of a guest whose migration disrupted it, and checks that exactly one unrepeated event reports
/// the disruption.
///
/// An earlier guest with the same name may have left events.
async fn check_disruption(cluster: &Cluster, moved: &VirtualMachineInstance) -> Result<()> {
    let name = moved.name_any();
    let events = until_some(&format!("the events of {name}"), || async {
        let mut events = cluster.events(&name).await?;
        events.retain(|event| event["regarding"]["uid"].as_str() == moved.metadata.uid.as_deref());
        let has = |reason: &str| events.iter().any(|event| event["reason"] == reason);
        Ok((has("CompletionTimeExceeded") && has("Migrated")).then_some(events))
    })
    .await?;
    let disruptions: Vec<&Value> = events
        .iter()
        .filter(|event| event["reason"] == "CompletionTimeExceeded")
        .collect();
    ensure!(
        disruptions.len() == 1 && disruptions[0]["series"].is_null(),
        "{name}: {events:?}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn busy_guests_converge_pause_switch_or_abort_as_allowed() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // Only pods that are created after this change can be targets of post-copy.
    let switching = "bandwidthPerMigration: 8Mi\ncompletionTimeoutPerGiB: 20\nallowPostCopy: true";
    cluster.limit_migrations(&format!("{LIMITS}\n{switching}")).await?;
    let guests = [
        ("switched", SWITCHING),
        ("paused", BUSY),
        ("stubborn", BUSY),
        ("calm", CALM),
    ];
    let nodes = start_guests(&cluster, &guests).await?;
    let recorder = Recorder::start(cluster.migrations(), "").await?;

    let switched = migrate(&cluster, "switched", switching).await?;
    let pausing = "bandwidthPerMigration: 8Mi\ncompletionTimeoutPerGiB: 20\nallowWorkloadDisruption: true";
    let paused = migrate(&cluster, "paused", pausing).await?;
    let nothing = "bandwidthPerMigration: 8Mi\ncompletionTimeoutPerGiB: 45";
    let stubborn = migrate(&cluster, "stubborn", nothing).await?;
    let patient = "bandwidthPerMigration: 4Mi\ncompletionTimeoutPerGiB: 0";
    let calm = migrate(&cluster, "calm", patient).await?;

    // Checks the state that users see in the meantime.
    until_some("an estimate of the end in the table", || async {
        let table = cluster.kubectl(&["get", "vmim", "-o", "wide"])?;
        let shown = |name: &str, text: &str| table.lines().any(|line| line.contains(name) && line.contains(text));
        Ok(shown(&calm, "left, about ").then_some(()))
    })
    .await?;

    let (migration, _) = cluster.until_migrated(&calm).await?;
    assert_eq!(mode(&migration), Some(MigrationMode::PreCopy));
    cluster.goes_on("calm").await?;

    for (name, of, expected) in [
        ("switched", &switched, MigrationMode::PostCopy),
        ("paused", &paused, MigrationMode::Paused),
    ] {
        let (migration, moved) = cluster.until_migrated(of).await?;
        assert_eq!(mode(&migration), Some(expected), "{name}");
        check_disruption(&cluster, &moved).await?;
        let state = moved
            .status
            .and_then(|status| status.migration_state)
            .unwrap_or_default();
        assert_eq!((state.mode, state.failed), (Some(expected), false), "{name}");
        cluster.goes_on(name).await?;
    }

    check_stubborn(&cluster, &stubborn, &nodes[2]).await?;

    let snapshots = recorder.stop().await?;
    for (name, of) in [
        ("switched", &switched),
        ("paused", &paused),
        ("stubborn", &stubborn),
        ("calm", &calm),
    ] {
        println!("{name}: {:#?}", summaries(&snapshots, of));
    }
    ensure!(
        summaries(&snapshots, &stubborn)
            .iter()
            .any(|summary| summary.ends_with("does not converge"))
    );
    ensure!(story(&snapshots, &calm).any(|migration| {
        let progress = migration.source().and_then(|source| source.progress.as_ref());
        progress.is_some_and(|progress| progress.estimated_end.is_some())
    }));
    check_risk(&cluster, &snapshots, &switched).await?;
    ensure!(story(&snapshots, &paused).all(|migration| risk_of(migration).is_none()));
    cluster.no_guests().await
}
