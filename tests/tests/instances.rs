//! Real guests boot, are reported correctly, and survive faults of the components around them.

use anyhow::{Context, Result, ensure};
use drydock_api::{
    kubevirt::{Phase, VirtualMachineInstance, names},
    labels,
};
use drydock_tests::{
    Cluster, agent,
    guests::{Collector, NAMESPACE, bare_instance, condition, instance, only, ticks, without_a_gap},
    own_parts::AGENTS,
    watching::{until, until_some},
};
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, LogParams},
};

/// The VirtualMachineInstance in KubeVirt's documentation of node drains, verbatim.
const DOCUMENTED: &str = r"
apiVersion: kubevirt.io/v1alpha3
kind: VirtualMachineInstance
metadata:
  name: testvmi-nocloud
spec:
  terminationGracePeriodSeconds: 30
  evictionStrategy: LiveMigrate
  domain:
    resources:
      requests:
        memory: 1024M
    devices:
      disks:
      - name: containerdisk
        disk:
          bus: virtio
      - disk:
          bus: virtio
        name: cloudinitdisk
  volumes:
  - name: containerdisk
    containerDisk:
      image: kubevirt/fedora-cloud-container-disk-demo:latest
  - name: cloudinitdisk
    cloudInitNoCloud:
      userData: |-
        #cloud-config
        password: fedora
        chpasswd: { expire: False }
";

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn documented_instance_boots_and_is_shown_like_in_kubevirt() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "testvmi-nocloud";
    // Applies the manifest like a user.
    cluster.kubectl_with(&["apply"], DOCUMENTED)?;
    let console = cluster.until_console(name, "drydock-guest ready").await?;
    ensure!(
        console.contains("hostname=testvmi-nocloud") && console.contains("data=nocloud"),
        "cloud-init's data was not seen:\n{console}"
    );
    let running = cluster.until_vm_condition(name, "Ready", "True").await?;
    let status = running.status.clone().context("no status")?;
    assert_eq!(status.phase, Some(Phase::Running));
    assert_eq!(condition(&running, "LiveMigratable").0, "True");
    let drydock = status.drydock.context("no status.drydock")?;
    ensure!(drydock.guest_cpu.is_some_and(|cpu| !cpu.model.is_empty()), "no CPU");
    ensure!(drydock.images.len() == 1, "{:?}", drydock.images);
    let table = cluster.kubectl(&["get", "vmis", name, "-o", "wide"])?;
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(
        header,
        [
            "NAME",
            "AGE",
            "PHASE",
            "IP",
            "NODENAME",
            "READY",
            "LIVE-MIGRATABLE",
            "PAUSED",
            "REASON"
        ]
    );
    let row: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let pod = cluster.launcher(name).await?;
    let address = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .unwrap_or_default();
    assert_eq!(
        row[2..7],
        [
            "Running",
            &address,
            status.node_name.as_deref().unwrap_or_default(),
            "True",
            "True"
        ]
    );
    let migration = [("web", name), ("create", "create --dry-run=server")];
    cluster.documented("deploy/docs/migration.md", "kubectl create -f -", &migration)?;

    cluster.delete(&["vmi", name])?;
    cluster.until_gone(name).await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_guest_reaches_others_and_is_reached_through_a_service() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let control = format!("{}\nhttp: 8081", collector.datagrams("200ms"));
    let manifest =
        instance("web", &control).replace("metadata: {name: web,", "metadata: {labels: {app: web}, name: web,");
    cluster.apply(&manifest).await?;
    let boot = collector.first_boot().await?;
    collector.until_more(&boot, 5).await?;
    cluster.kubectl_with(
        &["apply"],
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec:\n  selector: {app: web}\n  \
         ports: [{port: 80, targetPort: 8081}]\n",
    )?;
    cluster.until_vm_condition("web", "Ready", "True").await?;
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"])?;
    cluster.kubectl_with(
        &["create"],
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: client, namespace: default}}\nspec:\n  restartPolicy: Never\n  \
             containers:\n  - name: client\n    image: busybox\n    imagePullPolicy: IfNotPresent\n    command: [sh, -c, \
             'until wget -q -O - -T 2 http://{address}/healthz; do sleep 0.2; done']\n"
        ),
    )?;
    let met = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    let completed = until(cluster.pods(), "client", "the guest's response", met).await;
    let log = cluster.kubectl(&["logs", "client"]).unwrap_or_default();
    cluster.delete(&["pod", "client", "--force"])?;
    cluster.delete(&["service", "web"])?;
    completed?;
    ensure!(log.contains("ok"), "the guest responded {log:?}");
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_survives_agent_kill_rollout_and_libvirtd_kill() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    cluster.apply(&instance("steady", &collector.ticking("200ms"))).await?;
    let boot = collector.first_boot().await?;
    let before = cluster.until_vm_condition("steady", "Ready", "True").await?;
    let node = before
        .status
        .clone()
        .and_then(|status| status.node_name)
        .context("no node")?;
    let pod = cluster.launcher("steady").await?;

    // Kills the agent.
    let restarts = agent::restarts(&cluster.agent_pod(&node).await?);
    let pid = cluster.agent_process(&node)?;
    cluster.on_node(&node, &format!("kill -KILL {pid}"))?;
    until_some("a restarted agent", || async {
        let agent = cluster.agent_pod(&node).await?;
        Ok((agent::restarts(&agent) > restarts && agent::is_ready(&agent)).then_some(()))
    })
    .await?;
    collector.until_more(&boot, 5).await?;

    // Kills the guest's libvirtd. QEMU continues, the launcher starts another libvirtd, the agent connects to it.
    let kill = "for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = libvirtd ] && kill -KILL ${p#/proc/}; done; true";
    cluster.kubectl(&["exec", &pod.name_any(), "--", "sh", "-c", kill])?;
    until_some("another libvirtd", || async {
        let listed = cluster.kubectl(&[
            "exec",
            &pod.name_any(),
            "--",
            "virsh",
            "-c",
            "qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock",
            "list",
            "--state-running",
            "--name",
        ]);
        Ok(listed.ok().filter(|names| names.contains("steady")))
    })
    .await?;
    collector.until_more(&boot, 5).await?;

    // A rollout of the agents.
    let agent = cluster.agent_pod(&node).await?.uid().unwrap_or_default();
    cluster.restart(AGENTS)?;
    cluster.until_new_agent(&node, &agent).await?;
    collector.until_more(&boot, 5).await?;

    let after = cluster.instances().get("steady").await?;
    assert_eq!(after.uid(), before.uid());
    assert_eq!(condition(&after, "Ready").0, "True");
    let since = |vmi: &VirtualMachineInstance| {
        let conditions = vmi.status.clone().unwrap_or_default().conditions;
        conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
            .and_then(|condition| condition.last_transition_time)
    };
    assert_eq!(since(&after), since(&before), "the instance was not Ready for a while");
    assert_eq!(cluster.launcher("steady").await?.uid(), pod.uid());
    without_a_gap(&only(collector.stop().await)?)?;
    without_a_gap(&ticks(&cluster.console("steady").await?))?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn each_end_of_a_guest_is_reported_with_phase_and_reason() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let socket = "qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock";
    for (case, phase, reason) in [
        ("poweroff", Phase::Succeeded, "GuestShutdown"),
        ("pod-deleted", Phase::Succeeded, names::reasons::EVICTED),
        ("pod-evicted", Phase::Succeeded, names::reasons::EVICTED),
        ("qemu-killed", Phase::Failed, "GuestCrashed"),
        ("destroyed", Phase::Failed, "GuestDestroyed"),
        ("launcher-killed", Phase::Failed, "LauncherLost"),
    ] {
        cluster.apply(&bare_instance(case)).await?;
        cluster.until_console(case, "drydock-guest ready").await?;
        cluster.until_vm_condition(case, "Ready", "True").await?;
        let pod = cluster.launcher(case).await?.name_any();
        let kill = |name: &str| {
            format!(
                "for p in /proc/[0-9]*; do case $(cat $p/comm) in {name}*) kill -KILL ${{p#/proc/}};; esac; done; true"
            )
        };
        match case {
            "poweroff" => cluster.end_guest_by(&pod, &format!("virsh -c '{socket}' shutdown {NAMESPACE}_{case}"))?,
            "pod-deleted" => drop(cluster.pods().delete(&pod, &DeleteParams::default()).await?),
            "pod-evicted" => drop(cluster.pods().evict(&pod, &EvictParams::default()).await?),
            "qemu-killed" => cluster.end_guest_by(&pod, &kill("qemu-system"))?,
            "destroyed" => cluster.end_guest_by(&pod, &format!("virsh -c '{socket}' destroy {NAMESPACE}_{case}"))?,
            _ => {
                let node = cluster.launcher(case).await?.spec.and_then(|spec| spec.node_name);
                let node = node.context("no node")?;
                cluster.on_node(&node, &kill("drydock-launche"))?;
            }
        }
        let ended = cluster
            .until_phase(case, phase)
            .await
            .with_context(|| case.to_owned())?;
        let status = ended.status.clone().unwrap_or_default();
        assert_eq!(status.reason.as_deref(), Some(reason), "{case}");
        assert_eq!(condition(&ended, "Ready").0, "False", "{case}");
        ensure!(status.active_pods.is_empty(), "{case}: {:?}", status.active_pods);
        // A bare instance is deleted, and no component creates it again.
        cluster.delete(&["vmi", case])?;
        cluster.until_gone(case).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_waiting_pod_is_made_anew_when_the_configuration_changes() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // The feature belongs to the minimum CPU model, so the pod selects the label of that model.
    let manifest = bare_instance("nowhere")
        .replace("spec:\n", "spec:\n  nodeSelector: {example.com/no: where}\n")
        .replace("  domain:\n", "  domain:\n    cpu: {features: [{name: sse2}]}\n");
    cluster.apply(&manifest).await?;
    cluster.until_vm_condition("nowhere", "PodScheduled", "False").await?;
    let before = cluster.launcher("nowhere").await?;
    let needs = |pod: &Pod, model: &str| -> Result<bool> {
        let key = format!("\"{}{model}\"", labels::CPU_MINIMUM);
        Ok(serde_json::to_string(&pod.spec)?.contains(&key))
    };
    ensure!(needs(&before, "Penryn")?, "{:?}", before.spec);
    cluster.configure(&[("min-cpu-model", "Nehalem")]).await?;
    let after = until_some("a pod that requires the other minimum", || async {
        let pod = cluster.launcher("nowhere").await.ok();
        Ok(match pod {
            Some(pod) if needs(&pod, "Nehalem")? => Some(pod),
            _ => None,
        })
    })
    .await;
    cluster.configure(&[]).await?;
    let after = after?;
    assert_ne!(after.uid(), before.uid());
    assert_eq!(after.name_any(), before.name_any());
    cluster.until_vm_condition("nowhere", "PodScheduled", "False").await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn unschedulable_instance_reports_why_until_a_node_fits() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let manifest = bare_instance("picky").replace("spec:\n", "spec:\n  nodeSelector: {example.com/ssd: \"true\"}\n");
    cluster.apply(&manifest).await?;
    let stuck = cluster.until_vm_condition("picky", "PodScheduled", "False").await?;
    let conditions = stuck.status.unwrap_or_default().conditions;
    let message = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled")
        .and_then(|condition| condition.message.clone())
        .unwrap_or_default();
    ensure!(
        message.contains("2 nodes") && message.contains("example.com/ssd"),
        "{message}"
    );
    cluster
        .label(cluster.second(), &[("example.com/ssd", Some("true"))])
        .await?;
    let running = cluster.until_phase("picky", Phase::Running).await;
    cluster.label(cluster.second(), &[("example.com/ssd", None)]).await?;
    let status = running?.status.unwrap_or_default();
    assert_eq!(status.node_name.as_deref(), Some(cluster.second()));
    ensure!(
        !status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "PodScheduled"),
        "{:?}",
        status.conditions
    );
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn missing_secret_is_named_until_created() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let manifest = bare_instance("secretive");
    let (before, _) = manifest.split_once("      userData: |").context("no user data")?;
    cluster
        .apply(&format!("{before}      secretRef: {{name: login}}\n"))
        .await?;
    let stuck = cluster.until_vm_condition("secretive", "Synchronized", "False").await?;
    let status = stuck.status.unwrap_or_default();
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Synchronized");
    let message = found.and_then(|found| found.message.clone()).unwrap_or_default();
    ensure!(
        status.reason.as_deref() == Some("FailedMount")
            && message.contains(&format!("Secret login does not exist in namespace {NAMESPACE}")),
        "{:?}: {message}",
        status.reason
    );
    let data = "--from-literal=userdata=#cloud-config\ndrydock:\n  count: 1s\n";
    cluster.kubectl(&["--namespace", NAMESPACE, "create", "secret", "generic", "login", data])?;
    let running = cluster.until_phase("secretive", Phase::Running).await;
    cluster.delete(&["secret", "login"])?;
    running?;
    let settled = |instance: &VirtualMachineInstance| condition(instance, "Synchronized").0.is_empty();
    until(cluster.instances(), "secretive", "no missing objects", settled).await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_launcher_keeps_to_the_restricted_standard_and_has_no_token() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.kubectl_with(
        &["apply"],
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: restricted\n  labels: {pod-security.kubernetes.io/enforce: restricted}\n",
    )?;
    let manifest = bare_instance("strict").replace("namespace: default", "namespace: restricted");
    cluster.apply(&manifest).await?;
    let api: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), "restricted");
    let running = until(api, "strict", "Running", |vmi| vmi.phase() == Some(Phase::Running)).await;
    let pods = cluster.kubectl(&["-n", "restricted", "get", "pods", "-o", "name"])?;
    let held = pods.lines().next().map(|pod| {
        cluster.kubectl(&[
            "-n",
            "restricted",
            "exec",
            pod,
            "--",
            "sh",
            "-c",
            "grep -E 'CapEff|NoNewPrivs|Seccomp:|^Uid' /proc/1/status; ls /var/run/secrets 2>&1; touch /x 2>&1",
        ])
    });
    cluster.delete(&["namespace", "restricted"])?;
    running?;
    // The script fails as expected, since its last command fails.
    let text = match held.context("no pod")? {
        Ok(text) => text,
        Err(error) => format!("{error:#}"),
    };
    for expected in [
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "107",
        "Read-only",
    ] {
        ensure!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    ensure!(!text.contains("serviceaccount"), "{text}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn an_instance_that_starts_paused_waits() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let manifest = bare_instance("later").replace("spec:\n", "spec:\n  startStrategy: Paused\n");
    cluster.apply(&manifest).await?;
    let paused = cluster.until_vm_condition("later", "Paused", "True").await?;
    assert_eq!(condition(&paused, "Paused").1, "PausedByUser");
    assert_eq!(condition(&paused, "Ready").0, "False");
    assert_eq!(cluster.console("later").await?, "", "a paused guest printed something");
    let pod = cluster.launcher("later").await?.name_any();
    let script = "virsh -c 'qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock' resume default_later";
    cluster.kubectl(&["exec", &pod, "--", "sh", "-c", script])?;
    cluster.until_console("later", "drydock-guest ready").await?;
    let running = cluster.until_vm_condition("later", "Ready", "True").await?;
    assert_eq!(condition(&running, "Paused").0, "");
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn deleted_instance_shuts_the_guest_down_and_leaves_nothing() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.apply(&bare_instance("leaving")).await?;
    cluster.until_console("leaving", "drydock-guest ready").await?;
    let pod = cluster.launcher("leaving").await?;
    let following = LogParams {
        follow: true,
        ..LogParams::default()
    };
    let pods = cluster.pods();
    let mut log = Box::pin(pods.log_stream(&pod.name_any(), &following).await?);
    cluster.instances().delete("leaving", &DeleteParams::default()).await?;
    let mut text = String::new();
    log.read_to_string(&mut text).await?;
    ensure!(
        text.contains("drydock-guest power off"),
        "the guest was not shut down:\n{text}"
    );
    cluster.until_gone("leaving").await?;
    until_some("the deletion of the pod", || async {
        Ok(cluster.pods().get_opt(&pod.name_any()).await?.is_none().then_some(()))
    })
    .await?;
    Ok(())
}
