//! `kubectl drydock` on a real cluster: drains happen as the plan predicts.

use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::Phase;
use drydock_cli::{Exit, Terminal};
use drydock_tests::{
    Cluster,
    drains::counting,
    guests::{NAMESPACE, bare_instance},
    migrations::node_of,
    watching::{until, until_some},
};
use serde_json::Value;

/// Starts a command line in a thread, which returns its exit code and its output.
fn start(cluster: &Cluster, arguments: &[&str]) -> JoinHandle<(Exit, String)> {
    let mut line = vec!["kubectl-drydock".to_owned()];
    line.extend(arguments.iter().map(|&argument| argument.to_owned()));
    line.extend(["--kubeconfig".to_owned(), cluster.kubeconfig().display().to_string()]);
    // A thread is necessary, since the command line has its own async runtime.
    thread::spawn(move || {
        let mut out = Vec::new();
        let exit = drydock_cli::run(line, &Terminal { width: 80 }, &mut out);
        (exit, String::from_utf8_lossy(&out).into_owned())
    })
}

/// Runs a command line, and returns its exit code and its output.
fn run(cluster: &Cluster, arguments: &[&str]) -> Result<(Exit, String)> {
    let done = start(cluster, arguments).join();
    done.ok().context("the command panicked")
}

fn names(plan: &Value, list: &str) -> Vec<String> {
    let guests = plan["nodes"][0][list].as_array().into_iter().flatten();
    guests
        .filter_map(|guest| Some(guest["name"].as_str()?.to_owned()))
        .collect()
}

/// Checks that tables, explanations and versions are about the node with the guests `mover` and `stays`.
fn tables_and_explanations_agree(cluster: &Cluster, node: &str) -> Result<()> {
    let (_, text) = run(cluster, &["top", "vms", "--sort-by", "memory"])?;
    ensure!(
        text.lines()
            .any(|line| line.starts_with(&format!("{NAMESPACE}/mover ")) && line.contains(node)),
        "{text}"
    );
    let (exit, text) = run(cluster, &["explain", "node", &format!("node/{node}")])?;
    ensure!(
        exit == Exit::Done && text.contains("may start if") && text.contains("moves 1, stops 1, is blocked by 0"),
        "{text}"
    );
    let (exit, explained) = run(cluster, &["explain", "node", node, "-o", "json"])?;
    let explained: Value = serde_json::from_str(&explained)?;
    if let Some(model) = explained["cpu"]["usable"][0].as_str() {
        let (_, text) = run(cluster, &["explain", "model", model, "--node", node])?;
        ensure!(
            exit == Exit::Done && text.contains("guests can have this model on 1 of 1 nodes"),
            "{text}"
        );
    }
    let (exit, text) = run(cluster, &["version"])?;
    ensure!(
        exit == Exit::Done && text.contains("agents ") && !text.contains("not read"),
        "{text}"
    );
    Ok(())
}

/// Checks that each command finds the migration of `mover` from one node to another one.
fn migration_is_explained(cluster: &Cluster, node: &str, target: &str) -> Result<()> {
    let vm = format!("{NAMESPACE}/mover");
    let (exit, text) = run(cluster, &["watch", "--vm", &vm, "--timeout", "60"])?;
    ensure!(
        exit == Exit::Done && text.contains(&format!(" {node} {vm} Succeeded ")),
        "{text}"
    );
    let (_, migrations) = run(cluster, &["top", "migrations", "-o", "json"])?;
    let migrations: Value = serde_json::from_str(&migrations)?;
    let migration = migrations["items"][0]["name"]
        .as_str()
        .context("no migration")?
        .to_owned();
    let (_, text) = run(cluster, &["explain", "migration", &migration, "-n", NAMESPACE])?;
    // The text may be wrapped.
    let plain_text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(
        plain_text.contains(&format!("moves {vm} from {node} to {target}")),
        "{text}"
    );
    Ok(())
}

/// Starts a movable guest and a guest that is pinned to the same node. Returns the node.
async fn start_mover_and_pinned(cluster: &Cluster) -> Result<String> {
    cluster.apply(&counting("mover", "LiveMigrate")).await?;
    cluster.until_phase("mover", Phase::Running).await?;
    let node = node_of(&cluster.instances().get("mover").await?)?;
    let pinned = counting("stays", "None").replace(
        "spec:\n",
        &format!("spec:\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n"),
    );
    cluster.apply(&pinned).await?;
    cluster.until_phase("stays", Phase::Running).await?;
    until(cluster.instances(), "mover", "LiveMigratable", |instance| {
        let status = instance.status.as_ref();
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.type_ == "LiveMigratable" && condition.status == "True")
    })
    .await?;
    Ok(node)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn maintenance_result_matches_the_plan() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = start_mover_and_pinned(&cluster).await?;

    // The PDB of another pod on the node may not allow an eviction for a moment.
    let named = format!("node/{node}");
    let plan = until_some("a plan without waiting guests", || async {
        let (exit, plan) = run(&cluster, &["plan", &named, "-o", "json"])?;
        Ok((exit == Exit::WouldStop).then_some(plan))
    })
    .await?;
    let plan: Value = serde_json::from_str(&plan)?;
    assert_eq!(names(&plan, "moves"), ["mover"], "{plan}");
    assert_eq!(names(&plan, "stops"), ["stays"], "{plan}");
    assert_eq!(names(&plan, "blocks"), [""; 0], "{plan}");
    let target = plan["nodes"][0]["moves"][0]["target"]
        .as_str()
        .context("no target")?
        .to_owned();
    let (_, text) = run(&cluster, &["plan", &node])?;
    ensure!(
        text.contains(&format!("{NAMESPACE}/mover")) && text.contains("MOVES 1"),
        "{text}"
    );

    let (exit, text) = run(&cluster, &["explain", "vm", &format!("{NAMESPACE}/mover")])?;
    ensure!(
        exit == Exit::Done && text.contains(&format!("{target} can run the guest")),
        "{text}"
    );
    let (_, text) = run(&cluster, &["explain", "vm", "stays", "-n", NAMESPACE])?;
    ensure!(
        text.contains("a drain         shuts the guest down") && text.contains("does not have the label"),
        "{text}"
    );
    let (_, text) = run(&cluster, &["top"])?;
    ensure!(
        text.lines()
            .any(|line| line.starts_with(&node) && line.contains("Open")),
        "{text}"
    );

    tables_and_explanations_agree(&cluster, &node)?;
    let (exit, text) = run(&cluster, &["maintenance", "start", &node, "--reason", "new disk"])?;
    ensure!(
        exit == Exit::Done && text == format!("maintenance of node {node} started\n"),
        "{text}"
    );
    let (_, text) = run(&cluster, &["maintenance", "start", &node])?;
    ensure!(text.contains("is already in maintenance"), "{text}");
    let (exit, text) = run(&cluster, &["maintenance", "show", &node])?;
    ensure!(exit == Exit::Done && text.contains("new disk"), "{text}");
    let moved = until(cluster.instances(), "mover", "a move to another node", |instance| {
        node_of(instance).is_ok_and(|now| now != node)
    })
    .await?;
    assert_eq!(node_of(&moved)?, target);
    migration_is_explained(&cluster, &node, &target)?;
    until_some("the maintenance in the list", || async {
        let (_, text) = run(&cluster, &["maintenance", "list"])?;
        Ok((text.contains(&node) && text.contains("Succeeded") && text.contains("new disk")).then_some(()))
    })
    .await?;

    let (exit, _) = run(&cluster, &["maintenance", "stop", &node])?;
    assert_eq!(exit, Exit::Done);
    until_some("no node in maintenance", || async {
        let (_, text) = run(&cluster, &["maintenance", "list"])?;
        Ok((text == "no node is in maintenance\n").then_some(()))
    })
    .await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drain_is_followed_until_finished_or_cancelled() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // The host name label of this node matches no other node.
    let node = {
        let nodes = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
        nodes.trim().to_owned()
    };
    let pinned = bare_instance("pinned").replace(
        "spec:\n",
        &format!("spec:\n  evictionStrategy: LiveMigrate\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n"),
    );
    cluster.apply(&pinned).await?;
    cluster.until_phase("pinned", Phase::Running).await?;
    let (exit, text) = run(&cluster, &["drain", &node, "--timeout", "20"])?;
    ensure!(exit == Exit::NotInTime, "{exit:?}: {text}");
    let line = format!(" {node} {NAMESPACE}/pinned Blocked NoTargetAvailable ");
    ensure!(text.contains(&line), "{text}");

    let watching = start(&cluster, &["watch", &node, "--timeout", "120", "-o", "json"]);
    // The watch prints the current state first, so the maintenance can be stopped at any time after the watch has shown
    // it.
    let stopped = until_some("the watch to be cancelled", || async {
        if watching.is_finished() {
            return Ok(Some(()));
        }
        run(&cluster, &["maintenance", "stop", &node])?;
        run(&cluster, &["maintenance", "start", &node])?;
        Ok(None)
    });
    stopped.await?;
    let (exit, text) = watching.join().ok().context("the command panicked")?;
    ensure!(exit == Exit::Cancelled, "{exit:?}: {text}");
    let last: Value = serde_json::from_str(text.lines().next_back().context("no line")?)?;
    assert_eq!(
        (&last["kind"], &last["reason"]),
        (&"DrainEvent".into(), &"MaintenanceStopped".into())
    );

    run(&cluster, &["maintenance", "stop", &node])?;
    cluster.no_guests().await?;
    until_some("no node in maintenance", || async {
        let (_, text) = run(&cluster, &["maintenance", "list"])?;
        Ok((text == "no node is in maintenance\n").then_some(()))
    })
    .await?;
    let (exit, text) = run(&cluster, &["drain", &node, "--timeout", "120"])?;
    ensure!(
        exit == Exit::Done && text.contains(" Empty MaintenanceSucceeded "),
        "{exit:?}: {text}"
    );
    run(&cluster, &["maintenance", "stop", &node])?;
    until_some("no node in maintenance", || async {
        let (_, text) = run(&cluster, &["maintenance", "list"])?;
        Ok((text == "no node is in maintenance\n").then_some(()))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn command_failure_has_the_exit_code_of_the_reason() -> Result<()> {
    let cluster = Cluster::connect().await?;
    for (arguments, expected) in [
        (&["plan", "no-such-node"][..], Exit::Error),
        (&["plan", "-l", "no-such=label"], Exit::Error),
        (&["explain", "vm", "no-such/vm"], Exit::Error),
        (&["explain", "vm", "no-such/vm", "--node", "no-such-node"], Exit::Error),
        (&["explain", "node", "no-such-node"], Exit::Error),
        (&["explain", "model", "EPYC", "--node", "no-such-node"], Exit::Error),
        (&["explain", "migration", "no-such/migration"], Exit::Error),
        (&["top", "--as", "nobody"], Exit::NotAllowed),
        (&["top", "vms", "--sort-by", "no-such-column"], Exit::Error),
        (&["watch", "--vm", "no-such/vm"], Exit::Error),
        (&["maintenance", "show", "no-such-node"], Exit::Error),
        (&["plan"], Exit::Usage),
        (&["plan", "a", "-o", "xml"], Exit::Usage),
        (&["maintenance", "stop", "no-such-node"], Exit::Error),
        (&["maintenance", "start", "no-such-node"], Exit::Error),
        (&["plan", "a", "--as", "nobody"], Exit::NotAllowed),
        (&["plan", "a", "--context", "no-such-context"], Exit::Error),
    ] {
        let (exit, text) = run(&cluster, arguments)?;
        ensure!(exit == expected, "{arguments:?}: {exit:?}: {text}");
    }
    Ok(())
}
