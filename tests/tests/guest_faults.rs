//! Faults that guests survive, and the results of failures of their node, pod or launcher.
//!
//! The tests observe from outside, by numbered ticks, that a guest continues.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{Phase, VirtualMachineInstance, names, names::conditions as types};
use drydock_tests::{
    Cluster, agent,
    guests::{Collector, NAMESPACE, bare_instance, condition, instance, only, spec, ticks, without_a_gap},
    own_parts::AGENTS,
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};

/// The taint by which an administrator or a remediator confirms that a node is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// virsh in a launcher pod, connected to the pod's libvirtd.
const VIRSH: &str = "virsh -c 'qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock'";

/// Returns the manifest of an instance that can only run on `node`.
fn on(node: &str, instance: &str) -> String {
    let selector = format!("spec:\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n");
    instance.replace("spec:\n", &selector)
}

/// Waits until a node is ready, or not ready.
async fn until_ready(cluster: &Cluster, node: &str, ready: bool) -> Result<Node> {
    let what = format!("the node to be ready: {ready}");
    until(Api::all(cluster.client.clone()), node, &what, |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let found = conditions.into_iter().flatten().find(|one| one.type_ == "Ready");
        found.is_some_and(|one| (one.status == "True") == ready)
    })
    .await
}

/// Waits until the agent of a node is ready.
async fn until_agent(cluster: &Cluster, node: &str) -> Result<()> {
    until_some(&format!("the agent of {node}"), || async {
        let pod = cluster.agent_pod(node).await.ok();
        Ok(pod.is_some_and(|pod| agent::is_ready(&pod)).then_some(()))
    })
    .await
}

/// Returns the instance, its pod's UID, and the transition times of its conditions and phases.
async fn as_it_is(cluster: &Cluster, name: &str) -> Result<(VirtualMachineInstance, String, Vec<String>)> {
    let instance = cluster.instances().get(name).await?;
    let pod = cluster.launcher(name).await?.uid().unwrap_or_default();
    let status = instance.status.clone().unwrap_or_default();
    let since = status
        .conditions
        .iter()
        .map(|one| format!("{}={} since {:?}", one.type_, one.status, one.last_transition_time));
    let phases = status
        .phase_transition_timestamps
        .iter()
        .map(|one| format!("{} at {:?}", one.phase.as_str(), one.phase_transition_timestamp));
    let mut since: Vec<String> = since.chain(phases).collect();
    since.sort();
    Ok((instance, pod, since))
}

/// Deletes a pod by force, like an impatient user.
fn delete_by_force(cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.delete(&[
        "pod",
        pod,
        "--namespace",
        NAMESPACE,
        "--force",
        "--grace-period=0",
        "--wait=false",
    ])
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_survives_kubelet_restart_and_api_server_outage() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let node = cluster.first().to_owned();
    cluster
        .apply(&on(&node, &instance("steady", &collector.ticking("200ms"))))
        .await?;
    let boot = collector.first_boot().await?;
    cluster.until_vm_condition("steady", "Ready", "True").await?;
    cluster
        .until_vm_condition("steady", types::LIVE_MIGRATABLE, "True")
        .await?;
    let restarts = agent::restarts(&cluster.agent_pod(&node).await?);
    let before = as_it_is(&cluster, "steady").await?;

    cluster.embedded("restart", &[&format!("kubelet.{node}")])?;
    until_ready(&cluster, &node, true).await?;
    collector.until_more(&boot, 25).await?;

    cluster.embedded("stop", &["kube-apiserver"])?;
    // 200 ticks take 40 s, longer than a node of these clusters may be unresponsive (`node-monitor-grace-period`).
    let alive = collector.until_more(&boot, 200).await;
    cluster.embedded("start", &["kube-apiserver"])?;
    alive?;
    until_some("the API server", || async { Ok(cluster.node(&node).await.ok()) }).await?;
    until_ready(&cluster, &node, true).await?;
    until_agent(&cluster, &node).await?;
    // Later changes of the guest are reported again.
    let pod = cluster.launcher("steady").await?.name_any();
    let in_pod = |script: &str| cluster.kubectl(&["exec", &pod, "--", "sh", "-c", script]);
    collector.until_more(&boot, 5).await?;

    let after = as_it_is(&cluster, "steady").await?;
    assert_eq!(after.0.uid(), before.0.uid());
    assert_eq!(after.1, before.1, "the guest is in another pod");
    assert_eq!(after.2, before.2, "the status changed in between");
    assert_eq!(agent::restarts(&cluster.agent_pod(&node).await?), restarts);
    without_a_gap(&ticks(&cluster.console("steady").await?))?;
    without_a_gap(&only(collector.stop().await)?)?;
    in_pod(&format!("{VIRSH} suspend {NAMESPACE}_steady"))?;
    cluster.until_vm_condition("steady", "Paused", "True").await?;
    cluster.restart_kubelets()?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_of_isolated_node_runs_on_and_agent_confirms_ends() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = cluster.second().to_owned();
    for name in ["kept", "deleted"] {
        cluster.apply(&on(&node, &bare_instance(name))).await?;
    }
    for name in ["kept", "deleted"] {
        cluster.until_console(name, "drydock-guest ready").await?;
        cluster.until_vm_condition(name, "Ready", "True").await?;
    }
    let before = as_it_is(&cluster, "kept").await?;
    let pod = cluster.launcher("deleted").await?;
    let ticks_before = ticks(&cluster.console("kept").await?).len();

    cluster.embedded("isolate", &[&node])?;
    let isolated = async {
        until_ready(&cluster, &node, false).await?;
        let not_ready = cluster.until_vm_condition("kept", "Ready", "False").await?;
        assert_eq!(condition(&not_ready, "Ready").1, "NodeNotReady");
        delete_by_force(&cluster, &pod.name_any())?;
        let fenced = cluster
            .until_vm_condition("deleted", types::FENCING_REQUIRED, "True")
            .await?;
        let status = fenced.status.unwrap_or_default();
        assert_eq!(status.phase, Some(Phase::Running), "an unreachable guest was ended");
        ensure!(!status.active_pods.is_empty(), "the pod is missing");
        let message = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == types::FENCING_REQUIRED)
            .and_then(|condition| condition.message.clone())
            .unwrap_or_default();
        ensure!(message.contains(&node) && message.contains(OUT_OF_SERVICE), "{message}");
        let kept = cluster.instances().get("kept").await?;
        assert_eq!(kept.phase(), Some(Phase::Running));
        assert_eq!(condition(&kept, types::FENCING_REQUIRED).0, "");
        anyhow::Ok(())
    };
    let isolated = isolated.await;
    cluster.embedded("rejoin", &[&node])?;
    until_ready(&cluster, &node, true).await?;
    isolated?;

    // The kubelet ends the containers of a deleted pod, and the agent reports it.
    let ended = cluster.until_phase("deleted", Phase::Failed).await?;
    let status = ended.status.clone().unwrap_or_default();
    ensure!(status.active_pods.is_empty(), "{:?}", status.active_pods);
    assert_eq!(condition(&ended, types::FENCING_REQUIRED).0, "");
    assert_eq!(
        status.drydock.unwrap_or_default().ended_pods,
        [pod.uid().unwrap_or_default()],
        "the agent did not report the end of the pod"
    );
    cluster.delete(&["vmi", "deleted"])?;

    until_agent(&cluster, &node).await?;
    let ready_again = until_some("the readiness reported by the agent", || async {
        let kept = cluster.instances().get("kept").await?;
        Ok((condition(&kept, "Ready") == ("True".into(), String::new())).then_some(kept))
    });
    ready_again.await?;
    let after = as_it_is(&cluster, "kept").await?;
    assert_eq!(after.1, before.1, "the guest is in another pod");
    let console = until_some("more console output", || async {
        let text = cluster.console("kept").await.unwrap_or_default();
        Ok((ticks(&text).len() > ticks_before + 150).then_some(text))
    })
    .await?;
    without_a_gap(&ticks(&console))?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_of_powered_off_node_is_kept_until_out_of_service() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = cluster.second().to_owned();
    cluster.apply(&on(&node, &bare_instance("lost"))).await?;
    cluster.until_console("lost", "drydock-guest ready").await?;
    cluster.until_vm_condition("lost", "Ready", "True").await?;
    let pod = cluster.launcher("lost").await?.name_any();
    cluster.embedded("stop", &[&node])?;
    let off = async {
        until_ready(&cluster, &node, false).await?;
        let unknown = cluster.until_vm_condition("lost", "Ready", "False").await?;
        assert_eq!(condition(&unknown, "Ready").1, "NodeNotReady");
        assert_eq!(unknown.status.and_then(|status| status.phase), Some(Phase::Running));
        delete_by_force(&cluster, &pod)?;
        let fenced = cluster
            .until_vm_condition("lost", types::FENCING_REQUIRED, "True")
            .await?;
        assert_eq!(fenced.status.and_then(|status| status.phase), Some(Phase::Running));
        // The deletion of the instance also waits for the taint.
        cluster.delete(&["vmi", "lost", "--wait=false"])?;
        let waiting = cluster.instances().get("lost").await?;
        ensure!(waiting.metadata.deletion_timestamp.is_some());
        cluster.kubectl(&[
            "taint",
            "node",
            &node,
            &format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute"),
        ])?;
        cluster.until_gone("lost").await
    };
    let off = off.await;
    cluster.embedded("start", &[&node])?;
    // The removal fails if the taint was not set.
    let _ = cluster.kubectl(&["taint", "node", &node, &format!("{OUT_OF_SERVICE}-")]);
    until_ready(&cluster, &node, true).await?;
    off?;
    until_agent(&cluster, &node).await?;

    // Without a deletion, the instance fails with its node.
    cluster.apply(&on(&node, &bare_instance("failed"))).await?;
    cluster.until_console("failed", "drydock-guest ready").await?;
    cluster.until_phase("failed", Phase::Running).await?;
    cluster.embedded("stop", &[&node])?;
    cluster.kubectl(&[
        "taint",
        "node",
        &node,
        &format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute"),
    ])?;
    let failed = cluster.until_phase("failed", Phase::Failed).await;
    cluster.embedded("start", &[&node])?;
    cluster.kubectl(&["taint", "node", &node, &format!("{OUT_OF_SERVICE}-")])?;
    until_ready(&cluster, &node, true).await?;
    let status = failed?.status.unwrap_or_default();
    assert_eq!(status.reason.as_deref(), Some("NodeGone"));
    ensure!(status.active_pods.is_empty(), "{:?}", status.active_pods);
    until_agent(&cluster, &node).await?;
    cluster.delete(&["vmi", "failed"])?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn force_deleted_pod_is_replaced_only_after_the_guest_ended() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let control = collector.datagrams("50ms");
    cluster
        .apply(&format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: forced, namespace: {NAMESPACE}}}\n\
         spec:\n  runStrategy: Always\n  template:\n    spec:\n{}",
            spec(&control, 6)
        ))
        .await?;
    let boot = collector.first_boot().await?;
    let first = cluster.until_vm_condition("forced", "Ready", "True").await?;
    let pod = cluster.launcher("forced").await?;
    delete_by_force(&cluster, &pod.name_any())?;
    let second = until_some("another boot", || async {
        let all = collector.received().await;
        Ok(all.into_keys().find(|other| *other != boot))
    })
    .await?;
    collector.until_more(&second, 20).await?;
    cluster.delete(&["vm", "forced"])?;
    let order = collector.in_order().await;
    let last_of_first = order.iter().rposition(|tick| tick.boot == boot).context("first boot")?;
    let first_of_second = order.iter().position(|tick| tick.boot == second).context("next boot")?;
    ensure!(
        last_of_first < first_of_second,
        "two guests at once: {:?}",
        &order[first_of_second..=last_of_first]
    );
    let all = collector.stop().await;
    assert_eq!(all.len(), 2, "{:?}", all.keys());
    for ticks in all.values() {
        without_a_gap(ticks)?;
    }
    cluster.until_gone("forced").await?;
    ensure!(first.uid().is_some());

    // A bare instance reports the end of its pod.
    cluster.apply(&bare_instance("bare")).await?;
    cluster.until_vm_condition("bare", "Ready", "True").await?;
    let pod = cluster.launcher("bare").await?;
    delete_by_force(&cluster, &pod.name_any())?;
    let ended = cluster.until_phase("bare", Phase::Failed).await?;
    let status = ended.status.clone().unwrap_or_default();
    ensure!(status.active_pods.is_empty(), "{:?}", status.active_pods);
    let ended_pods = status.drydock.unwrap_or_default().ended_pods;
    assert_eq!(ended_pods, [pod.uid().unwrap_or_default()]);
    cluster.delete(&["vmi", "bare"])?;
    cluster.until_gone("bare").await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_of_deleted_node_never_runs_on_two_nodes() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    cluster
        .apply(&format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: removed, namespace: {NAMESPACE}}}\n\
         spec:\n  runStrategy: RerunOnFailure\n  template:\n    spec:\n{}",
            spec(&collector.datagrams("50ms"), 6)
        ))
        .await?;
    let boot = collector.first_boot().await?;
    let first = cluster.until_vm_condition("removed", "Ready", "True").await?;
    let node = first.status.and_then(|status| status.node_name).context("no node")?;
    collector.until_more(&boot, 20).await?;

    cluster.kubectl(&["delete", "node", &node, "--wait=false"])?;
    let elsewhere = async {
        let second = until_some("another boot", || async {
            let all = collector.received().await;
            Ok(all.into_keys().find(|other| *other != boot))
        })
        .await?;
        collector.until_more(&second, 20).await?;
        let instance = cluster.instances().get("removed").await?;
        anyhow::Ok((second, instance.status.and_then(|status| status.node_name)))
    };
    let elsewhere = elsewhere.await;
    // A kubelet registers its node only when it starts.
    cluster.embedded("restart", &[&format!("kubelet.{node}")])?;
    until_ready(&cluster, &node, true).await?;
    until_agent(&cluster, &node).await?;
    let (second, new_node) = elsewhere?;
    assert_ne!(new_node.as_deref(), Some(node.as_str()));
    let order = collector.in_order().await;
    let last_of_first = order.iter().rposition(|tick| tick.boot == boot).context("first boot")?;
    let first_of_second = order.iter().position(|tick| tick.boot == second).context("next boot")?;
    ensure!(
        last_of_first < first_of_second,
        "two guests at once: {:?}",
        &order[first_of_second..=last_of_first]
    );
    cluster.delete(&["vm", "removed"])?;
    let all = collector.stop().await;
    assert_eq!(all.len(), 2, "{:?}", all.keys());
    cluster.until_gone("removed").await
}

/// Returns the anonymous memory of a node's agent, in KiB.
fn memory(cluster: &Cluster, node: &str) -> Result<u64> {
    let pid = cluster.agent_process(node)?;
    let text = cluster.on_node(node, &format!("grep RssAnon /proc/{pid}/status"))?;
    let number = text.split_whitespace().nth(1).context("no RssAnon")?;
    Ok(number.parse()?)
}

/// Returns scripts that attack the agent from within a launcher's pod.
fn attacks() -> [(&'static str, String); 6] {
    let libvirtd =
        "for p in /proc/[0-9]*; do if [ \"$(cat $p/comm 2>/dev/null)\" = libvirtd ]; then echo ${p#/proc/}; fi; done";
    let garbage = "perl -MIO::Socket::UNIX -e 'my $l = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 5) or die; \
                   while (my $c = $l->accept) { print $c qq(\\x00\\x00\\x00\\x1c) . qq(\\xff) x 4000; sleep 1; close $c }' \
                   /run/drydock/libvirt/libvirt-sock >/dev/null 2>&1 &";
    [
        ("a libvirtd that hangs", format!("kill -STOP $({libvirtd})")),
        (
            "files that lead out of the pod",
            "cd /run/drydock && ln -sf ../../../../../../etc/shadow ready.json && rm -f libvirt/libvirt-sock && \
             ln -s /run/containerd/containerd.sock libvirt/libvirt-sock"
                .to_owned(),
        ),
        (
            "a libvirtd that talks garbage",
            format!("rm -f /run/drydock/libvirt/libvirt-sock; {garbage} kill -KILL $({libvirtd}); true"),
        ),
        (
            "files without end",
            "cd /run/drydock && rm -f ready.json && head -c 80000000 /dev/zero >ready.json && mkdir junk && \
             for i in $(seq 3000); do : >junk/$i; : >x$i; done; rm -f x*; echo '{' >ready.json"
                .to_owned(),
        ),
        (
            "many processes",
            "for i in $(seq 200); do sleep 300 >/dev/null 2>&1 & done; true".to_owned(),
        ),
        // A FIFO blocks any process that opens it.
        (
            "a file that blocks",
            "cd /run/drydock && rm -f ready.json && mkfifo ready.json".to_owned(),
        ),
    ]
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn hostile_launcher_harms_only_the_own_guest() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let node = cluster.first().to_owned();
    cluster.apply(&on(&node, &bare_instance("hostile"))).await?;
    cluster
        .apply(&on(&node, &instance("neighbour", &collector.ticking("200ms"))))
        .await?;
    let boot = collector.first_boot().await?;
    for name in ["hostile", "neighbour"] {
        cluster.until_vm_condition(name, "Ready", "True").await?;
    }
    let restarts = agent::restarts(&cluster.agent_pod(&node).await?);
    let before = memory(&cluster, &node)?;
    let (hostile, neighbour) = (cluster.launcher("hostile").await?, cluster.launcher("neighbour").await?);
    let exec = |pod: &str, script: &str| cluster.kubectl(&["exec", pod, "--", "sh", "-c", script]);
    let in_hostile = |script: &str| exec(&hostile.name_any(), script);
    for (number, (case, script)) in attacks().iter().enumerate() {
        in_hostile(script).with_context(|| (*case).to_owned())?;
        // The agent still reacts to other guests.
        exec(&neighbour.name_any(), &format!("{VIRSH} suspend {NAMESPACE}_neighbour"))?;
        cluster
            .until_vm_condition("neighbour", "Paused", "True")
            .await
            .with_context(|| (*case).to_owned())?;
        exec(&neighbour.name_any(), &format!("{VIRSH} resume {NAMESPACE}_neighbour"))?;
        cluster.until_vm_condition("neighbour", "Ready", "True").await?;
        collector.until_more(&boot, 3).await?;
        // Other guests can still be created and deleted.
        if number % 2 == 0 {
            let name = format!("visitor{number}");
            // The guest may be deleted before it has started and can react to a shutdown request.
            let hurried = on(&node, &bare_instance(&name)).replace("PeriodSeconds: 30", "PeriodSeconds: 0");
            cluster.apply(&hurried).await?;
            cluster
                .until_vm_condition(&name, "Ready", "True")
                .await
                .with_context(|| (*case).to_owned())?;
            cluster.delete(&["vmi", &name, "--wait=false"])?;
            cluster.until_gone(&name).await?;
        }
        assert_eq!(agent::restarts(&cluster.agent_pod(&node).await?), restarts, "{case}");
        let instance = cluster.instances().get("hostile").await?;
        let phase = instance.status.and_then(|status| status.phase);
        ensure!(phase.is_some_and(|phase| phase >= Phase::Running), "{case}: {phase:?}");
    }
    let after = memory(&cluster, &node)?;
    ensure!(after < before + 8192, "the agent grew from {before} to {after} KiB");
    println!("the agent has {after} KiB of anonymous memory, it had {before}");
    without_a_gap(&only(collector.stop().await)?)?;
    // The pod of the attacker can still be deleted.
    cluster.delete(&["vmi", "hostile", "--wait=false"])?;
    cluster.until_gone("hostile").await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guests_that_start_while_agents_are_replaced_start_once() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    for round in [["a1", "a2", "a3", ""], ["b1", "b2", "b3", ""], ["c1", "c2", "c3", "c4"]] {
        let names: Vec<&str> = round.into_iter().filter(|name| !name.is_empty()).collect();
        cluster.restart(AGENTS)?;
        for name in &names {
            cluster.apply(&bare_instance(name)).await?;
        }
        for name in &names {
            cluster.until_vm_condition(name, "Ready", "True").await?;
            cluster.until_console(name, "tick 5 ").await?;
        }
        cluster.rolled_out(AGENTS)?;
        for name in &names {
            cluster.goes_on(name).await?;
            let instance = cluster.instances().get(name).await?;
            assert_eq!(cluster.launchers_of(&instance).await?.len(), 1, "{name}");
            assert_eq!(instance.status.and_then(|status| status.phase), Some(Phase::Running));
            let running: Result<Vec<usize>> = cluster
                .nodes
                .iter()
                .map(|node| cluster.guests_on(node, NAMESPACE, name))
                .collect();
            assert_eq!(running?.iter().sum::<usize>(), 1, "{name}");
        }
        cluster.no_guests().await?;
    }
    // No launcher pod is left.
    let launchers = ListParams::default().labels(&format!("{}={}", names::APP, names::VIRT_LAUNCHER));
    ensure!(cluster.pods().list(&launchers).await?.items.is_empty());
    Ok(())
}
