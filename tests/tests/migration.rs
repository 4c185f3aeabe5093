//! Live migrations of real guests.
//!
//! The tests observe from outside that a guest continues without a gap, by numbered ticks on the console and in
//! datagrams, and check all other results on the objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use drydock_api::{
    annotations,
    kubevirt::{
        Phase, VirtualMachineInstanceMigration, migration::MigrationPhase, names::conditions as types,
        status::MigrationMethod,
    },
    labels,
};
use drydock_core::{launcher_pod::made_for, mask};
use drydock_tests::{
    Cluster, agent,
    cluster::setting,
    guests::{Collector, IMAGE, NAMESPACE, bare_instance, instance, only, ticks, without_a_gap},
    migration_summary::summary,
    migrations::{NODE_LABEL, node_of, required_features, waiting},
    recorder::{Recorder, Snapshot},
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// Prints the content of the disks once per second, bypassing the guest's page cache.
///
/// The output contains checksums of the two written disks. For the first disk, it also contains the number of lines
/// that the guest has appended, the number in the last line, and whether a line is missing.
const PRINT_DISKS: [&str; 3] = [
    "dd if=/dev/urandom of=/dev/vdb bs=4k count=4 conv=notrunc 2>/dev/null",
    "dd if=/dev/urandom of=/dev/vdc bs=64k count=64 conv=notrunc 2>/dev/null",
    "while :; do sync; echo 1 >/proc/sys/vm/drop_caches; \
     echo \"disks [$(head -c 16384 /dev/vdb | sha256sum | head -c 16)] [$(head -c 4194304 /dev/vdc | sha256sum | head -c 16)] \
     [$(awk '$2 != NR {lost=1} END {print NR, $2, lost+0}' /boot/ticks)] seen\" >/dev/console; sleep 1; done &",
];

/// One line of output from [`PRINT_DISKS`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Disks {
    /// Checksums of the disks that are written once.
    sums: [String; 2],
    /// Number of lines that the guest has appended.
    lines: u64,
}

/// Parses the lines of [`PRINT_DISKS`] in a text.
fn disks(text: &str) -> Result<Vec<Disks>> {
    let mut printed = Vec::new();
    for line in text.lines() {
        let Some((_, line)) = line.split_once("disks [") else {
            continue;
        };
        let Some(line) = line.strip_suffix("] seen") else {
            continue;
        };
        let parts: Vec<&str> = line.split("] [").collect();
        let [cloud, empty, appended] = parts[..] else { continue };
        let numbers: Vec<u64> = appended.split(' ').filter_map(|number| number.parse().ok()).collect();
        // A line that is currently being written has no number yet.
        if let [lines, last, lost] = numbers[..] {
            ensure!(lost == 0 && lines == last, "the disk has lost lines: {line}");
            printed.push(Disks {
                sums: [cloud.to_owned(), empty.to_owned()],
                lines,
            });
        }
    }
    Ok(printed)
}

/// Returns the manifest of an instance as documented by KubeVirt, whose guest writes to all its disks and prints their
/// content.
fn writing(name: &str, control: &str) -> String {
    let commands: String = PRINT_DISKS
        .iter()
        .map(|command| format!("        - {command}\n"))
        .collect();
    let control: String = control.lines().map(|line| format!("          {line}\n")).collect();
    format!(
        "apiVersion: kubevirt.io/v1alpha3\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  terminationGracePeriodSeconds: 30\n  evictionStrategy: LiveMigrate\n  \
         domain:\n    resources: {{requests: {{memory: 128Mi}}}}\n    devices:\n      disks:\n      \
         - {{name: containerdisk, disk: {{bus: virtio}}}}\n      - {{name: cloudinitdisk, disk: {{bus: virtio}}}}\n      \
         - {{name: scratch, disk: {{bus: virtio}}}}\n  \
         volumes:\n  - name: containerdisk\n    containerDisk: {{image: {IMAGE}, imagePullPolicy: IfNotPresent}}\n  \
         - name: cloudinitdisk\n    cloudInitNoCloud:\n      userData: |\n        #cloud-config\n        password: fedora\n        \
         chpasswd: {{ expire: False }}\n        runcmd:\n{commands}        drydock:\n{control}  \
         - name: scratch\n    emptyDisk: {{capacity: 32Mi}}\n"
    )
}

/// Returns the phases of a migration in chronological order.
fn phases(migration: &VirtualMachineInstanceMigration) -> Result<Vec<MigrationPhase>> {
    let status = migration.status.clone().unwrap_or_default();
    let mut before = None;
    for transition in &status.phase_transition_timestamps {
        ensure!(
            before <= Some(transition.phase_transition_timestamp),
            "{transition:?} is too early"
        );
        before = Some(transition.phase_transition_timestamp);
    }
    Ok(status
        .phase_transition_timestamps
        .iter()
        .map(|transition| transition.phase)
        .collect())
}

/// A migration that has succeeded, its nodes and its pods.
struct Moved<'a> {
    name: &'a str,
    migration: &'a VirtualMachineInstanceMigration,
    source: &'a String,
    target: &'a String,
    left: &'a Pod,
    came: &'a Pod,
}

impl Moved<'_> {
    /// Checks what controller and agent report on the instance.
    async fn check_instance(&self, cluster: &Cluster) -> Result<()> {
        let Self {
            name,
            migration,
            source,
            target,
            left,
            came,
        } = *self;
        let [left_uid, came_uid] = [left, came].map(|pod| pod.uid().unwrap_or_default());
        ensure!(left_uid != came_uid, "the guest is in the same pod");
        let settled = until(cluster.instances(), name, "the new agent's report", |instance| {
            let status = instance.status.clone().unwrap_or_default();
            let pods: Vec<_> = status.active_pods.iter().collect();
            instance.labels().get(NODE_LABEL) == Some(target)
                && pods == [(&came_uid, target)]
                && status
                    .drydock
                    .is_some_and(|drydock| drydock.pod_uid.as_ref() == Some(&came_uid))
        })
        .await?;
        let status = settled.status.clone().context("no status")?;
        assert_eq!(status.migration_method, Some(MigrationMethod::BlockMigration));
        let state = status.migration_state.context("no migrationState")?;
        assert_eq!(state.migration_uid, migration.uid());
        assert_eq!(state.source_node.as_ref(), Some(source));
        assert_eq!(state.target_node.as_ref(), Some(target));
        assert_eq!(state.source_pod, Some(left.name_any()));
        assert_eq!(state.target_pod, Some(came.name_any()));
        ensure!(state.completed && !state.failed && !state.abort_requested, "{state:?}");
        ensure!(
            state.start_timestamp.is_some() && state.start_timestamp <= state.end_timestamp,
            "{state:?}"
        );
        let address = came.status.as_ref().and_then(|status| status.pod_ip.clone());
        until(cluster.instances(), name, "the new address", |instance| {
            let interfaces = instance.status.clone().unwrap_or_default().interfaces;
            interfaces
                .first()
                .is_some_and(|interface| interface.ip_address == address)
        })
        .await?;
        for wanted in ["Ready", types::LIVE_MIGRATABLE] {
            cluster.until_vm_condition(name, wanted, "True").await?;
        }
        Ok(())
    }

    /// Checks the status of the migration, and the events of both objects.
    async fn check_migration(&self, cluster: &Cluster) -> Result<()> {
        let Self { name, migration, .. } = *self;
        assert_eq!(
            phases(migration)?,
            [
                MigrationPhase::Pending,
                MigrationPhase::Scheduling,
                MigrationPhase::Scheduled,
                MigrationPhase::PreparingTarget,
                MigrationPhase::TargetReady,
                MigrationPhase::Running,
                MigrationPhase::Succeeded
            ]
        );
        let reported = migration.status.clone().unwrap_or_default();
        assert_eq!(
            reported.migration_state.map(|state| (state.completed, state.failed)),
            Some((true, false))
        );
        ensure!(
            reported.reason.is_none() && reported.conditions.is_empty(),
            "{:?}",
            reported.conditions
        );
        for (kind, object, reasons) in [
            (
                "VirtualMachineInstanceMigration",
                migration.name_any(),
                &["SuccessfulCreate", "SuccessfulMigration"][..],
            ),
            (
                "VirtualMachineInstance",
                name.to_owned(),
                &["PreparingTarget", "Migrating", "Migrated"],
            ),
        ] {
            let events = cluster.until_events(kind, &object, reasons).await?;
            let warning = events.iter().find(|event| event["type"] == "Warning");
            ensure!(warning.is_none(), "{warning:?}");
        }
        Ok(())
    }
}

/// Checks that one query finds a migration in the logs of all processes that took part in it.
///
/// These are a controller, and the agents and tunnels of both nodes. The query is for lines of JSON with the field
/// `migration_uid`.
async fn check_logs(cluster: &Cluster, migration: &VirtualMachineInstanceMigration) -> Result<()> {
    let uid = migration.uid().context("no UID")?;
    let key = format!("{NAMESPACE}/{}", migration.name_any());
    let mut wanted = BTreeSet::from([("controller".to_owned(), String::new())]);
    for node in &cluster.nodes {
        wanted.extend(["agent", "tunnel"].map(|container| (container.to_owned(), node.clone())));
    }
    until_some("the migration in all logs", || async {
        let mut found = BTreeSet::new();
        for pod in cluster.own_pods().await? {
            let spec = pod.spec.clone().context("no spec")?;
            for container in spec.containers.iter().map(|container| container.name.as_str()) {
                let log = cluster.kubectl(&["-n", "drydock", "logs", &pod.name_any(), "-c", container])?;
                for line in log.lines() {
                    let line: Value = serde_json::from_str(line).with_context(|| format!("{container}: {line}"))?;
                    if line["migration_uid"] != json!(uid) {
                        continue;
                    }
                    ensure!(line["level"].is_string() && line["message"].is_string(), "{line}");
                    ensure!(line["migration"].is_null() || line["migration"] == json!(key), "{line}");
                    let node = spec.node_name.clone().filter(|_| container != "controller");
                    found.insert((container.to_owned(), node.unwrap_or_default()));
                }
            }
        }
        Ok((found == wanted).then_some(()))
    })
    .await
}

/// Checks that the guest's disks contain the data that was written before and during the migration.
async fn check_disks(cluster: &Cluster, name: &str, before: &Disks) -> Result<()> {
    let more = before.lines + 60;
    let now = cluster
        .until_output(name, "the disks' new content", |text| {
            disks(text).ok()?.last().filter(|disks| disks.lines > more).cloned()
        })
        .await?;
    assert_eq!(now.sums, before.sums);
    let console = cluster.consoles(name).await?;
    let sums: Vec<_> = disks(&console)?
        .into_iter()
        .map(|disks| disks.sums)
        .filter(|sums| *sums != before.sums)
        .collect();
    ensure!(sums.is_empty(), "the disks had other content: {sums:?}");
    without_a_gap(&ticks(&console))
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn documented_instance_migrates_with_all_data_and_status() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let name = "mover";
    cluster
        .apply(&writing(name, &format!("{}\nwrite: 200ms", collector.ticking("50ms"))))
        .await?;
    let boot = collector.first_boot().await?;
    let before = cluster.until_vm_condition(name, "Ready", "True").await?;
    cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let disks_before = cluster
        .until_output(name, "the disks' content", |text| disks(text).ok()?.last().cloned())
        .await?;
    let left = cluster.launcher(name).await?;
    let source = node_of(&before)?;
    collector.until_more(&boot, 20).await?;

    let migration = cluster.migrate(name).await?;
    let (migration, after) = cluster.until_migrated(&migration).await?;
    collector.until_more(&boot, 20).await?;
    let target = cluster.nodes.iter().find(|node| **node != source).context("one node")?;

    // Checks the instance.
    let came = cluster.until_one_pod(name).await?;
    assert_eq!(after.uid(), before.uid());
    assert_eq!(&node_of(&after)?, target);
    let moved = Moved {
        name,
        migration: &migration,
        source: &source,
        target,
        left: &left,
        came: &came,
    };
    moved.check_instance(&cluster).await?;

    // Checks the pods.
    let ended = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    until(cluster.pods(), &left.name_any(), "the end", ended).await?;
    until(cluster.pods(), &came.name_any(), "readiness", agent::is_ready).await?;

    // Checks the migration, and the events of both objects.
    moved.check_migration(&cluster).await?;
    check_logs(&cluster, &migration).await?;

    // Checks the guest's data that was written before and during the migration.
    check_disks(&cluster, name, &disks_before).await?;
    let senders = collector.senders(&boot).await;
    let addresses = [&left, &came].map(|pod| pod.status.as_ref().and_then(|status| status.pod_ip.clone()));
    let gap = collector.longest_gap(&boot).await;
    println!("from {senders:?}; the longest gap was {gap:?}");
    assert_eq!(
        senders
            .iter()
            .map(|sender| Some(sender.to_string()))
            .collect::<Vec<_>>(),
        addresses
    );
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.no_guests().await
}

/// Limits of a migration that lasts as long as a test needs.
///
/// At this rate, memory and disks take minutes, and there is no timeout.
const HELD: &str = "bandwidthPerMigration: 1Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0";

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_moves_back_and_forth_and_five_migrations_are_kept() -> Result<()> {
    // The number suffices for the oldest migrations to be deleted; `DRYDOCK_ROUNDS` sets another number.
    let rounds: usize = setting("DRYDOCK_ROUNDS").map_or(Ok(8), |rounds| rounds.parse())?;
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let name = "traveller";
    cluster.apply(&instance(name, &collector.ticking("50ms"))).await?;
    let boot = collector.first_boot().await?;
    let mut node = node_of(&cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?)?;
    let mut made = Vec::new();
    for round in 0..rounds {
        let begun = Instant::now();
        let migration = cluster.migrate(name).await?;
        let (_, instance) = cluster
            .until_migrated(&migration)
            .await
            .with_context(|| format!("round {round}"))?;
        let now = node_of(&instance)?;
        ensure!(now != node, "round {round}: the guest is still on {node}");
        node = now;
        made.push(migration);
        println!("round {round}: {:?}", begun.elapsed());
    }
    collector.until_more(&boot, 20).await?;
    let expected: BTreeSet<String> = made.iter().rev().take(5).cloned().collect();
    until_some("the newest five migrations", || async {
        let kept = cluster.migrations().list(&ListParams::default()).await?.items;
        let kept: BTreeSet<String> = kept.iter().map(ResourceExt::name_any).collect();
        Ok((kept == expected).then_some(()))
    })
    .await?;
    let gap = collector.longest_gap(&boot).await;
    println!("{rounds} moves; the longest gap was {gap:?}");
    assert_eq!(collector.senders(&boot).await.len(), rounds + 1);
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn deleted_migration_leaves_the_guest_in_place_in_each_phase() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster
        .limit_migrations(&format!("{HELD}\nparallelMigrationsPerCluster: 1"))
        .await?;
    let collector = Collector::start(&cluster).await?;
    let names = ["runs", "placed", "waits"];
    // Only the first guest has a lot of data to transfer.
    cluster.apply(&instance("runs", &collector.ticking("50ms"))).await?;
    for name in ["placed", "waits"] {
        cluster.apply(&bare_instance(name)).await?;
    }
    let mut before = Vec::new();
    for name in names {
        let instance = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
        before.push((node_of(&instance)?, cluster.launcher(name).await?.uid()));
    }
    for name in names {
        cluster.until_console(name, "tick 3 ").await?;
    }
    collector.first_boot().await?;

    let running = cluster.migrate("runs").await?;
    cluster.until_migration(&running, MigrationPhase::Running).await?;
    let scheduled = cluster.migrate("placed").await?;
    cluster.until_migration(&scheduled, MigrationPhase::Scheduled).await?;
    cluster.until_migration_waits(&scheduled, "ClusterLimit").await?;
    let pending = cluster.migrate("waits").await?;
    // The queue decides whether the migration already has a pod; the guest has not started to move.
    let begun = |migration: &VirtualMachineInstanceMigration| matches!(migration.phase(), Some(phase) if phase < MigrationPhase::PreparingTarget);
    let waits = until(cluster.migrations(), &pending, "a wait", begun).await?;
    println!("{:?}", waits.phase());
    for (name, migration) in [("waits", &pending), ("placed", &scheduled)] {
        cluster.abort(migration).await?;
        cluster.until_one_pod(name).await?;
    }
    let nowhere = cluster.migrate_to("waits", &[("example.com/no-such", "node")]).await?;
    let message = cluster
        .until_migration_waits(&nowhere, "TargetPodUnschedulable")
        .await?;
    println!("Scheduling: {message}");
    ensure!(
        message.contains("2 nodes") || message.contains("nodes are available"),
        "{message}"
    );
    let held = cluster.migrations().get(&nowhere).await?;
    assert_eq!(held.phase(), Some(MigrationPhase::Scheduling));
    cluster.abort(&nowhere).await?;
    // The first migration has been in progress all the time.
    let moving = cluster.migrations().get(&running).await?;
    assert_eq!(moving.phase(), Some(MigrationPhase::Running), "{}", summary(&moving));
    cluster.abort(&running).await?;

    for (name, (node, pod)) in names.iter().zip(&before) {
        assert_eq!(&cluster.until_one_pod(name).await?.uid(), pod, "{name}");
        assert_eq!(&node_of(&cluster.instances().get(name).await?)?, node, "{name}");
        cluster.until_vm_condition(name, "Ready", "True").await?;
    }
    let left = cluster.migrations().list(&ListParams::default()).await?.items;
    ensure!(left.is_empty(), "{left:?}");

    // Each guest moves once its migration is allowed.
    cluster.limit_migrations("parallelMigrationsPerCluster: 2").await?;
    for (name, (node, _)) in names.iter().zip(&before) {
        let migration = cluster.migrate(name).await?;
        let (_, after) = cluster.until_migrated(&migration).await?;
        ensure!(node_of(&after)? != *node, "{name} is still on {node}");
        cluster.goes_on(name).await?;
    }
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn rejected_target_pod_is_replaced_and_the_guest_moves() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "rejected";
    cluster.apply(&bare_instance(name)).await?;
    let before = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let source = node_of(&before)?;
    let target = cluster.nodes.iter().find(|node| **node != source).context("one node")?;
    let (key, value) = ("example.com/rejection-test", "over");
    let migration = cluster.migrate_to(name, &[(key, value)]).await?;
    cluster
        .until_migration_waits(&migration, "TargetPodUnschedulable")
        .await?;
    let arrivals = || async {
        let pods = cluster.launchers_of(&before).await?;
        anyhow::Ok(
            pods.into_iter()
                .filter(|pod| made_for(pod).is_some())
                .collect::<Vec<_>>(),
        )
    };
    // A kubelet without the device would set this status.
    let first = arrivals().await?.pop().context("no target pod")?;
    let rejection = json!({"status": {
        "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: no healthy devices"}});
    cluster
        .pods()
        .patch_status(&first.name_any(), &PatchParams::default(), &Patch::Merge(&rejection))
        .await?;
    until_some("another target pod", || async {
        Ok((arrivals().await?.len() == 2).then_some(()))
    })
    .await?;
    cluster.label(target, &[(key, Some(value))]).await?;
    let moved = cluster.until_migrated(&migration).await;
    cluster.label(target, &[(key, None)]).await?;
    let (_, after) = moved?;
    assert_eq!(&node_of(&after)?, target);
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn migration_ends_when_pods_of_both_sides_are_force_deleted() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.limit_migrations(HELD).await?;
    cluster.apply(&instance("torn", "count: 200ms")).await?;
    let running = cluster
        .until_vm_condition("torn", types::LIVE_MIGRATABLE, "True")
        .await?;
    let migration = cluster.migrate("torn").await?;
    cluster.until_migration(&migration, MigrationPhase::Running).await?;
    for pod in cluster.launchers_of(&running).await? {
        cluster.delete_pod_now(NAMESPACE, &pod.name_any()).await?;
    }
    let ended = until(cluster.migrations(), &migration, "the end", |migration| {
        migration.phase().is_some_and(MigrationPhase::is_final)
    })
    .await?;
    assert_eq!(ended.phase(), Some(MigrationPhase::Failed), "{}", summary(&ended));
    let over = until(cluster.instances(), "torn", "the end", |instance| {
        let phase = instance.phase();
        phase.is_some_and(Phase::is_final)
    })
    .await?;
    println!("{:?} {:?}", ended.status, over.status.map(|status| status.reason));
    // No leftover blocks the next instance with the name.
    cluster.delete(&["vmi", "torn", "--namespace", NAMESPACE])?;
    cluster.limit_migrations("parallelMigrationsPerCluster: 2").await?;
    cluster.apply(&bare_instance("torn")).await?;
    cluster
        .until_vm_condition("torn", types::LIVE_MIGRATABLE, "True")
        .await?;
    let again = cluster.migrate("torn").await?;
    cluster.until_migrated(&again).await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

/// Removes the mask of CPU features of a node, and waits until the node has the label `key` again.
async fn unmask(cluster: &Cluster, node: &str, key: &str) -> Result<()> {
    let annotations = [(annotations::MASK_CPU_FEATURES, None), (annotations::SKIP_NODE, None)];
    cluster.annotate(node, &annotations).await?;
    cluster.until_label(node, key, Some("true")).await?;
    until_some("no mask", || async {
        let status = cluster.hypervisor(node).await?.status.unwrap_or_default();
        Ok(status.masked_features.is_empty().then_some(()))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn target_without_a_cpu_feature_is_avoided_or_refuses() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let name = "choosy";
    cluster.apply(&instance(name, &collector.ticking("50ms"))).await?;
    let boot = collector.first_boot().await?;
    let before = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let pod = cluster.launcher(name).await?.uid();
    let source = node_of(&before)?;
    let target = cluster.nodes.iter().find(|node| **node != source).context("one node")?;
    let required = before
        .status
        .clone()
        .and_then(|status| status.drydock?.guest_cpu)
        .context("no CPU")?
        .required;
    let labels = cluster.cpu_labels(target).await?;
    let feature = required
        .iter()
        .find(|feature| labels.contains_key(&format!("{}{feature}", labels::CPU_FEATURE)))
        .context("the node has no label of a CPU feature of the guest")?;
    let key = format!("{}{feature}", labels::CPU_FEATURE);

    // The labels of no node match.
    cluster
        .annotate(target, &[(annotations::MASK_CPU_FEATURES, Some(feature))])
        .await?;
    cluster.until_label(target, &key, None).await?;
    let nowhere = cluster.migrate(name).await?;
    let message = cluster
        .until_migration_waits(&nowhere, "TargetPodUnschedulable")
        .await?;
    println!("without {feature}: {message}");
    cluster.abort(&nowhere).await?;
    unmask(&cluster, target, &key).await?;

    // The target's labels are stale, so the target's own check refuses the guest.
    cluster
        .annotate(target, &[(annotations::SKIP_NODE, Some("true"))])
        .await?;
    cluster
        .annotate(target, &[(annotations::MASK_CPU_FEATURES, Some(feature))])
        .await?;
    until_some("the mask to be in force", || async {
        let status = cluster.hypervisor(target).await?.status.unwrap_or_default();
        Ok(status.masked_features.contains(feature).then_some(()))
    })
    .await?;
    let refused = cluster.migrate(name).await?;
    let refused = cluster.until_migration(&refused, MigrationPhase::Failed).await?;
    let status = refused.status.clone().unwrap_or_default();
    assert_eq!(status.reason.as_deref(), Some("TargetRefused"));
    let side = status.target.unwrap_or_default();
    assert_eq!(side.reason.as_deref(), Some("CPUFeatureMissing"));
    let reason = status
        .migration_state
        .and_then(|state| state.failure_reason)
        .unwrap_or_default();
    println!("refused: {reason}");
    ensure!(reason.contains(feature.as_str()), "{reason} does not name {feature}");
    cluster
        .until_events("VirtualMachineInstance", name, &["TargetRefused"])
        .await?;
    assert_eq!(cluster.until_one_pod(name).await?.uid(), pod);
    collector.until_more(&boot, 20).await?;
    unmask(&cluster, target, &key).await?;

    let migration = cluster.migrate(name).await?;
    let (_, after) = cluster.until_migrated(&migration).await?;
    assert_eq!(&node_of(&after)?, target);
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_moves_between_nodes_that_mask_the_same_feature() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let name = "levelled";
    cluster.apply(&instance(name, &collector.ticking("50ms"))).await?;
    let boot = collector.first_boot().await?;
    let before = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let source = node_of(&before)?;
    let target = cluster.nodes.iter().find(|node| **node != source).context("one node")?;
    let feature = cluster.labelled_feature(&before, target).await?;
    let available = |message: &'static str, expected: bool| {
        until(cluster.instances(), name, message, move |instance| {
            let conditions = instance.status.iter().flat_map(|status| &status.conditions);
            let mut found = conditions.filter(|condition| condition.type_ == types::MIGRATION_TARGET_AVAILABLE);
            let is_masked = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(&mask::means()));
            found.any(|condition| match expected {
                true => condition.reason.as_deref() == Some("TargetsFound"),
                false => condition.status == "False" && is_masked(&condition.message),
            })
        })
    };

    // Only the target masks the feature: the guest would carry the feature to this node.
    cluster.mask(target, &[&feature]).await?;
    available("no target, because it masks the feature", false).await?;
    // Both nodes mask the feature: the guest already uses it on a node that masks it.
    cluster.mask(&source, &[&feature]).await?;
    available("a target that masks the feature like the source", true).await?;
    let migration = cluster.migrate(name).await?;
    let (_, after) = cluster.until_migrated(&migration).await?;
    assert_eq!(&node_of(&after)?, target);
    ensure!(
        required_features(&after)?.contains(&feature),
        "the guest has lost {feature}"
    );

    // Only the source masks the feature: the guest may leave this node.
    cluster.mask(&source, &[]).await?;
    available("a target that offers the feature", true).await?;
    let migration = cluster.migrate(name).await?;
    let (_, after) = cluster.until_migrated(&migration).await?;
    assert_eq!(node_of(&after)?, source);
    available("no target, because it still masks the feature", false).await?;
    cluster.mask(target, &[]).await?;
    available("a target without a mask", true).await?;
    collector.until_more(&boot, 20).await?;
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn concurrent_migrations_are_limited_and_waiters_report_why() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // Each migration takes at least a second, so that others wait for a slot of the cluster, and none for a slot of a
    // node.
    let wide = "parallelOutboundMigrationsPerNode: 6\nparallelInboundMigrationsPerNode: 6";
    cluster
        .limit_migrations(&format!(
            "parallelMigrationsPerCluster: 2\n{wide}\nbandwidthPerMigration: 24Mi"
        ))
        .await?;
    let names = ["q1", "q2", "q3", "q4", "q5", "q6"];
    for name in names {
        cluster.apply(&bare_instance(name)).await?;
    }
    for name in names {
        cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
        cluster.until_console(name, "tick 3 ").await?;
    }
    let recorder = Recorder::start(cluster.migrations(), "").await?;
    let begun = Instant::now();
    let mut migrations = Vec::new();
    for name in names {
        migrations.push(cluster.migrate(name).await?);
    }
    for migration in &migrations {
        cluster.until_migrated(migration).await?;
    }
    println!("{} moves in {:?}", names.len(), begun.elapsed());
    let states = recorder.stop().await?;
    let moving = |state: &Snapshot<_>| {
        let held = MigrationPhase::PreparingTarget..=MigrationPhase::Running;
        state
            .values()
            .filter(|one: &&VirtualMachineInstanceMigration| one.phase().is_some_and(|phase| held.contains(&phase)))
            .count()
    };
    let most = states.iter().map(moving).max();
    assert_eq!(most, Some(2), "migrations at the same time");
    let waited_for: BTreeSet<(String, String)> = states.iter().flat_map(BTreeMap::values).filter_map(waiting).collect();
    println!("the migrations waited for {waited_for:#?}");
    let first = &states
        .iter()
        .find(|state| state.len() == names.len())
        .context("no state has all migrations")?;
    let mut at_once = 0;
    for (name, migration) in *first {
        let waits = waiting(migration).is_some() || migration.phase() >= Some(MigrationPhase::Scheduling);
        let later = states.iter().any(|state| state.get(name).and_then(waiting).is_some());
        // A migration that starts immediately has no reason to wait, and its status is written only after its pod was
        // created.
        at_once += usize::from(!waits && !later);
        ensure!(at_once <= 2, "{name} waited without a reported reason");
    }
    for limit in ["ClusterLimit", "PlacementLimit"] {
        ensure!(
            waited_for.iter().any(|(reason, _)| reason == limit),
            "no migration waited for {limit}: {waited_for:?}"
        );
    }
    for name in names {
        cluster.goes_on(name).await?;
    }
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn migration_of_an_immovable_instance_is_refused() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let refused = |result: Result<String>, expected: &str| match result {
        Ok(name) => Err(anyhow!("{name} was admitted; expected: {expected}")),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains(expected), "{text} does not contain {expected:?}");
            Ok(())
        }
    };
    refused(
        cluster.migrate("nobody").await,
        "the VMI \"nobody\" does not exist under the cluster",
    )?;
    cluster.apply(&bare_instance("single")).await?;
    cluster
        .until_vm_condition("single", types::LIVE_MIGRATABLE, "True")
        .await?;
    let held = cluster.migrate_to("single", &[("example.com/no-such", "node")]).await?;
    cluster.until_migration(&held, MigrationPhase::Scheduling).await?;
    refused(
        cluster.migrate("single").await,
        &format!(
            "in-flight migration detected. Active migration job ({held}) is currently already in progress for VMI single."
        ),
    )?;
    cluster.abort(&held).await?;
    let pod = cluster.until_one_pod("single").await?.name_any();
    cluster.end_guest_by(
        &pod,
        &format!("virsh -c 'qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock' destroy {NAMESPACE}_single"),
    )?;
    cluster.until_phase("single", Phase::Failed).await?;
    refused(
        cluster.migrate("single").await,
        "Cannot migrate VMI in finalized state.",
    )?;
    cluster.no_guests().await
}

/// Returns the manifests of a Service, and of a client that queries it in a loop and prints each response.
fn service_and_client(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  selector: {{app: {name}}}\n  \
         ports: [{{port: 80, targetPort: 8081}}]\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {{name: client, namespace: {NAMESPACE}}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: client\n    image: busybox\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, 'while :; do wget -q -O - -T 1 http://$POLLED_SERVICE_HOST/healthz 2>/dev/null || echo lost; sleep 0.1; done']\n"
    )
    .replace("$POLLED", &format!("${}", name.to_uppercase()))
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_service_finds_a_guest_that_has_moved() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "served";
    let collector = Collector::start(&cluster).await?;
    let control = format!("{}\nhttp: 8081", collector.ticking("50ms"));
    let manifest = instance(name, &control).replace(
        &format!("metadata: {{name: {name},"),
        &format!("metadata: {{labels: {{app: {name}}}, name: {name},"),
    );
    cluster.apply(&manifest).await?;
    cluster.until_console(name, "drydock-guest ready").await?;
    cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let (service, client) = service_and_client(name)
        .split_once("---\n")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .context("two")?;
    cluster.apply(&service).await?;
    let responses = || -> Vec<String> {
        let log = cluster.kubectl(&["logs", "client"]).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    };
    // Returns the total number of responses once the last `count` requests were successful.
    let well = |count: usize| {
        let responses = &responses;
        move || async move {
            let all = responses();
            let last = all.iter().rev().take_while(|response| *response == "ok").count();
            Ok((last >= count).then_some(all.len()))
        }
    };
    let outcome = async {
        cluster.kubectl_with(&["create"], &client)?;
        let begun = until_some("responses of the guest", well(20)).await?;
        let migration = cluster.migrate(name).await?;
        cluster.until_migrated(&migration).await?;
        let one = cluster.until_one_pod(name).await?;
        until(cluster.pods(), &one.name_any(), "readiness", agent::is_ready).await?;
        let over = responses().len();
        until_some("responses of the migrated guest", well(30)).await?;
        let all = responses();
        let lost = |from: usize, to: usize| all[from..to].iter().filter(|response| *response == "lost").count();
        println!(
            "{} requests during the migration, {} of them lost; {} lost later",
            over - begun,
            lost(begun, over),
            lost(over, all.len())
        );
        without_a_gap(&ticks(&cluster.consoles(name).await?))
    };
    let outcome = outcome.await;
    cluster.delete(&["pod", "client", "--namespace", NAMESPACE, "--force"])?;
    cluster.delete(&["service", name, "--namespace", NAMESPACE])?;
    outcome?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_that_only_listens_is_reachable_after_two_moves() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "listener";
    // The guest only responds, and sends nothing on its own, so passt cannot learn its address.
    let manifest = instance(name, "count: 200ms\nhttp: 8081").replace(
        &format!("metadata: {{name: {name},"),
        &format!("metadata: {{labels: {{app: {name}}}, name: {name},"),
    );
    cluster.apply(&manifest).await?;
    let console = cluster.until_console(name, "drydock-guest ready").await?;
    cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    let first = cluster.launcher(name).await?;
    let address = first.status.and_then(|status| status.pod_ip).context("an address")?;
    let own = format!("drydock-guest address eth0 {address}/");
    ensure!(console.contains(&own), "{own} is not in {console}");
    let manifests = service_and_client(name);
    let (service, client) = manifests.split_once("---\n").context("two")?;
    cluster.apply(service).await?;
    let outcome = async {
        for _ in 0..2 {
            let migration = cluster.migrate(name).await?;
            cluster.until_migrated(&migration).await?;
            let one = cluster.until_one_pod(name).await?;
            until(cluster.pods(), &one.name_any(), "readiness", agent::is_ready).await?;
        }
        // This is the first request to the guest.
        cluster.kubectl_with(&["create"], client)?;
        until_some("a response of the guest", || async {
            let log = cluster.kubectl(&["logs", "client"]).unwrap_or_default();
            Ok(log.lines().any(|line| line == "ok").then_some(()))
        })
        .await?;
        without_a_gap(&ticks(&cluster.consoles(name).await?))
    };
    let outcome = outcome.await;
    cluster.delete(&["pod", "client", "--namespace", NAMESPACE, "--force"])?;
    cluster.delete(&["service", name, "--namespace", NAMESPACE])?;
    outcome?;
    cluster.no_guests().await
}
