//! The agents are replaced while a guest moves: what carries it stays until it has moved.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{migration::MigrationPhase, names::conditions as types};
use drydock_tests::{
    Cluster,
    guests::{Collector, instance, only, ticks, without_a_gap},
    migrations::{how_it_went, node_of, phase},
    own_parts::AGENTS,
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
