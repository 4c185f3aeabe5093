//! The agents are replaced while a guest moves: what carries it stays until it has moved.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{migration::MigrationPhase, names::conditions as types};
use drydock_tests::{
    Cluster,
    cluster::setting,
    guests::{Collector, instance, only, ticks, without_a_gap},
    migrations::{how_it_went, node_of, phase},
    own_parts::{AGENTS, CONTROLLERS},
    watching::until_some,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

/// So slow that all agents are replaced before the guest has moved, and nobody loses patience.
const HELD: &str = "bandwidthPerMigration: 2Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0";

/// Pods of agents and tunnels, those on their way out among them.
async fn agent_pods(cluster: &Cluster) -> Result<Vec<Pod>> {
    let wanted = ListParams::default().labels("app.kubernetes.io/name=drydock-agent");
    let all = Api::<Pod>::namespaced(cluster.client.clone(), "drydock");
    Ok(all.list(&wanted).await?.items)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_guest_moves_on_while_all_agents_are_replaced() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.limit_migrations(HELD)?;
    let collector = Collector::start(&cluster).await?;
    let name = "passenger";
    let control = collector.ticking("50ms");
    cluster.apply(&instance(name, &control))?;
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
    // Both old pods are still there for the guest that is on its way.
    let moving = cluster.migrations().get(&migration).await?;
    assert_eq!(
        phase(&moving),
        Some(MigrationPhase::Running),
        "{}",
        how_it_went(&moving)
    );
    let pods = agent_pods(&cluster).await?;
    for (node, old, _) in &before {
        let left = pods.iter().find(|pod| pod.name_any() == *old);
        let left = left.with_context(|| format!("the old tunnel of {node} has not stayed"))?;
        ensure!(
            left.metadata.deletion_timestamp.is_some(),
            "{old} is not on its way out"
        );
    }

    let (_, after) = cluster.until_migrated(&migration).await?;
    ensure!(node_of(&after)? != from, "it is still on {from}");
    let one = cluster.until_one_pod(name).await?;
    let to = node_of(&after)?;
    assert_eq!(one.spec.and_then(|spec| spec.node_name), Some(to.clone()));
    // No second one of it is left behind anywhere.
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

/// A folder for `kubectl apply -k` that `hack/test --previous-release` makes.
fn folder(variable: &str) -> Result<String> {
    setting(variable).with_context(|| format!("{variable} names no folder: run hack/test --previous-release"))
}

/// Moves a guest to another node, where it goes on as it was.
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

/// Puts everything back as this version has it.
async fn restore(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["apply", "-k", &folder("DRYDOCK_THIS_RELEASE")?])?;
    cluster.rolled_out(AGENTS)?;
    cluster.rolled_out(CONTROLLERS)?;
    cluster.until_whole().await
}

/// A guest that counts, while parts of the cluster are of the previous release; none of its numbers may be missing.
async fn counts_through<T: Future<Output = Result<()>>>(
    cluster: &Cluster,
    name: &str,
    moves: impl FnOnce() -> T,
) -> Result<()> {
    let collector = Collector::start(cluster).await?;
    let control = collector.ticking("50ms");
    cluster.apply(&instance(name, &control))?;
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
    // What runs goes on until it is deleted.
    cluster.kubectl(&["apply", "-k", &folder("DRYDOCK_PREVIOUS_AGENTS")?])?;
    let name = "mixed";
    let moved = counts_through(&cluster, name, || async {
        for node in &cluster.nodes[..2] {
            let agent = cluster.agent_pod(node).await?;
            cluster.delete(&["pod", &agent.name_any(), "--namespace=drydock", "--timeout=90s"])?;
            cluster.until_new_agent(node, &agent.uid().context("a UID")?).await?;
            // From this version to the previous and back; then, as both nodes have it, within that.
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
