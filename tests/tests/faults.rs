//! Failures are reported, preserve the known state, and recover automatically.

use anyhow::{Context, Result, ensure};
use drydock_api::{
    kubevirt::{VirtualMachineInstance, names::conditions},
    labels as keys, reasons,
};
use drydock_tests::{
    Cluster, agent,
    guests::{bare_instance, condition},
    own_parts::AGENTS,
    recorder::states_of,
    watching::{until, until_some},
};
use kube::ResourceExt;
use serde_json::Value;

/// Returns the manifest of a pod that runs `drydock-agent inspect` with a /dev/kvm created for it, privileged or not.
fn inspecting_pod(node: &str, privileged: bool, extra: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: inspect, namespace: default}}\nspec:\n  nodeName: {node}\n  \
         restartPolicy: Never\n  containers:\n  - name: inspect\n    image: localhost/drydock/agent:dev\n    \
         command: [drydock-agent, inspect, --output, json]\n    securityContext: {{privileged: {privileged}}}\n    \
         volumeMounts: [{extra}]\n  volumes:\n  - name: kvm\n    hostPath: {{path: /var/lib/drydock/test-kvm}}\n"
    )
}

async fn inspected(cluster: &Cluster, manifest: &str) -> Result<Value> {
    cluster.reset().await?;
    cluster.kubectl_with(&["create"], manifest)?;
    let phase = until_some("the inspecting pod to end", || async {
        let phase = cluster.kubectl(&["get", "pod", "inspect", "-o", "jsonpath={.status.phase}"])?;
        Ok(matches!(phase.as_str(), "Succeeded" | "Failed").then_some(phase))
    })
    .await?;
    let log = cluster.kubectl(&["logs", "inspect"])?;
    ensure!(phase == "Succeeded", "{phase}: {log}");
    let start = log.find('{').context("no JSON")?;
    Ok(serde_json::from_str(&log[start..])?)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn missing_forbidden_and_unusable_kvm_are_distinguished() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let node = cluster.first();
    let minor = std::fs::metadata("/dev/kvm").is_ok();
    cluster.on_node(
        node,
        "rm -f /var/lib/drydock/test-kvm && mknod -m 0666 /var/lib/drydock/test-kvm c 10 232",
    )?;
    let mount = "{name: kvm, mountPath: /dev/kvm}";

    let absent = inspected(&cluster, &inspecting_pod(node, true, "")).await?;
    assert_eq!(absent["kvm"]["state"], "NoDevice");
    assert_eq!(absent["virtualization"]["virtType"], "qemu");

    // Root may open any file; only the container's device rules prevent it.
    let forbidden = inspected(&cluster, &inspecting_pod(node, false, mount)).await?;
    assert_eq!(forbidden["kvm"]["state"], "NotPermitted", "{}", forbidden["kvm"]);

    if minor {
        let present = inspected(&cluster, &inspecting_pod(node, true, mount)).await?;
        let state = present["kvm"]["state"].as_str().unwrap_or_default();
        let usable = present["virtualization"]["virtType"] == "kvm";
        ensure!(["Usable", "NoUsableModel"].contains(&state), "{}", present["kvm"]);
        assert_eq!(usable, state == "Usable", "{}", present["kvm"]);
    } else {
        println!("SKIPPED the machine has no /dev/kvm to show to a pod");
    }
    cluster.on_node(node, "rm -f /var/lib/drydock/test-kvm")?;
    cluster.reset().await
}

/// Replaces libvirtd on a node; the file `test-mode` beside it selects its behaviour.
const FAKE_LIBVIRTD: &str = r#"#!/bin/sh
case "$(cat /var/lib/drydock/test-mode)" in
    hang) exec sleep 3600 ;;
    exit) echo "libvirtd: something is wrong" >&2; exit 3 ;;
    crash) libvirtd "$@" & daemon=$!
        until [ -S "$XDG_RUNTIME_DIR/libvirt/libvirt-sock" ]; do sleep 0.01; done
        kill -SEGV $daemon; exit 139 ;;
    garbage) exec perl /var/lib/drydock/test-libvirtd.pl "$@" ;;
    *) exec libvirtd "$@" ;;
esac
"#;

/// The program that the fake runs in mode `garbage`.
const GARBLING_LIBVIRTD: &str = include_str!("../oracle/garbling_libvirtd.pl");

/// Installs the fake libvirtd on each node, in the mode in which it works correctly.
fn install_fake_libvirtd(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let script = format!(
            "cd /var/lib/drydock && printf ok >test-mode && cat >test-libvirtd <<'END'\n{FAKE_LIBVIRTD}END\nchmod 755 test-libvirtd"
        );
        cluster.on_node(node, &script)?;
        let script = format!("cat >/var/lib/drydock/test-libvirtd.pl <<'END'\n{GARBLING_LIBVIRTD}END");
        cluster.on_node(node, &script)?;
    }
    Ok(())
}

/// Sets a mode in which libvirtd fails, and checks that the agent reports the failure and keeps its facts.
async fn check_broken(cluster: &Cluster, node: &str, mode: &str, reason: Option<&str>) -> Result<()> {
    // The program itself is touched, so that the agent detects a change and inspects again.
    cluster.on_node(
        node,
        &format!("cd /var/lib/drydock && printf {mode} >test-mode && touch test-libvirtd"),
    )?;
    let failed = until_some("a failed inspection", || async {
        let hypervisor = cluster.hypervisor(node).await?;
        let (status, why) = agent::condition(&hypervisor, "Inspected");
        Ok((status == "False" && reason.is_none_or(|reason| why == reason)).then_some(hypervisor))
    })
    .await?;
    let status = failed.status.clone().context("no status")?;
    ensure!(
        status.inspection.is_some_and(|record| record.stale),
        "{mode}: the facts are not marked stale"
    );
    ensure!(
        status.facts.is_some_and(|facts| facts.virtualization.is_some()),
        "{mode}: the facts were removed"
    );
    assert_eq!(agent::condition(&failed, "Ready").0, "True", "{mode}");
    Ok(())
}

/// Checks that the agent still works, repairs libvirtd, and waits until the agent has inspected the node again.
async fn check_mended(cluster: &Cluster, node: &str) -> Result<()> {
    cluster
        .label(node, &[("cpu-model.node.kubevirt.io/Forged", Some("true"))])
        .await?;
    cluster
        .until_label(node, "cpu-model.node.kubevirt.io/Forged", None)
        .await?;
    cluster.on_node(
        node,
        "cd /var/lib/drydock && printf ok >test-mode && touch test-libvirtd",
    )?;
    cluster.until_condition(node, "Inspected", "True", "Inspected").await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn broken_libvirtd_costs_nothing_but_fresh_facts() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    install_fake_libvirtd(&cluster)?;
    let before = cluster.agent_pod(node).await?.uid().unwrap_or_default();
    cluster.kubectl(&[
        "-n",
        "drydock",
        "set",
        "env",
        "daemonset/drydock-agent",
        "DRYDOCK_LIBVIRTD=/var/lib/drydock/test-libvirtd",
        "DRYDOCK_FINGERPRINT_INTERVAL=1s",
        "DRYDOCK_INSPECTION_TIMEOUT=4s",
    ])?;
    cluster.rolled_out(AGENTS)?;
    cluster.until_new_agent(node, &before).await?;
    cluster.until_condition(node, "Inspected", "True", "Inspected").await?;
    let labels = cluster.cpu_labels(node).await?;
    let restarts = agent::restarts(&cluster.agent_pod(node).await?);

    for (mode, reason) in [
        ("hang", Some("LibvirtdSocketNotOpened")),
        ("exit", Some("LibvirtdExited")),
        // libvirtd crashes before, during or after a connection, at random.
        ("crash", None),
        ("garbage", Some("LibvirtResponseInvalid")),
    ] {
        check_broken(&cluster, node, mode, reason)
            .await
            .with_context(|| mode.to_owned())?;
        assert_eq!(cluster.cpu_labels(node).await?, labels, "{mode}");
        check_mended(&cluster, node).await.with_context(|| mode.to_owned())?;
    }
    ensure!(
        !cluster
            .node_events(node, reasons::events::INSPECTION_FAILED)
            .await?
            .is_empty(),
        "no event"
    );
    assert_eq!(
        agent::restarts(&cluster.agent_pod(node).await?),
        restarts,
        "the agent was restarted"
    );
    let left = cluster.in_agent(node, "cat /proc/[0-9]*/comm").await?;
    for process in ["libvirtd", "qemu-system", "sleep"] {
        ensure!(
            !left.lines().any(|name| name.starts_with(process)),
            "{process} is still running:\n{left}"
        );
    }
    let uid = cluster.agent_pod(node).await?.uid().unwrap_or_default();
    cluster.kubectl(&[
        "-n",
        "drydock",
        "set",
        "env",
        "daemonset/drydock-agent",
        "DRYDOCK_LIBVIRTD-",
        "DRYDOCK_FINGERPRINT_INTERVAL-",
        "DRYDOCK_INSPECTION_TIMEOUT-",
    ])?;
    cluster.rolled_out(AGENTS)?;
    cluster.until_new_agent(node, &uid).await?;
    for node in &cluster.nodes {
        cluster.on_node(node, "rm -f /var/lib/drydock/test-libvirtd* /var/lib/drydock/test-mode")?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_killed_agent_comes_back_and_no_label_moves() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let before = cluster.cpu_labels(node).await?;
    let restarts = agent::restarts(&cluster.agent_pod(node).await?);
    let recorder = cluster.record_node(node).await?;
    let pid = cluster.agent_process(node)?;
    cluster.on_node(node, &format!("kill -KILL {pid}"))?;
    until_some("a restarted agent", || async {
        let pod = cluster.agent_pod(node).await?;
        Ok((agent::restarts(&pod) > restarts && agent::is_ready(&pod)).then_some(()))
    })
    .await?;
    cluster
        .label(node, &[("cpu-model.node.kubevirt.io/Forged", Some("true"))])
        .await?;
    cluster
        .until_label(node, "cpu-model.node.kubevirt.io/Forged", None)
        .await?;
    for state in states_of(recorder.stop().await?, node) {
        let labels = state.labels();
        ensure!(
            before.iter().all(|(key, value)| labels.get(key) == Some(value)),
            "a label was removed or changed: {labels:?}"
        );
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agents_go_on_when_the_api_server_is_back() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let restarts = agent::restarts(&cluster.agent_pod(node).await?);
    cluster.embedded("restart", &["kube-apiserver"])?;
    until_some("the API server", || async { Ok(cluster.node(node).await.ok()) }).await?;
    let forged = "cpu-model.node.kubevirt.io/Forged";
    cluster.label(node, &[(forged, Some("true"))]).await?;
    cluster.until_label(node, forged, None).await?;
    assert_eq!(agent::restarts(&cluster.agent_pod(node).await?), restarts);
    Ok(())
}

/// Name of a guest that is created on a node whose agent is stopped.
const WAITING_GUEST: &str = "waiting";

/// Creates a guest on a node whose agent is stopped, and waits until the instance has the reason why it does not start.
async fn guest_waits_for_a_stopped_agent(cluster: &Cluster, node: &str) -> Result<()> {
    let selector = format!("spec:\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n");
    cluster
        .apply(&bare_instance(WAITING_GUEST).replace("spec:\n", &selector))
        .await?;
    let waits = |instance: &VirtualMachineInstance| {
        condition(instance, conditions::SYNCHRONIZED) == ("False".into(), "PodNotAdmitted".into())
    };
    until(cluster.instances(), WAITING_GUEST, "PodNotAdmitted", waits)
        .await
        .map(drop)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn node_of_unresponsive_agent_is_unschedulable_until_recovery() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.reset().await?;
    let node = cluster.second();
    let pid = cluster.agent_process(node)?;
    cluster.on_node(node, &format!("kill -STOP {pid}"))?;
    let unresponsive = async {
        guest_waits_for_a_stopped_agent(&cluster, node).await?;
        cluster.until_label(node, keys::SCHEDULABLE, Some("false")).await
    }
    .await;
    cluster.on_node(node, &format!("kill -CONT {pid}"))?;
    unresponsive?;
    cluster.until_label(node, keys::SCHEDULABLE, Some("true")).await?;
    until_some("an event", || async {
        Ok((!cluster
            .node_events(node, reasons::events::NODE_UNRESPONSIVE)
            .await?
            .is_empty())
        .then_some(()))
    })
    .await?;
    cluster.no_guests().await
}
