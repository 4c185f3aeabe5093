//! The agents are replaced during a migration. The processes that transfer the guest stay until the migration is
//! complete.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{migration::MigrationPhase, names::conditions as types};
use drydock_tests::{
    Cluster,
    cluster::setting,
    guests::{Collector, instance, only, ticks, without_a_gap},
    migration_summary::summary,
    migrations::node_of,
    own_parts::{AGENTS, CONTROLLERS},
    watching::until_some,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

/// Limits without timeouts, with which all agents are replaced before the migration is complete.
const HELD: &str = "bandwidthPerMigration: 2Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0";

/// Returns the pods of agents and tunnels, including those that are being deleted.
async fn agent_pods(cluster: &Cluster) -> Result<Vec<Pod>> {
    let wanted = ListParams::default().labels("app.kubernetes.io/name=drydock-agent");
    let all = Api::<Pod>::namespaced(cluster.client.clone(), "drydock");
    Ok(all.list(&wanted).await?.items)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_guest_moves_on_while_all_agents_are_replaced() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.limit_migrations(HELD).await?;
    let collector = Collector::start(&cluster).await?;
    let name = "passenger";
    let control = collector.ticking("50ms");
    cluster.apply(&instance(name, &control)).await?;
    collector.first_boot().await?;
    let from = node_of(&cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?)?;
    let mut before = Vec::new();
    for node in &cluster.nodes {
        let old = cluster.agent_pod(node).await?;
        before.push((node.clone(), old.name_any(), old.uid().context("a UID")?));
    }

    let migration = cluster.migrate(name).await?;
    cluster.until_migration(&migration, MigrationPhase::Running).await?;
    cluster.restart(AGENTS)?;
    for (node, _, uid) in &before {
        cluster.until_new_agent(node, uid).await?;
    }
    // Both old pods still exist, because the guest is being migrated.
    let moving = cluster.migrations().get(&migration).await?;
    assert_eq!(moving.phase(), Some(MigrationPhase::Running), "{}", summary(&moving));
    let pods = agent_pods(&cluster).await?;
    for (node, old, _) in &before {
        let left = pods.iter().find(|pod| pod.name_any() == *old);
        let left = left.with_context(|| format!("the old tunnel of {node} has ended"))?;
        ensure!(
            left.metadata.deletion_timestamp.is_some(),
            "{old} is not being terminated"
        );
    }

    let (_, after) = cluster.until_migrated(&migration).await?;
    ensure!(node_of(&after)? != from, "the guest is still on {from}");
    let one = cluster.until_one_pod(name).await?;
    let to = node_of(&after)?;
    assert_eq!(one.spec.and_then(|spec| spec.node_name), Some(to.clone()));
    // No second copy of the guest is left on any node.
    for node in &cluster.nodes {
        let script = format!(
            "grep -al 'guest=default_{name},' /proc/[0-9]*/cmdline 2>/dev/null \
             | while read found; do grep -aq '^/usr/bin/qemu-system' $found && echo $found; done; true"
        );
        until_some("exactly one guest", || async {
            let guests = cluster.on_node(node, &script)?.lines().count();
            Ok((guests == usize::from(*node == to)).then_some(()))
        })
        .await?;
    }
    until_some("the old tunnels to end", || async {
        let pods = agent_pods(&cluster).await?;
        let gone = before
            .iter()
            .all(|(_, old, _)| pods.iter().all(|pod| pod.name_any() != *old));
        Ok(gone.then_some(()))
    })
    .await?;
    let boot = collector.first_boot().await?;
    collector.until_more(&boot, 20).await?;
    without_a_gap(&ticks(&cluster.consoles(name).await?))?;
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.reset().await?;
    cluster.no_guests().await
}

/// Returns a directory for `kubectl apply -k` that `hack/test --previous-release` creates.
fn folder(variable: &str) -> Result<String> {
    setting(variable).with_context(|| format!("{variable} names no folder: run hack/test --previous-release"))
}

/// Migrates a guest, and checks that it is on another node.
async fn move_once(cluster: &Cluster, name: &str) -> Result<()> {
    let before = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let migration = cluster.migrate(name).await?;
    let (_, after) = cluster.until_migrated(&migration).await?;
    let (from, to) = (node_of(&before)?, node_of(&after)?);
    ensure!(from != to, "{name} is still on {from}");
    let pod = cluster.until_one_pod(name).await?;
    assert_eq!(pod.spec.and_then(|spec| spec.node_name), Some(to));
    Ok(())
}

/// Deploys this release again, and waits until it is ready.
async fn restore(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["apply", "-k", &folder("DRYDOCK_THIS_RELEASE")?])?;
    cluster.rolled_out(AGENTS)?;
    cluster.rolled_out(CONTROLLERS)?;
    cluster.until_whole().await
}

/// Runs `moves` with a counting guest, and checks that no number is missing. Parts of the cluster have the previous
/// release.
async fn counts_through<T: Future<Output = Result<()>>>(
    cluster: &Cluster,
    name: &str,
    moves: impl FnOnce() -> T,
) -> Result<()> {
    let collector = Collector::start(cluster).await?;
    let control = collector.ticking("50ms");
    cluster.apply(&instance(name, &control)).await?;
    collector.first_boot().await?;
    moves().await?;
    let boot = collector.first_boot().await?;
    collector.until_more(&boot, 20).await?;
    without_a_gap(&only(collector.stop().await)?)
}

#[tokio::test]
#[ignore = "needs images of the previous release: hack/test --previous-release"]
async fn mixed_versions_of_agents_move_a_guest_both_ways() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // The running agents stay until they are deleted.
    cluster.kubectl(&["apply", "-k", &folder("DRYDOCK_PREVIOUS_AGENTS")?])?;
    let name = "mixed";
    let moved = counts_through(&cluster, name, || async {
        for node in &cluster.nodes[..2] {
            let agent = cluster.agent_pod(node).await?;
            cluster.delete(&["pod", &agent.name_any(), "--namespace=drydock", "--timeout=90s"])?;
            cluster.until_new_agent(node, &agent.uid().context("a UID")?).await?;
            // The guest first moves from this release to the previous one and back. In the second round, both nodes
            // have the previous release.
            move_once(&cluster, name).await?;
            move_once(&cluster, name).await?;
        }
        Ok(())
    })
    .await;
    restore(&cluster).await?;
    moved?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs images of the previous release: hack/test --previous-release"]
async fn mixed_versions_of_controller_and_agents_move_a_guest() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.kubectl(&["apply", "-k", &folder("DRYDOCK_PREVIOUS_CONTROLLERS")?])?;
    cluster.rolled_out(CONTROLLERS)?;
    cluster.until_whole().await?;
    let name = "mixed";
    let moved = counts_through(&cluster, name, || async {
        move_once(&cluster, name).await?;
        move_once(&cluster, name).await
    })
    .await;
    restore(&cluster).await?;
    moved?;
    cluster.reset().await?;
    cluster.no_guests().await
}
