//! User commands for guests, and their consoles, displays and ports: by virtctl, through the aggregated API, the
//! controllers and the agents.

use anyhow::{Result, ensure};
use drydock_api::kubevirt::{
    Phase,
    migration::{MigrationMode, MigrationPhase},
    names::conditions,
};
use drydock_tests::{
    Cluster,
    display::Display,
    guests::{Tick, condition, instance, ticks},
    migration_summary::summary,
    migrations::node_of,
    watching::{until, until_some},
};
use kube::ResourceExt;

/// Waits until the guest has booted again, and returns the ID of this boot, which is not in `before`.
async fn until_booted(cluster: &Cluster, name: &str, before: &[String]) -> Result<String> {
    until_some("another boot", || async {
        let text = cluster.console(name).await.unwrap_or_default();
        let boots = ticks(&text).into_iter().map(|tick| tick.boot);
        Ok(boots.into_iter().find(|boot| !before.contains(boot)))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn console_is_usable_and_follows_the_guest_to_the_target() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.controllers_apart().await?;
    cluster.apply(&instance("vm", "count: 1s")).await?;
    let started = cluster.until_phase("vm", Phase::Running).await?;
    cluster.until_console("vm", "drydock-guest ready").await?;

    let mut first = cluster.virtctl_at_terminal(&["console", "vm"])?;
    first.until_printed("Successfully connected to vm console").await?;
    first.write("\n")?;
    first.until_printed("login:").await?;
    first.write("root\n")?;
    first.until_printed("Password:").await?;
    first.write("fedora\n")?;
    first.until_printed("# ").await?;
    first.write("echo $((6 * 7))-echoed\n")?;
    first.until_printed("42-echoed").await?;
    // The pod's log also contains the input and the output of the console.
    cluster.until_console("vm", "42-echoed").await?;

    // A second console replaces the first, as in KubeVirt.
    let mut second = cluster.virtctl_at_terminal(&["console", "vm"])?;
    second.until_printed("Successfully connected to vm console").await?;
    ensure!(!first.until_ended().await?);
    first.until_printed("EOF").await?;
    second.write("echo $((6 * 9))-again\n")?;
    second.until_printed("54-again").await?;

    // A migration closes the console with a reason. The next console reaches the guest on the target, in its unchanged
    // state.
    cluster
        .until_vm_condition("vm", conditions::LIVE_MIGRATABLE, "True")
        .await?;
    let migration = cluster.migrate("vm").await?;
    cluster.until_migrated(&migration).await?;
    ensure!(node_of(&cluster.instances().get("vm").await?)? != node_of(&started)?);
    ensure!(!second.until_ended().await?);
    let target = node_of(&cluster.instances().get("vm").await?)?;
    second
        .until_printed(&format!("connect again: it migrated to node {target}"))
        .await?;
    let mut third = cluster.virtctl_at_terminal(&["console", "vm"])?;
    third.until_printed("Successfully connected to vm console").await?;
    third.write("echo $((6 * 11))-there\n")?;
    third.until_printed("66-there").await?;
    // The escape sequence ends the console.
    third.write("\x1d")?;
    ensure!(third.until_ended().await?, "{}", third.printed());

    cluster.delete(&["vmi", "vm"])?;
    cluster.no_guests().await
}

/// Limits of a migration that has to be aborted: at this bandwidth, the guest's memory takes a minute.
const TOO_SHORT: &str = "allowPostCopy: true\nbandwidthPerMigration: 1Mi\ncompletionTimeoutPerGiB: 3";

/// Migrates a guest that its user has paused, and returns the ticks that it printed before.
///
/// The first migration fails, since its time limit is too short and a paused guest is not switched to post-copy. The
/// guest stays paused during both migrations.
async fn moves_paused(cluster: &Cluster, name: &str) -> Result<Vec<Tick>> {
    let before = ticks(&cluster.consoles(name).await?);
    cluster.limit_migrations(TOO_SHORT).await?;
    let started = cluster
        .until_vm_condition(name, conditions::LIVE_MIGRATABLE, "True")
        .await?;
    let hurried = cluster.migrate(name).await?;
    let failed = cluster.until_migration(&hurried, MigrationPhase::Failed).await?;
    let source = failed.source().cloned().unwrap_or_default();
    ensure!(
        source.reason.as_deref() == Some("CompletionTimeExceeded") && source.mode == Some(MigrationMode::PreCopy),
        "{}",
        summary(&failed)
    );

    cluster.limit_migrations("allowPostCopy: true").await?;
    let migration = cluster.migrate(name).await?;
    let (_, moved) = cluster.until_migrated(&migration).await?;
    ensure!(node_of(&moved)? != node_of(&started)?);
    let paused = condition(&moved, conditions::PAUSED);
    ensure!(
        (paused.0.as_str(), paused.1.as_str()) == ("True", "PausedByUser"),
        "{paused:?}"
    );
    ensure!(
        ticks(&cluster.consoles(name).await?) == before,
        "the guest ran while it was paused"
    );
    Ok(before)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_is_paused_unpaused_and_restarted_in_place() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.controllers_apart().await?;
    cluster.apply(&instance("vm", "count: 1s")).await?;
    let started = cluster.until_phase("vm", Phase::Running).await?;
    cluster.until_console("vm", "tick 1 ").await?;
    let pod = cluster.launcher("vm").await?.uid();
    let not_paused = cluster.virtctl_refused(&["unpause", "vmi", "vm"])?.join("\n");
    ensure!(not_paused.contains("VMI is not paused"), "{not_paused}");

    ensure!(
        cluster
            .virtctl(&["pause", "vmi", "vm", "--dry-run"])?
            .contains("Dry Run execution")
    );
    ensure!(
        condition(&cluster.instances().get("vm").await?, conditions::PAUSED)
            .0
            .is_empty()
    );
    ensure!(
        cluster
            .virtctl(&["pause", "vmi", "vm"])?
            .contains("VMI vm was scheduled to pause")
    );
    let paused = cluster.until_vm_condition("vm", conditions::PAUSED, "True").await?;
    ensure!(condition(&paused, conditions::PAUSED).1 == "PausedByUser");
    let refused = cluster.virtctl_refused(&["pause", "vmi", "vm"])?.join("\n");
    ensure!(refused.contains("VMI is already paused"), "{refused}");
    let refused = cluster.virtctl_refused(&["soft-reboot", "vm"])?.join("\n");
    ensure!(refused.contains("VMI is paused"), "{refused}");

    let before = moves_paused(&cluster, "vm").await?;

    cluster.virtctl(&["unpause", "vmi", "vm"])?;
    let runs = |instance: &_| condition(instance, conditions::PAUSED).0.is_empty();
    until(cluster.instances(), "vm", "the end of the pause", runs).await?;
    let boots: Vec<String> = before.iter().map(|tick| tick.boot.clone()).collect();
    let more = cluster
        .until_output("vm", "a tick after the pause", |text| {
            ticks(text).into_iter().find(|tick| !before.contains(tick))
        })
        .await?;
    ensure!(boots.contains(&more.boot), "the guest has started again: {more:?}");

    // The power button restarts the guest's operating system, and the reset button its virtual machine: neither its pod
    // nor its instance changes.
    let pod_there = cluster.launcher("vm").await?.uid();
    ensure!(pod_there != pod);
    cluster.virtctl(&["soft-reboot", "vm"])?;
    let soft = until_booted(&cluster, "vm", &boots).await?;
    cluster.virtctl(&["reset", "vm"])?;
    until_booted(&cluster, "vm", &[boots, vec![soft]].concat()).await?;
    cluster
        .until_events(
            "VirtualMachineInstance",
            "vm",
            &["Paused", "Unpaused", "SoftRebooted", "Reset"],
        )
        .await?;
    let now = cluster.instances().get("vm").await?;
    ensure!(now.uid() == started.uid() && cluster.launcher("vm").await?.uid() == pod_there);

    cluster.delete(&["vmi", "vm"])?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn display_and_ports_of_a_guest_are_reached() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.controllers_apart().await?;
    cluster.apply(&instance("vm", "count: 1s\nlisten: 7\nhttp: 80")).await?;
    cluster.until_phase("vm", Phase::Running).await?;
    cluster.until_console("vm", "drydock-guest ready").await?;

    let mut screen = Display::open(&cluster, "vm").await?;
    screen.refresh()?;
    drop(screen);

    // A connection to a port of the guest by standard input and output, as used by `virtctl ssh`.
    let mut echo = cluster.virtctl_begun(&["port-forward", "--stdio=true", "vmi/vm", "7"])?;
    echo.write("to the guest\n")?;
    echo.until_printed("to the guest\n").await?;
    drop(echo);
    let mut http = cluster.virtctl_begun(&["port-forward", "--stdio=true", "vmi/vm", "80"])?;
    http.write("GET /healthz HTTP/1.0\r\n\r\n")?;
    // The guest closes the connection after its response, which is no error.
    http.until_printed("ok").await?;
    ensure!(http.until_ended().await?, "{}", http.printed());
    let closed = cluster.virtctl_refused(&["port-forward", "--stdio=true", "vmi/vm", "9"]);
    ensure!(closed.is_err() || closed.is_ok_and(|lines| lines.join("\n").contains("dial tcp")));

    // Metrics have KubeVirt's names.
    let mut held = cluster.virtctl_at_terminal(&["console", "vm"])?;
    held.until_printed("Successfully connected").await?;
    until_some("the gauge of open consoles", || async {
        let all = cluster.controller_metrics().await?;
        let gauge = "kubevirt_console_active_connections{namespace=\"default\",vmi=\"vm\"} 1";
        Ok(all.contains(gauge).then_some(()))
    })
    .await?;
    held.write("\x1d")?;
    held.until_ended().await?;

    cluster.delete(&["vmi", "vm"])?;
    cluster.no_guests().await
}
