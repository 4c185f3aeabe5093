//! Virtual machines and replica sets with real guests: which of them are restarted after which event, and the state
//! that users see.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{
    Phase, RunStrategy, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet,
    migration::MigrationPhase, names,
};
use drydock_tests::{
    Cluster,
    guests::{self, BARE_IMAGE, IMAGE, NAMESPACE, bare_instance, bare_spec, instance},
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// The way in which a guest ends.
#[derive(Clone, Copy, Debug)]
enum GuestEnd {
    PowersOff,
    Crashes,
    PodDeleted,
    PodEvicted,
}

/// The expected state after the end of a guest.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// Another instance runs.
    Again,
    /// No instance exists.
    Gone,
    /// The instance stays in its final phase.
    Stays,
}

fn machine(name: &str, strategy: RunStrategy) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  runStrategy: {}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n{}",
        strategy.as_str(),
        bare_spec(6)
    )
}

fn replica_set(name: &str, replicas: i32) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n{}",
        bare_spec(6)
    )
}

fn machines(cluster: &Cluster) -> Api<VirtualMachine> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

fn sets(cluster: &Cluster) -> Api<VirtualMachineInstanceReplicaSet> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

async fn clean() -> Result<Cluster> {
    let cluster = Cluster::without_guests().await?;
    until_some("the deletion of all machines", || async {
        let left = machines(&cluster).list(&ListParams::default()).await?.items;
        Ok(left.is_empty().then_some(()))
    })
    .await?;
    Ok(cluster)
}

/// Waits until a machine's `printableStatus` has one of these values.
async fn until_printable_status(cluster: &Cluster, name: &str, statuses: &[&str]) -> Result<VirtualMachine> {
    until(
        machines(cluster),
        name,
        &statuses.join(" or "),
        |machine: &VirtualMachine| {
            let printed = machine
                .status
                .as_ref()
                .and_then(|status| status.printable_status.as_deref());
            printed.is_some_and(|printed| statuses.contains(&printed))
        },
    )
    .await
}

/// Waits until a condition of a machine has a status.
async fn until_condition(cluster: &Cluster, name: &str, type_: &str, status: &str) -> Result<String> {
    let what = format!("{type_}={status}");
    let found = until(machines(cluster), name, &what, |machine: &VirtualMachine| {
        condition(machine, type_).is_some_and(|found| found.0 == status)
    })
    .await?;
    Ok(condition(&found, type_).map(|found| found.1).unwrap_or_default())
}

/// Returns the status and the reason of a machine's condition.
fn condition(machine: &VirtualMachine, type_: &str) -> Option<(String, String)> {
    let conditions = &machine.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((found.status.clone(), found.reason.clone().unwrap_or_default()))
}

/// Requests actions of a machine, as the subresources do.
async fn request_actions(cluster: &Cluster, name: &str, requests: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"status": {"stateChangeRequests": requests}}));
    machines(cluster)
        .patch_status(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Waits until a guest runs in an instance with this name other than `before`. Returns the instance's UID.
async fn until_running(cluster: &Cluster, name: &str, before: Option<&str>) -> Result<String> {
    let running = until_some(&format!("{name} to run, not in {before:?}"), || async {
        let found = cluster.instances().get_opt(name).await?;
        Ok(found.filter(|found| {
            let phase = found.phase();
            found.uid().as_deref() != before && phase == Some(Phase::Running)
        }))
    })
    .await?;
    cluster.until_console(name, "drydock-guest ready").await?;
    running.uid().context("an instance without a UID")
}

/// Ends the guest of an instance in this way.
async fn bring_about(cluster: &Cluster, name: &str, end: GuestEnd) -> Result<()> {
    let pod = cluster.launcher(name).await?.name_any();
    match end {
        GuestEnd::PowersOff => cluster.end_guest_by(
            &pod,
            &format!(
                "virsh -c 'qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock' shutdown {NAMESPACE}_{name}"
            ),
        )?,
        GuestEnd::Crashes => cluster.end_guest_by(
            &pod,
            "for p in /proc/[0-9]*; do case $(cat $p/comm) in qemu-system*) kill -KILL ${p#/proc/};; esac; done; true",
        )?,
        GuestEnd::PodDeleted => drop(cluster.pods().delete(&pod, &DeleteParams::default()).await?),
        GuestEnd::PodEvicted => drop(cluster.pods().evict(&pod, &EvictParams::default()).await?),
    }
    Ok(())
}

/// Waits for the expected state after the end of the guest.
async fn check(cluster: &Cluster, name: &str, uid: &str, then: Then) -> Result<()> {
    match then {
        Then::Again => {
            until_running(cluster, name, Some(uid)).await?;
            until_printable_status(cluster, name, &["Running"]).await?;
        }
        Then::Gone => {
            cluster.until_gone(name).await?;
            let machine = until_printable_status(cluster, name, &["Stopped"]).await?;
            ensure!(
                !machine.status.is_some_and(|status| status.created),
                "{name} is created"
            );
        }
        Then::Stays => {
            let stays = until(
                cluster.instances(),
                name,
                "a final phase",
                |instance: &VirtualMachineInstance| {
                    let phase = instance.phase();
                    phase.is_some_and(Phase::is_final)
                },
            )
            .await?;
            assert_eq!(stays.uid().as_deref(), Some(uid), "{name}");
            until_printable_status(cluster, name, &["Stopped"]).await?;
            let still = cluster.instances().get(name).await?;
            assert_eq!(still.uid().as_deref(), Some(uid), "{name} was recreated");
        }
    }
    Ok(())
}

/// Ends the guests of several machines concurrently, and checks the next state of each machine.
///
/// The unit tests of `core::machine` cover the tables of all run strategies and ends. Real guests show that each end is
/// recognized correctly.
async fn follow_ends(cases: &[(&str, RunStrategy, GuestEnd, Then)]) -> Result<()> {
    let cluster = clean().await?;
    for (name, strategy, _, _) in cases {
        cluster.apply(&machine(name, *strategy)).await?;
        if *strategy == RunStrategy::Manual {
            until_printable_status(&cluster, name, &["Stopped"]).await?;
            request_actions(&cluster, name, json!([{"action": "Start"}])).await?;
        }
    }
    let mut ended = Vec::new();
    for (name, strategy, end, then) in cases {
        let uid = until_running(&cluster, name, None).await?;
        until_printable_status(&cluster, name, &["Running"]).await?;
        bring_about(&cluster, name, *end).await?;
        ended.push((name, uid, format!("{strategy:?}, {end:?}, {then:?}"), *then));
    }
    for (name, uid, case, then) in ended {
        check(&cluster, name, &uid, then).await.context(case)?;
    }
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn always_runs_again_and_manual_and_once_do_not() -> Result<()> {
    follow_ends(&[
        ("always-off", RunStrategy::Always, GuestEnd::PowersOff, Then::Again),
        ("always-deleted", RunStrategy::Always, GuestEnd::PodDeleted, Then::Again),
        ("manual-off", RunStrategy::Manual, GuestEnd::PowersOff, Then::Stays),
        ("manual-evicted", RunStrategy::Manual, GuestEnd::PodEvicted, Then::Stays),
        ("once-crash", RunStrategy::Once, GuestEnd::Crashes, Then::Stays),
        ("once-deleted", RunStrategy::Once, GuestEnd::PodDeleted, Then::Stays),
    ])
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn rerun_on_failure_runs_again_after_a_crash_and_an_eviction() -> Result<()> {
    // A shutdown that the cluster requests does not count as a shutdown by the guest.
    follow_ends(&[
        (
            "rerun-off",
            RunStrategy::RerunOnFailure,
            GuestEnd::PowersOff,
            Then::Gone,
        ),
        (
            "rerun-crash",
            RunStrategy::RerunOnFailure,
            GuestEnd::Crashes,
            Then::Again,
        ),
        (
            "rerun-deleted",
            RunStrategy::RerunOnFailure,
            GuestEnd::PodDeleted,
            Then::Again,
        ),
        (
            "rerun-evicted",
            RunStrategy::RerunOnFailure,
            GuestEnd::PodEvicted,
            Then::Again,
        ),
    ])
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn halted_stops_the_guest_and_deleted_machine_leaves_nothing() -> Result<()> {
    let cluster = clean().await?;
    let name = "halted";
    cluster.apply(&machine(name, RunStrategy::Halted)).await?;
    let idle = until_printable_status(&cluster, name, &["Stopped"]).await?;
    assert_eq!(condition(&idle, "Ready"), Some(("False".into(), "VMINotExists".into())));
    let strategy = |strategy: &str| {
        let patch = json!({"spec": {"runStrategy": strategy}}).to_string();
        cluster.kubectl(&["patch", "vm", name, "--type=merge", "--patch", &patch])
    };
    strategy("Always")?;
    until_running(&cluster, name, None).await?;
    until_condition(&cluster, name, "Ready", "True").await?;
    strategy("Halted")?;
    until_printable_status(&cluster, name, &["Stopping", "Stopped"]).await?;
    cluster.until_gone(name).await?;
    until_printable_status(&cluster, name, &["Stopped"]).await?;

    strategy("Always")?;
    let running = until_running(&cluster, name, None).await?;
    cluster.kubectl(&["delete", "vm", name, "--wait=false"])?;
    until_some("the deletion of the machine", || async {
        Ok(machines(&cluster).get_opt(name).await?.is_none().then_some(()))
    })
    .await?;
    ensure!(
        cluster.instances().get_opt(name).await?.is_none(),
        "the instance still exists"
    );
    let pods = ListParams::default().labels(&format!("{}={running}", names::CREATED_BY));
    until_some("the deletion of the pods", || async {
        Ok(cluster.pods().list(&pods).await?.items.is_empty().then_some(()))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn changed_template_requires_a_restart_and_applies_then() -> Result<()> {
    let cluster = clean().await?;
    let name = "changing";
    let machine = machine(name, RunStrategy::Always).replace(BARE_IMAGE, IMAGE);
    cluster.apply(&machine).await?;
    let first = until_running(&cluster, name, None).await?;
    let running = until_printable_status(&cluster, name, &["Running"]).await?;
    assert_eq!(condition(&running, "RestartRequired"), None);
    let patch = json!({"spec": {"template": {"spec": {"hostname": "another"}}}}).to_string();
    cluster.kubectl(&["patch", "vm", name, "--type=merge", "--patch", &patch])?;
    until_condition(&cluster, name, "RestartRequired", "True").await?;
    assert_eq!(
        cluster.instances().get(name).await?.uid().as_deref(),
        Some(first.as_str())
    );
    request_actions(
        &cluster,
        name,
        json!([{"action": "Stop", "uid": first}, {"action": "Start"}]),
    )
    .await?;
    until_running(&cluster, name, Some(&first)).await?;
    let console = cluster.console(name).await?;
    ensure!(console.contains("hostname=another"), "{console}");
    until(
        machines(&cluster),
        name,
        "no restart to be required",
        |machine: &VirtualMachine| {
            let pending = machine
                .status
                .as_ref()
                .is_some_and(|status| !status.state_change_requests.is_empty());
            condition(machine, "RestartRequired").is_none() && !pending
        },
    )
    .await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn hindrance_of_a_machine_start_is_named() -> Result<()> {
    let cluster = clean().await?;
    let plain = machine("hindered", RunStrategy::Always);
    for (name, from, to, statuses) in [
        (
            "image",
            "containerDisk: {image: ",
            "containerDisk: {image: no-such-",
            &["ErrImagePull", "ImagePullBackOff"][..],
        ),
        (
            "nowhere",
            "      terminationGracePeriodSeconds:",
            "      nodeSelector: {example.com/no-such-node: here}\n      terminationGracePeriodSeconds:",
            &["ErrorUnschedulable"],
        ),
        (
            "claimless",
            "      volumes:",
            "      volumes:\n      - name: none\n        persistentVolumeClaim: {claimName: none}",
            &["ErrorPvcNotFound", "ErrorUnschedulable"],
        ),
    ] {
        ensure!(plain.contains(from), "{from:?} is not in\n{plain}");
        let mut manifest = plain.replace("hindered", name).replace(from, to);
        if name == "claimless" {
            manifest = manifest.replace(
                "        disks:",
                "        disks:\n          - {name: none, disk: {bus: virtio}}",
            );
        }
        cluster.apply(&manifest).await?;
        until_printable_status(&cluster, name, statuses).await?;
    }
    // Only events of the kubelet report that a volume cannot be mounted.
    let (from, to) = (
        "cloudInitNoCloud:\n",
        "cloudInitNoCloud:\n          networkDataSecretRef: {name: no-such-secret}\n",
    );
    ensure!(plain.contains(from), "{from:?} is not in\n{plain}");
    cluster
        .apply(&plain.replace("hindered", "secretless").replace(from, to))
        .await?;
    until(
        cluster.instances(),
        "secretless",
        "the missing Secret to be named",
        |instance: &VirtualMachineInstance| {
            let conditions = instance.status.iter().flat_map(|status| &status.conditions);
            let mut failed = conditions.filter(|condition| condition.type_ == names::conditions::SYNCHRONIZED);
            failed.any(|condition| {
                let message = condition.message.as_deref().unwrap_or_default();
                condition.reason.as_deref() == Some("FailedMount") && message.contains("no-such-secret")
            })
        },
    )
    .await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn an_instance_of_the_same_name_is_neither_used_nor_deleted() -> Result<()> {
    let cluster = clean().await?;
    let name = "taken";
    cluster.apply(&bare_instance(name)).await?;
    let bare = until_running(&cluster, name, None).await?;
    cluster.apply(&machine(name, RunStrategy::Always)).await?;
    assert_eq!(
        until_condition(&cluster, name, "Failure", "True").await?,
        "InstanceNotOwned"
    );
    cluster.kubectl(&["delete", "vm", name, "--wait=true", "--timeout=60s"])?;
    let left = cluster.instances().get(name).await?;
    assert_eq!(
        (left.uid().as_deref(), left.metadata.deletion_timestamp),
        (Some(bare.as_str()), None)
    );
    cluster.no_guests().await
}

/// Waits until a replica set reports these numbers of replicas and ready replicas.
async fn until_replicas(cluster: &Cluster, name: &str, replicas: i32, ready: i32) -> Result<()> {
    let what = format!("{replicas} replicas, {ready} ready");
    until(sets(cluster), name, &what, |set: &VirtualMachineInstanceReplicaSet| {
        set.status
            .as_ref()
            .is_some_and(|status| (status.replicas, status.ready_replicas) == (replicas, ready))
    })
    .await?;
    Ok(())
}

/// Returns the instances of a replica set that are not being deleted, by name.
async fn members(cluster: &Cluster, name: &str) -> Result<Vec<VirtualMachineInstance>> {
    let mut all = cluster
        .instances()
        .list(&ListParams::default().labels(&format!("app={name}")))
        .await?
        .items;
    all.retain(|instance| instance.metadata.deletion_timestamp.is_none());
    all.sort_by_key(ResourceExt::name_any);
    Ok(all)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn replica_set_keeps_the_requested_number_of_replicas() -> Result<()> {
    let cluster = clean().await?;
    let name = "web";
    cluster.apply(&replica_set(name, 2)).await?;
    until_replicas(&cluster, name, 2, 2).await?;
    let status = sets(&cluster).get(name).await?.status.context("no status")?;
    assert_eq!(status.label_selector.as_deref(), Some("app=web"));

    cluster.kubectl(&["scale", "vmirs", name, "--replicas=3"])?;
    until_replicas(&cluster, name, 3, 3).await?;

    // An instance that has crashed is replaced and deleted.
    let before = members(&cluster, name).await?;
    let victim = before.first().context("no members")?;
    bring_about(&cluster, &victim.name_any(), GuestEnd::Crashes).await?;
    until_some("a replacement", || async {
        let now = members(&cluster, name).await?;
        let replaced = !now.iter().any(|member| member.uid() == victim.uid());
        Ok((replaced && now.len() == 3).then_some(()))
    })
    .await?;
    until_replicas(&cluster, name, 3, 3).await?;

    // An evicted instance is replaced, too.
    let evicted = members(&cluster, name).await?.pop().context("no members")?;
    bring_about(&cluster, &evicted.name_any(), GuestEnd::PodEvicted).await?;
    until_some("a replacement", || async {
        let now = members(&cluster, name).await?;
        let replaced = !now.iter().any(|member| member.uid() == evicted.uid());
        Ok((replaced && now.len() == 3).then_some(()))
    })
    .await?;

    cluster.kubectl(&["scale", "vmirs", name, "--replicas=1"])?;
    until_replicas(&cluster, name, 1, 1).await?;
    assert_eq!(members(&cluster, name).await?.len(), 1);

    // A paused set does nothing until it is resumed.
    let pause = |paused: bool| {
        let patch = json!({"spec": {"paused": paused}}).to_string();
        cluster.kubectl(&["patch", "vmirs", name, "--type=merge", "--patch", &patch])
    };
    pause(true)?;
    cluster.kubectl(&["scale", "vmirs", name, "--replicas=2"])?;
    until(
        sets(&cluster),
        name,
        "a pause",
        |set: &VirtualMachineInstanceReplicaSet| {
            let conditions = set.status.iter().flat_map(|status| &status.conditions);
            conditions
                .into_iter()
                .any(|condition| condition.type_ == "ReplicaPaused")
        },
    )
    .await?;
    assert_eq!(members(&cluster, name).await?.len(), 1);
    pause(false)?;
    until_replicas(&cluster, name, 2, 2).await?;

    // Deleting the set deletes its instances.
    cluster.kubectl(&["delete", "vmirs", name])?;
    until_some("the deletion of the instances", || async {
        let left = cluster.instances().list(&ListParams::default()).await?.items;
        Ok(left.is_empty().then_some(()))
    })
    .await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn relabelled_instance_leaves_the_set_and_is_replaced() -> Result<()> {
    let cluster = clean().await?;
    let name = "letgo";
    cluster.apply(&replica_set(name, 1)).await?;
    until_replicas(&cluster, name, 1, 1).await?;
    let first = members(&cluster, name).await?.pop().context("no member")?;
    cluster.kubectl(&["label", "vmi", &first.name_any(), "--overwrite", "app=debug"])?;
    let free = until(
        cluster.instances(),
        &first.name_any(),
        "no owner",
        |instance: &VirtualMachineInstance| instance.owner_references().is_empty(),
    )
    .await?;
    assert_eq!(free.uid(), first.uid());
    until_some("a replacement", || async {
        Ok((members(&cluster, name).await?.len() == 1).then_some(()))
    })
    .await?;
    cluster.no_guests().await
}

/// Adds a probe to the guests of a manifest, with a period of one second and this failure threshold.
fn probed(manifest: &str, probe: &str, how: &str, failures: u32) -> String {
    let mut lines = String::new();
    for line in manifest.lines() {
        if line.trim_start().starts_with("terminationGracePeriodSeconds") {
            let indent = " ".repeat(line.len() - line.trim_start().len());
            lines += &format!("{indent}{probe}: {{{how}, periodSeconds: 1, failureThreshold: {failures}}}\n");
        }
        lines += line;
        lines += "\n";
    }
    lines
}

/// Returns whether Kubernetes routes a Service's traffic to a pod.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    (conditions.into_iter().flatten()).any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn probes_reach_the_guest_and_set_readiness_and_liveness() -> Result<()> {
    let cluster = clean().await?;
    let http = "httpGet: {port: 8081, path: /healthz}";
    let tcp = "tcpSocket: {port: 8081}";
    // Booting takes seconds, and more if several guests boot concurrently.
    let patient = 120;
    for (name, ready, lives) in [("web", http, tcp), ("port", tcp, http)] {
        let manifest = instance(name, "count: 1s\nhttp: 8081");
        let manifest = probed(&manifest, "readinessProbe", ready, 3);
        cluster
            .apply(&probed(&manifest, "livenessProbe", lives, patient))
            .await?;
    }
    // Waits for these guests before more guests boot.
    for name in ["web", "port"] {
        cluster.until_vm_condition(name, "Ready", "True").await?;
    }
    for (name, how) in [("no-web", http), ("no-port", tcp)] {
        cluster
            .apply(&probed(&instance(name, "count: 1s"), "readinessProbe", how, 3))
            .await?;
    }
    let dead = machine("dead", RunStrategy::Always);
    cluster.apply(&probed(&dead, "livenessProbe", http, 10)).await?;
    let first = until_vm(&cluster, "dead").await?;

    for name in ["no-web", "no-port"] {
        // The guest has been running for a while, and no process in it listens.
        cluster.until_console(name, "tick 8 ").await?;
        let instance = cluster.until_vm_condition(name, "Ready", "False").await?;
        let found = guests::condition(&instance, "Ready");
        assert_eq!(found, ("False".into(), "ContainersNotReady".into()), "{name}");
        let pod = cluster.launcher(name).await?;
        ensure!(!is_ready(&pod), "{name}: Services must not use the pod");
    }
    until(cluster.instances(), "dead", "a new instance", |instance| {
        instance.uid() != first.uid()
    })
    .await?;
    cluster.delete(&["vm", "dead", "--namespace", NAMESPACE])?;

    // A migrating guest is not probed on its target: the probe would fail, and the guest would be ended.
    cluster
        .limit_migrations("bandwidthPerMigration: 8Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0")
        .await?;
    let migration = cluster.migrate("web").await?;
    let moving = cluster.until_migration(&migration, MigrationPhase::Running).await?;
    let target = moving
        .status
        .and_then(|status| status.target?.pod)
        .context("a target")?;
    ensure!(
        !is_ready(&cluster.pods().get(&target).await?),
        "{target} is ready without a guest"
    );
    cluster.until_migrated(&migration).await?;
    until(cluster.pods(), &target, "readiness", is_ready).await?;
    for name in ["web", "port"] {
        cluster.until_vm_condition(name, "Ready", "True").await?;
        cluster
            .until_output(name, "more", |text| text.contains("tick 25 ").then_some(()))
            .await?;
    }
    cluster.reset().await?;
    cluster.no_guests().await
}

/// Waits for the instance of a machine and returns it.
async fn until_vm(cluster: &Cluster, name: &str) -> Result<VirtualMachineInstance> {
    until_some("the instance", || async {
        Ok(cluster.instances().get_opt(name).await?)
    })
    .await
}
