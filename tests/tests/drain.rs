//! Nodes are emptied by whatever means their users know: `kubectl drain`, the drain taint, evictions
//! alone. Which sentence of KubeVirt's documents each test is of, the README says.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drydock_api::{
    Hypervisor,
    annotations::DRAIN_PREVIEW,
    hypervisor::{DrainStatus, RemainingState},
    kubevirt::{Phase, VirtualMachineInstance, migration::MigrationPhase, names::conditions as types},
    leases::CONTROLLER_LEASE,
    reasons::node::{DRAIN_IN_PROGRESS, DRAINED},
};
use drydock_tests::{
    Cluster,
    cluster::{config_map, now, setting},
    guests::{NAMESPACE, condition, instance, meanwhile, spec, ticks, without_a_gap},
    migrations::{migrations_of, node_of, phase},
    own_parts::CONTROLLERS,
    watching::{until, until_some},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, Pod, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{
    Api, ResourceExt,
    api::{EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::task::JoinSet;

/// The flags of KubeVirt's documents; `--delete-local-data` has become `--delete-emptydir-data`.
const FLAGS: [&str; 3] = ["--delete-emptydir-data", "--ignore-daemonsets=true", "--force"];
/// Of these, the one that leaves all other pods alone.
const GUESTS_ALONE: &str = "--pod-selector=kubevirt.io=virt-launcher";
/// What a claim is on that one node at a time may use.
const FOLDER: &str = "/var/lib/drydock-shared/test-drain";

async fn clean() -> Result<Cluster> {
    let cluster = Cluster::without_guests().await?;
    cluster.delete(&["pdb,resourcequota", "--all", "--namespace", NAMESPACE])?;
    cluster.delete(&["nodemaintenances.nodemaintenance.medik8s.io", "--all"])?;
    for name in ["stuck", "restarting"] {
        cluster.delete(&["pvc", name, "--namespace", NAMESPACE])?;
        cluster.delete(&["pv", name])?;
    }
    Ok(cluster)
}

/// A guest that counts, with a strategy.
fn counting(name: &str, strategy: &str) -> String {
    instance(name, "count: 200ms").replace("spec:\n", &format!("spec:\n  evictionStrategy: {strategy}\n"))
}

/// A guest with a claim that only one node at a time may use, so that it cannot be migrated.
fn immovable(name: &str, annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 16Mi}}\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: \"\"\n  hostPath: {{path: {FOLDER}/{name}, type: DirectoryOrCreate}}\n  \
         claimRef: {{namespace: {NAMESPACE}, name: {name}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: \"\"\n  volumeName: {name}\n  resources: {{requests: {{storage: 16Mi}}}}\n---\n\
         apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         runStrategy: Always\n  template:\n    metadata: {{annotations: {{{annotation}}}}}\n    spec:\n      \
         evictionStrategy: LiveMigrate\n{}",
        // The first disk is what the guest starts from.
        spec("count: 1s", 6).replace(
            "      volumes:\n",
            &format!(
                "          - {{name: data, disk: {{bus: virtio}}}}\n      volumes:\n      \
                 - name: data\n        persistentVolumeClaim: {{claimName: {name}}}\n"
            )
        )
    )
}

/// Starts guests on the first node, and waits until it is known whether they can be migrated.
async fn started_on_the_first(cluster: &Cluster, guests: &[(&str, String, &str)]) -> Result<()> {
    cluster.kubectl(&["cordon", cluster.second()])?;
    for (_, manifest, _) in guests {
        cluster.apply(manifest)?;
    }
    for (name, _, migratable) in guests {
        until_some(&format!("{name} to be there"), || async {
            Ok(cluster.instances().get_opt(name).await?)
        })
        .await?;
        cluster
            .until_vm_condition(name, types::LIVE_MIGRATABLE, migratable)
            .await?;
        cluster.until_console(name, "tick 3 ").await?;
    }
    cluster.kubectl(&["uncordon", cluster.second()]).map(drop)
}

fn drain(cluster: &Cluster, node: &str, more: &[&str]) -> Result<String> {
    let mut arguments = vec!["drain", node];
    arguments.extend(FLAGS);
    arguments.extend(more);
    cluster.kubectl(&arguments)
}

async fn until_on(cluster: &Cluster, name: &str, node: &str) -> Result<VirtualMachineInstance> {
    let is = |instance: &VirtualMachineInstance| node_of(instance).is_ok_and(|on| on == node);
    until(cluster.instances(), name, &format!("it to be on {node}"), is).await
}

async fn until_node_says(cluster: &Cluster, node: &str, type_: &str, reason: &str) -> Result<()> {
    let says = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == type_ && condition.reason.as_deref() == Some(reason))
        })
    };
    until(
        Api::all(cluster.client.clone()),
        node,
        &format!("{type_} {reason}"),
        says,
    )
    .await
    .map(drop)
}

async fn until_drain(
    cluster: &Cluster,
    node: &str,
    what: &str,
    is: impl Fn(&DrainStatus) -> bool,
) -> Result<DrainStatus> {
    let of = |hypervisor: &Hypervisor| hypervisor.status.as_ref().and_then(|status| status.drain.clone());
    let hypervisor = until(
        Api::all(cluster.client.clone()),
        node,
        what,
        |hypervisor: &Hypervisor| of(hypervisor).is_some_and(|drain| is(&drain)),
    )
    .await?;
    of(&hypervisor).context("no drain")
}

/// What is left on a node: state and reason by name.
fn left(drain: &DrainStatus) -> Vec<(&str, RemainingState, &str)> {
    let mut left: Vec<_> = drain
        .remaining
        .iter()
        .map(|guest| (guest.name.as_str(), guest.state, guest.reason.as_str()))
        .collect();
    left.sort_unstable();
    left
}

/// A guest has run all the time, and once.
async fn went_on(cluster: &Cluster, name: &str) -> Result<()> {
    let before = ticks(&cluster.consoles(name).await?).len();
    cluster
        .until_said(name, "further ticks", |text| {
            (ticks(text).len() > before + 3).then_some(())
        })
        .await?;
    without_a_gap(&ticks(&cluster.consoles(name).await?)).with_context(|| name.to_owned())
}

fn mark_of(instance: &VirtualMachineInstance) -> Option<String> {
    instance.status.as_ref()?.evacuation_node_name.clone()
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_drain_of_a_whole_node_moves_its_guests_and_says_when_it_is_empty() -> Result<()> {
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let names = ["one", "two", "three"];
    let guests = names.map(|name| (name, counting(name, "LiveMigrate"), "True"));
    started_on_the_first(&cluster, &guests).await?;

    // A replica of the controller may be on the node too, and has to go in the middle of it.
    drain(&cluster, &first, &["--timeout=120s"])?;
    for name in names {
        let instance = until_on(&cluster, name, &second).await?;
        assert_eq!(condition(&instance, types::READY).0, "True");
        until(cluster.instances(), name, "its mark to be gone", |instance| {
            mark_of(instance).is_none()
        })
        .await?;
        went_on(&cluster, name).await?;
    }
    let over = until_drain(&cluster, &first, "the drain to be over", |drain| {
        drain.finished_at.is_some()
    })
    .await?;
    assert_eq!((over.total, over.left), (3, 0));
    until_node_says(&cluster, &first, DRAINED, "DrainCompleted").await?;
    until_node_says(&cluster, &first, DRAIN_IN_PROGRESS, "NothingToMove").await?;
    for migration in cluster.migrations().list(&ListParams::default()).await? {
        ensure!(
            migration.name_any().starts_with("kubevirt-evacuation-"),
            "{}",
            migration.name_any()
        );
        assert_eq!(
            migration.annotations().get("kubevirt.io/evacuationMigration"),
            Some(&first)
        );
    }
    // Each guest has the budget of its one pod.
    until_some("three budgets", || async {
        let budgets = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), NAMESPACE);
        Ok((budgets.list(&ListParams::default()).await?.items.len() == 3).then_some(()))
    })
    .await?;

    cluster.kubectl(&["uncordon", &first])?;
    until_node_says(&cluster, &first, DRAINED, "NotRequested").await?;
    for name in names {
        assert_eq!(
            node_of(&cluster.instances().get(name).await?)?,
            second,
            "it moved back by itself"
        );
    }
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn what_cannot_move_is_shut_down_restarted_or_blocks_as_it_asks_for() -> Result<()> {
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    cluster.on_node(
        &first,
        &format!("mkdir -p -m 777 {FOLDER}/stuck {FOLDER}/restarting && chmod 777 {FOLDER}/*"),
    )?;
    let fallback = "drydock.dev/evacuation-fallback: restart";
    let guests = [
        ("bare", counting("bare", "None"), "True"),
        ("stuck", immovable("stuck", ""), "False"),
        ("restarting", immovable("restarting", fallback), "False"),
    ];
    started_on_the_first(&cluster, &guests).await?;
    let restarting = cluster.instances().get("restarting").await?.uid();

    let refused = drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=20s"]);
    let text = format!("{:#}", refused.err().context("the drain came to an end")?);
    ensure!(
        text.contains("VMI stuck is configured with an eviction strategy but is not live-migratable"),
        "{text}"
    );
    // What is bare stays as it ended; a machine is started elsewhere.
    cluster.until_phase("bare", Phase::Succeeded).await?;
    let again = until(
        cluster.instances(),
        "restarting",
        "another one",
        |instance: &VirtualMachineInstance| instance.uid() != restarting,
    )
    .await?;
    until_on(&cluster, &again.name_any(), &second).await?;
    let stuck = cluster.instances().get("stuck").await?;
    assert_eq!(node_of(&stuck)?, first);
    assert_eq!(mark_of(&stuck), None);

    // The taint asks for all to go, and says what stays.
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain=draining:NoSchedule"])?;
    let blocked = until_drain(&cluster, &first, "what blocks", |drain| drain.blocked == 1).await?;
    assert_eq!(left(&blocked), [("stuck", RemainingState::Blocked, "NotMigratable")]);
    until_node_says(&cluster, &first, DRAINED, "VirtualMachinesLeft").await?;
    cluster.no_guests().await?;
    for name in ["stuck", "restarting"] {
        cluster.delete(&["pvc", name, "--namespace", NAMESPACE])?;
        cluster.delete(&["pv", name])?;
    }
    cluster.on_node(&first, &format!("rm -rf {FOLDER}"))?;
    cluster.reset().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn the_taint_moves_guests_by_its_default_key_and_by_a_configured_one() -> Result<()> {
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    started_on_the_first(&cluster, &[("tainted", counting("tainted", "LiveMigrate"), "True")]).await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain=draining:NoSchedule"])?;
    until_on(&cluster, "tainted", &second).await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    until_node_says(&cluster, &first, DRAINED, "NotRequested").await?;

    let configured = "  feature-gates: \"LiveMigration\"\n  migrations: |-\n    nodeDrainTaintKey: mytaint/drain\n";
    cluster.kubectl_with(&["apply"], &config_map(configured))?;
    // The key in force is seen by what the default one does no more, and the new one does.
    cluster.kubectl(&["taint", "nodes", &second, "mytaint/drain=draining:NoSchedule"])?;
    until_on(&cluster, "tainted", &first).await?;
    went_on(&cluster, "tainted").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn maintenance_moves_guests_and_gives_the_node_back() -> Result<()> {
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let guests = [
        ("serviced", counting("serviced", "LiveMigrate"), "True"),
        ("plain", counting("plain", "None"), "True"),
    ];
    started_on_the_first(&cluster, &guests).await?;
    let maintenance = |dry_run: &[&str]| {
        let manifest = format!(
            "apiVersion: nodemaintenance.medik8s.io/v1beta1\nkind: NodeMaintenance\nmetadata: {{name: test-drain}}\n\
             spec: {{nodeName: {first}, reason: a new disk}}\n"
        );
        let mut arguments = vec!["create"];
        arguments.extend(dry_run);
        cluster.kubectl_with(&arguments, &manifest)
    };
    let preview = maintenance(&["--dry-run=server"])?;
    ensure!(preview.contains("created (server dry run)"), "{preview}");
    assert_eq!(mark_of(&cluster.instances().get("serviced").await?), None);
    maintenance(&[])?;
    cluster.kubectl(&[
        "wait",
        "nm",
        "test-drain",
        "--for=jsonpath={.status.phase}=Succeeded",
        "--timeout=120s",
    ])?;
    assert_eq!(node_of(&cluster.instances().get("serviced").await?)?, second);
    cluster.until_phase("plain", Phase::Succeeded).await?;
    until_node_says(&cluster, &first, DRAINED, "DrainCompleted").await?;
    cluster.kubectl(&["delete", "nm", "test-drain"])?;
    until_node_says(&cluster, &first, DRAINED, "NotRequested").await?;
    assert_eq!(node_of(&cluster.instances().get("serviced").await?)?, second);
    went_on(&cluster, "serviced").await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_drain_without_a_place_to_go_waits_with_a_reason_and_is_called_off_by_uncordoning() -> Result<()> {
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    started_on_the_first(&cluster, &[("waiting", counting("waiting", "LiveMigrate"), "True")]).await?;
    // Both nodes are to be empty: nothing goes to and fro.
    cluster.kubectl(&["cordon", &second])?;
    let refused = drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=15s"]);
    let text = format!("{:#}", refused.err().context("the drain came to an end")?);
    ensure!(
        text.contains(r#"Eviction triggered evacuation of VMI "default/waiting""#),
        "{text}"
    );
    let waiting = until_drain(&cluster, &first, "what it waits for", |drain| drain.left == 1).await?;
    let (name, state, reason) = *left(&waiting).first().context("nothing is left")?;
    assert_eq!(name, "waiting");
    ensure!(
        (state == RemainingState::Blocked && reason == "NoTargetAvailable")
            || (state == RemainingState::Waiting && reason == "TargetPodUnschedulable"),
        "{state:?} {reason}"
    );
    cluster.kubectl(&["uncordon", &first])?;
    until(cluster.instances(), "waiting", "its mark to be gone", |instance| {
        mark_of(instance).is_none()
    })
    .await?;
    until_some("no migration to be under way", || async {
        let all = cluster.migrations().list(&ListParams::default()).await?.items;
        Ok(all
            .iter()
            .all(|migration| phase(migration).is_some_and(MigrationPhase::is_final))
            .then_some(()))
    })
    .await?;
    cluster.kubectl(&["uncordon", &second])?;
    assert_eq!(node_of(&cluster.instances().get("waiting").await?)?, first);
    // And again, with a place to go.
    drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=90s"])?;
    until_on(&cluster, "waiting", &second).await?;
    went_on(&cluster, "waiting").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn budgets_hold_while_the_controller_is_away_and_the_drain_goes_on_when_it_is_back() -> Result<()> {
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    started_on_the_first(&cluster, &[("held", counting("held", "LiveMigrate"), "True")]).await?;
    let scaled =
        |replicas: &str| cluster.kubectl(&["-n", "drydock", "scale", "deployment/drydock-controller", replicas]);
    scaled("--replicas=0")?;
    let away = async {
        until_some("the controller to be away", || async {
            let pods = cluster.kubectl(&[
                "-n",
                "drydock",
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/name=drydock-controller",
                "-o",
                "name",
            ])?;
            Ok(pods.trim().is_empty().then_some(()))
        })
        .await?;
        let refused = drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=12s"]);
        anyhow::Ok(format!("{:#}", refused.err().context("the drain came to an end")?))
    }
    .await;
    scaled("--replicas=2")?;
    cluster.rolled_out(CONTROLLERS)?;
    let text = away?;
    ensure!(text.contains("disruption budget"), "{text}");
    drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=90s"])?;
    until_on(&cluster, "held", &second).await?;
    went_on(&cluster, "held").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drains_to_and_fro_do_not_stall_however_soon_one_follows_another() -> Result<()> {
    let cluster = clean().await?;
    let nodes = [cluster.first().to_owned(), cluster.second().to_owned()];
    started_on_the_first(&cluster, &[("moving", counting("moving", "LiveMigrate"), "True")]).await?;
    // After each migration of it, the next drain begins so many seconds later.
    for (round, pause) in [0, 0, 0, 1, 3, 10].into_iter().enumerate() {
        meanwhile(Duration::from_secs(pause)).await;
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        drain(&cluster, from, &[GUESTS_ALONE, "--timeout=60s"]).with_context(|| format!("round {round}"))?;
        assert_eq!(node_of(&until_on(&cluster, "moving", to).await?)?, *to);
        cluster.kubectl(&["uncordon", from])?;
    }
    went_on(&cluster, "moving").await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn attempts_to_move_a_guest_wait_end_and_begin_anew_when_it_is_asked_for_again() -> Result<()> {
    const TAINT: &str = "kubevirt.io/drain=draining:NoSchedule";
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let name = "stubborn";
    started_on_the_first(&cluster, &[(name, counting(name, "LiveMigrate"), "True")]).await?;
    // So slow that there is time to take its target away.
    cluster.limit_migrations("bandwidthPerMigration: 1Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0")?;
    cluster.kubectl(&["taint", "nodes", &first, TAINT])?;
    let migration = until_some("its migration", || async {
        let found = migrations_of(&cluster, name).await?;
        Ok(found
            .into_iter()
            .find(|one| phase(one) == Some(MigrationPhase::Running)))
    })
    .await?;
    let target = migration
        .status
        .and_then(|status| status.target?.pod)
        .context("its target")?;
    cluster.delete_pod_now(NAMESPACE, &target).await?;
    let waits = until_drain(&cluster, &first, "a wait after the first failure", |drain| {
        left(drain) == [(name, RemainingState::Waiting, "BackOff")]
    })
    .await?;
    let message = &waits.remaining[0].message;
    ensure!(message.starts_with("1 of 10 attempts have failed ("), "{message}");

    // As if it were the last of ten.
    let earlier = json!({"failures": 9, "lastFailure": {"uid": "an-earlier-one", "at": "2026-01-01T00:00:00Z"}});
    cluster
        .instances()
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"evacuation": earlier}})),
        )
        .await?;
    let ended = until_drain(&cluster, &first, "the end of all attempts", |drain| {
        left(drain) == [(name, RemainingState::Blocked, "CannotEvacuate")]
    })
    .await?;
    let message = &ended.remaining[0].message;
    ensure!(
        message.starts_with("all of 10 attempts to migrate the guest have failed"),
        "{message}"
    );
    until_node_says(&cluster, &first, DRAINED, "VirtualMachinesLeft").await?;
    assert_eq!(node_of(&cluster.instances().get(name).await?)?, first);

    // A part of the mark is somebody else's now. All of it goes nevertheless.
    let foreign = json!({"status": {"evacuation": {"lastFailure": {"reason": "SaidByATest"}}}});
    let patch = Patch::Merge(foreign);
    cluster
        .instances()
        .patch_status(name, &PatchParams::default(), &patch)
        .await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    until(cluster.instances(), name, "its mark to be gone", |instance| {
        mark_of(instance).is_none()
    })
    .await?;
    cluster.limit_migrations("parallelMigrationsPerCluster: 2")?;
    cluster.kubectl(&["taint", "nodes", &first, TAINT])?;
    until_on(&cluster, name, &second).await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    went_on(&cluster, name).await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn what_a_cluster_refuses_is_said_and_tried_again_until_it_does_no_more() -> Result<()> {
    const QUOTA: &str = "no-moves";
    let cluster = clean().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let name = "refused";
    started_on_the_first(&cluster, &[(name, counting(name, "LiveMigrate"), "True")]).await?;
    cluster.apply(&format!(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: {QUOTA}, namespace: {NAMESPACE}}}\nspec:\n  \
         hard: {{count/virtualmachineinstancemigrations.kubevirt.io: \"0\"}}\n"
    ))?;
    let quotas = Api::<ResourceQuota>::namespaced(cluster.client.clone(), NAMESPACE);
    until(quotas, QUOTA, "the quota to be in force", |quota| {
        let status = quota.status.as_ref();
        status.is_some_and(|status| status.hard.is_some() && status.used.is_some())
    })
    .await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain=draining:NoSchedule"])?;
    let refused = until_drain(&cluster, &first, "what is refused", |drain| {
        left(drain) == [(name, RemainingState::Blocked, "Refused")]
    })
    .await?;
    let message = &refused.remaining[0].message;
    ensure!(message.contains(&format!("exceeded quota: {QUOTA}")), "{message}");
    cluster.delete(&["resourcequota", QUOTA, "--namespace", NAMESPACE])?;
    until_on(&cluster, name, &second).await?;
    until_node_says(&cluster, &first, DRAINED, "DrainCompleted").await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    went_on(&cluster, name).await?;
    cluster.no_guests().await
}

/// How often the leading controller is killed; more by the environment variable `DRYDOCK_KILLS`.
const KILLS: usize = 3;
/// The Secret with the certificates of the webhooks.
const CERTIFICATES: &str = "drydock-webhook-certificates";

/// Kills the controllers on the node of the one that leads.
async fn kill_the_leader(cluster: &Cluster) -> Result<()> {
    let lease = Api::<Lease>::namespaced(cluster.client.clone(), "drydock")
        .get(CONTROLLER_LEASE)
        .await?;
    let holder = lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .context("nobody leads")?;
    let pod = holder.rsplit_once('_').map_or(holder.as_str(), |(pod, _)| pod);
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "drydock");
    let node = pods
        .get_opt(pod)
        .await?
        .and_then(|pod| pod.spec?.node_name)
        .context("it is on no node")?;
    let script = "for process in /proc/[0-9]*; do
        if [ \"$(cat $process/comm 2>/dev/null)\" = drydock-control ]; then kill -9 ${process#/proc/}; fi
    done";
    cluster.on_node(&node, script).map(drop)
}

/// What may happen to the control plane while a node is drained.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// The processes of the replica that leads, and of any other on its node, are killed.
    LeaderKilled,
    /// The API server is restarted.
    ApiServerRestarted,
    /// The Secret with the certificates of the webhooks is deleted: they are made anew.
    CertificatesLost,
    /// Somebody else takes the Lease by which the leader is elected, and never renews it.
    LeaseStolen,
}

impl Disturbance {
    async fn happen(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::LeaderKilled => kill_the_leader(cluster).await,
            Self::ApiServerRestarted => cluster.embedded("restart", &["kube-apiserver"]).map(drop),
            Self::CertificatesLost => cluster.delete(&["secret", CERTIFICATES, "--namespace=drydock"]),
            Self::LeaseStolen => {
                let now = serde_json::to_value(MicroTime(now()))?;
                let stolen =
                    json!({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 10, "renewTime": now}});
                Api::<Lease>::namespaced(cluster.client.clone(), "drydock")
                    .patch(CONTROLLER_LEASE, &PatchParams::default(), &Patch::Merge(&stolen))
                    .await?;
                Ok(())
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_drain_comes_to_its_end_whatever_happens_to_the_control_plane() -> Result<()> {
    let cluster = clean().await?;
    let nodes = [cluster.first().to_owned(), cluster.second().to_owned()];
    let guests = ["shaken-one", "shaken-two"].map(|name| (name, counting(name, "LiveMigrate"), "True"));
    started_on_the_first(&cluster, &guests).await?;
    let kills: usize = setting("DRYDOCK_KILLS").map_or(Ok(KILLS), |text| text.parse())?;
    let mut disturbances = vec![Disturbance::LeaderKilled; kills];
    disturbances.extend([
        Disturbance::ApiServerRestarted,
        Disturbance::CertificatesLost,
        Disturbance::LeaseStolen,
    ]);
    for (round, disturbance) in disturbances.into_iter().enumerate() {
        // Killed once more, both replicas could be kept waiting for longer than the drain.
        cluster.renew_killed(1).await?;
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        let mut arguments = vec!["drain", from.as_str()];
        arguments.extend(FLAGS);
        arguments.extend([GUESTS_ALONE, "--timeout=85s"]);
        let draining = cluster.kubectl_begun(&arguments)?;
        // Moments that a drain of this length has, always the same ones.
        let moment = Duration::from_millis(100 + u64::try_from(round)? * 1931 % 4000);
        meanwhile(moment).await;
        disturbance.happen(&cluster).await?;
        let what = || format!("round {round}, {disturbance:?} after {moment:?}");
        let ended = draining.finish();
        if matches!(disturbance, Disturbance::ApiServerRestarted) {
            // kubectl gives up when nobody answers; whoever asks again finds the drain where it was.
            drain(&cluster, from, &[GUESTS_ALONE, "--timeout=85s"]).with_context(what)?;
        } else {
            ended.with_context(what)?;
        }
        for (name, ..) in &guests {
            until_on(&cluster, name, to).await?;
            cluster.until_one_pod(name).await?;
        }
        cluster.kubectl(&["uncordon", from])?;
    }
    for (name, ..) in &guests {
        went_on(&cluster, name).await?;
    }
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_dry_run_marks_nothing_and_a_budget_of_somebody_else_is_told() -> Result<()> {
    let cluster = clean().await?;
    let first = cluster.first().to_owned();
    started_on_the_first(&cluster, &[("kept", counting("kept", "LiveMigrate"), "True")]).await?;
    let eviction = |pod: &str, dry_run: &str| {
        format!(
            "{{\"apiVersion\": \"policy/v1\", \"kind\": \"Eviction\", \"metadata\": {{\"name\": \"{pod}\", \"namespace\": \"{NAMESPACE}\"}}, \
             \"deleteOptions\": {{{dry_run}}}}}"
        )
    };
    let pod = cluster.launcher("kept").await?.name_any();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction");
    let ask = |dry_run: &str| cluster.kubectl_with(&["create", "--raw", &path], &eviction(&pod, dry_run));
    let text = format!("{:#}", ask("\"dryRun\": [\"All\"]").err().context("it was granted")?);
    ensure!(
        text.contains(r#"Eviction triggered evacuation of VMI "default/kept""#),
        "{text}"
    );
    assert_eq!(mark_of(&cluster.instances().get("kept").await?), None);
    // Of a pod that no cache knows the API server has the last word.
    let nobody = "virt-launcher-nobody";
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{nobody}/eviction");
    let answer = cluster.kubectl_with(&["create", "--raw", &path], &eviction(nobody, ""));
    let text = format!("{:#}", answer.err().context("it was granted")?);
    ensure!(text.contains("NotFound") || text.contains("not found"), "{text}");

    // What a drain would do, asked on the Node.
    let preview = |hypervisor: &Hypervisor| {
        let status = hypervisor.status.clone().unwrap_or_default();
        status.drain_preview.map(|preview| preview.lines)
    };
    cluster.annotate(&first, &[(DRAIN_PREVIEW, Some("true"))]).await?;
    let wanted = format!("{NAMESPACE}/kept would move (node {} could take it)", cluster.second());
    let told = until(Api::all(cluster.client.clone()), &first, &wanted, |hypervisor| {
        preview(hypervisor).is_some_and(|lines| lines.contains(&wanted))
    })
    .await?;
    let lines = preview(&told).unwrap_or_default();
    ensure!(
        lines[0].starts_with("1 virtual machines are on") && lines[0].contains("1 would move"),
        "{lines:?}"
    );
    cluster.annotate(&first, &[(DRAIN_PREVIEW, None)]).await?;
    until(Api::all(cluster.client.clone()), &first, "no preview", |hypervisor| {
        preview(hypervisor).is_none()
    })
    .await?;
    let untouched = cluster.instances().get("kept").await?;
    assert_eq!((mark_of(&untouched), node_of(&untouched)?), (None, first.clone()));
    ensure!(migrations_of(&cluster, "kept").await?.is_empty(), "it was migrated");

    let theirs = format!(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: theirs, namespace: {NAMESPACE}}}\nspec:\n  \
         maxUnavailable: 1\n  selector: {{matchLabels: {{kubevirt.io: virt-launcher}}}}\n"
    );
    cluster.apply(&theirs)?;
    cluster
        .until_vm_condition("kept", types::EVICTION_BUDGET_CONFLICT, "True")
        .await?;
    let budgets = || async {
        let api = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), NAMESPACE);
        let all = api.list(&ListParams::default()).await?.items;
        anyhow::Ok(all.into_iter().map(|budget| budget.name_any()).collect::<Vec<_>>())
    };
    until_some("ours to give way", || async {
        Ok((budgets().await? == ["theirs"]).then_some(()))
    })
    .await?;
    // The webhook alone protects it now, with its own words.
    let text = format!("{:#}", ask("\"dryRun\": [\"All\"]").err().context("it was granted")?);
    ensure!(text.contains("Eviction triggered evacuation"), "{text}");
    cluster.delete(&["pdb", "theirs", "--namespace", NAMESPACE])?;
    until(cluster.instances(), "kept", "the conflict to be over", |instance| {
        condition(instance, types::EVICTION_BUDGET_CONFLICT).0.is_empty()
    })
    .await?;
    until_some("ours to be back", || async {
        Ok((budgets().await? == [pod.clone()]).then_some(()))
    })
    .await?;
    assert_eq!(node_of(&cluster.instances().get("kept").await?)?, first);
    cluster.no_guests().await
}

/// Evictions at once.
const MANY: usize = 200;
/// Changes that are asked for meanwhile.
const OTHERS: usize = 20;

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn many_evictions_at_once_are_all_answered_and_keep_nobody_else_waiting() -> Result<()> {
    let cluster = clean().await?;
    started_on_the_first(&cluster, &[("wanted", counting("wanted", "LiveMigrate"), "True")]).await?;
    // Nothing can take it, so those that are held are held as long as they may be.
    cluster.kubectl(&["cordon", cluster.second()])?;
    let pod = cluster.launcher("wanted").await?.name_any();
    let mut evictions = JoinSet::new();
    let pods = Api::<Pod>::namespaced(cluster.impatient().await?, NAMESPACE);
    for _ in 0..MANY {
        let (pods, pod) = (pods.clone(), pod.clone());
        evictions.spawn(async move {
            let parameters = EvictParams::default();
            pods.evict(&pod, &parameters).await
        });
    }
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), NAMESPACE);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "meanwhile"}}))?;
    for _ in 0..OTHERS {
        maps.create(&dry_run, &map).await?;
    }
    let mut answered = 0;
    while let Some(answer) = evictions.join_next().await {
        let answer = answer?;
        ensure!(is_refused(&answer), "{answer:?}");
        answered += 1;
    }
    assert_eq!(answered, MANY);
    let kept = cluster.instances().get("wanted").await?;
    assert_eq!(mark_of(&kept).as_deref(), Some(cluster.first()));
    cluster.kubectl(&["uncordon", cluster.second()])?;
    until_on(&cluster, "wanted", cluster.second()).await?;
    went_on(&cluster, "wanted").await?;
    cluster.no_guests().await
}

/// An eviction was refused as drainers expect it, who try again.
fn is_refused<T>(answer: &kube::Result<T>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 429)
}
