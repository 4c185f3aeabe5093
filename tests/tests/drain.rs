//! Drains of nodes by each method that users have: `kubectl drain`, the drain taint, and evictions alone.
//!
//! `tests/README.md` lists the sentences of KubeVirt's documentation that each test covers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drydock_api::{
    Hypervisor,
    annotations::DRAIN_PREVIEW,
    hypervisor::RemainingState,
    kubevirt::{
        Phase, VirtualMachineInstance,
        migration::MigrationPhase,
        names::{
            BY_DESCHEDULER, BY_DRYDOCK, EVICTION_IN_PROGRESS, REQUEST_EVICT_ONLY, REQUESTED_BY, conditions as types,
        },
    },
    reasons::node::{DRAIN_IN_PROGRESS, DRAINED},
};
use drydock_core::{mask, placement::PodShare, quantity};
use drydock_tests::{
    Cluster,
    drains::{
        FOLDER, GUESTS_ALONE, clean_for_drains, counting, counting_on_linux, delete_claims, drain, drain_begun,
        immovable, left, mark_of, started_on_the_first, until_drain, until_node_condition, until_on,
    },
    guests::{NAMESPACE, bare_instance, condition, meanwhile},
    migrations::{migrations_of, node_of},
    session::Session,
    watching::{until, until_some},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::task::JoinSet;

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drain_of_a_node_moves_all_guests_and_reports_completion() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let names = ["one", "two", "three"];
    let guests = [
        (names[0], counting_on_linux(names[0], "LiveMigrate"), "True"),
        (names[1], counting(names[1], "LiveMigrate"), "True"),
        (names[2], counting(names[2], "LiveMigrate"), "True"),
    ];
    started_on_the_first(&cluster, &guests).await?;

    // A replica of the controller may be on the node too, and is then evicted during the drain.
    let on_the_first = [("worker-1", &*first)];
    let limited = [("worker-1", &*first), ("--force", "--force --timeout=120s")];
    cluster.documented("deploy/docs/drain.md", "kubectl drain worker-1", &limited)?;
    for name in names {
        let instance = until_on(&cluster, name, &second).await?;
        assert_eq!(condition(&instance, types::READY).0, "True");
        until(cluster.instances(), name, "the removal of its mark", |instance| {
            mark_of(instance).is_none()
        })
        .await?;
        cluster.goes_on(name).await?;
    }
    let over = until_drain(&cluster, &first, "the drain to be over", |drain| {
        drain.finished_at.is_some()
    })
    .await?;
    assert_eq!((over.total, over.left), (3, 0));
    let shown = cluster.documented(
        "deploy/docs/drain.md",
        "kubectl get hv worker-1 -o jsonpath='{.status.drain}'",
        &on_the_first,
    )?;
    ensure!(shown.contains("finishedAt"), "{shown}");
    until_node_condition(&cluster, &first, DRAINED, "DrainCompleted").await?;
    let shown = cluster.documented("deploy/docs/drain.md", "kubectl get node worker-1", &on_the_first)?;
    ensure!(shown.contains("DrainCompleted"), "{shown}");
    until_node_condition(&cluster, &first, DRAIN_IN_PROGRESS, "NothingToMove").await?;
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
    // Each guest has its own PDB, which selects its only pod.
    until_some("three budgets", || async {
        let budgets = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), NAMESPACE);
        Ok((budgets.list(&ListParams::default()).await?.items.len() == 3).then_some(()))
    })
    .await?;

    cluster.documented("deploy/docs/drain.md", "kubectl uncordon worker-1", &on_the_first)?;
    until_node_condition(&cluster, &first, DRAINED, "NotRequested").await?;
    for name in names {
        let available = types::MIGRATION_TARGET_AVAILABLE;
        let instance = cluster.until_vm_condition(name, available, "True").await?;
        assert_eq!(node_of(&instance)?, second, "the guest moved back by itself");
        assert_eq!(mark_of(&instance), None);
    }
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn immovable_guests_stop_restart_or_block_as_configured() -> Result<()> {
    let cluster = clean_for_drains().await?;
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
    let text = format!("{:#}", refused.err().context("the drain succeeded")?);
    ensure!(
        text.contains("VMI stuck is configured with an eviction strategy but is not live-migratable"),
        "{text}"
    );
    // The bare instance stays in its final phase; the VirtualMachine starts a new instance on another node.
    cluster.until_phase("bare", Phase::Succeeded).await?;
    let again = until(
        cluster.instances(),
        "restarting",
        "another instance",
        |instance: &VirtualMachineInstance| instance.uid() != restarting,
    )
    .await?;
    until_on(&cluster, &again.name_any(), &second).await?;
    let stuck = cluster.instances().get("stuck").await?;
    assert_eq!(node_of(&stuck)?, first);
    assert_eq!(mark_of(&stuck), None);
    until_drain(&cluster, &first, "the blocked guest", |drain| {
        left(drain) == [("stuck", RemainingState::Blocked, "NotMigratable")]
    })
    .await?;

    // The taint requests the drain of all guests, and the status lists the guests that stay.
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain=draining:NoSchedule"])?;
    let blocked = until_drain(&cluster, &first, "a blocked guest", |drain| drain.blocked == 1).await?;
    assert_eq!(left(&blocked), [("stuck", RemainingState::Blocked, "NotMigratable")]);
    until_node_condition(&cluster, &first, DRAINED, "VirtualMachinesLeft").await?;
    cluster.no_guests().await?;
    delete_claims(&cluster).await?;
    cluster.on_node(&first, &format!("rm -rf {FOLDER}"))?;
    cluster.reset().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn taint_moves_guests_by_default_and_by_configured_key() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    started_on_the_first(&cluster, &[("tainted", counting("tainted", "LiveMigrate"), "True")]).await?;
    let on_the_first = [("worker-1", &*first)];
    cluster.documented(
        "deploy/docs/drain.md",
        "kubectl taint nodes worker-1 kubevirt.io/drain=",
        &on_the_first,
    )?;
    until_on(&cluster, "tainted", &second).await?;
    cluster.documented(
        "deploy/docs/drain.md",
        "kubectl taint nodes worker-1 kubevirt.io/drain-",
        &on_the_first,
    )?;
    until_node_condition(&cluster, &first, DRAINED, "NotRequested").await?;

    let configured = [
        ("feature-gates", "LiveMigration"),
        ("migrations", "nodeDrainTaintKey: mytaint/drain"),
    ];
    cluster.configure(&configured).await?;
    // The new key is in force once it has an effect; the default key no longer has any.
    cluster.kubectl(&["taint", "nodes", &second, "mytaint/drain=draining:NoSchedule"])?;
    until_on(&cluster, "tainted", &first).await?;
    cluster.goes_on("tainted").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn maintenance_moves_guests_and_gives_the_node_back() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let guests = [
        ("serviced", counting("serviced", "LiveMigrate"), "True"),
        ("plain", counting("plain", "None"), "True"),
    ];
    started_on_the_first(&cluster, &guests).await?;
    let dry_run = [
        ("nodeName: worker-1", &*format!("nodeName: {first}")),
        ("create", "create --dry-run=server"),
    ];
    let preview = cluster.documented("deploy/docs/maintenance.md", "kubectl create -f -", &dry_run)?;
    ensure!(preview.contains("created (server dry run)"), "{preview}");
    assert_eq!(mark_of(&cluster.instances().get("serviced").await?), None);
    let manifest = format!(
        "apiVersion: nodemaintenance.medik8s.io/v1beta1\nkind: NodeMaintenance\nmetadata: {{name: test-drain}}\n\
         spec: {{nodeName: {first}, reason: a new disk}}\n"
    );
    cluster.kubectl_with(&["create"], &manifest)?;
    cluster.kubectl(&[
        "wait",
        "nm",
        "test-drain",
        "--for=jsonpath={.status.phase}=Succeeded",
        "--timeout=120s",
    ])?;
    assert_eq!(node_of(&cluster.instances().get("serviced").await?)?, second);
    cluster.until_phase("plain", Phase::Succeeded).await?;
    until_node_condition(&cluster, &first, DRAINED, "DrainCompleted").await?;
    cluster.kubectl(&["delete", "nm", "test-drain"])?;
    until_node_condition(&cluster, &first, DRAINED, "NotRequested").await?;
    assert_eq!(node_of(&cluster.instances().get("serviced").await?)?, second);
    cluster.goes_on("serviced").await?;
    cluster.no_guests().await
}

/// Returns the state that the descheduler sees in the annotations of a guest's pod.
///
/// The values are whether an eviction starts a migration, and the component whose eviction is in progress.
async fn deschedulers_view(cluster: &Cluster, name: &str) -> Result<(bool, Option<String>)> {
    let annotations = cluster.launcher(name).await?.annotations().clone();
    let in_progress = annotations.get(EVICTION_IN_PROGRESS).cloned();
    Ok((annotations.contains_key(REQUEST_EVICT_ONLY), in_progress))
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn eviction_by_the_descheduler_is_announced_until_over() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let guests = [("tidied", counting("tidied", "LiveMigrate"), "True")];
    started_on_the_first(&cluster, &guests).await?;
    assert_eq!(deschedulers_view(&cluster, "tidied").await?, (true, None));
    // The guest has no target, so the eviction stays in progress as long as necessary.
    cluster.kubectl(&["cordon", &second])?;
    let pod = cluster.launcher("tidied").await?.name_any();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": NAMESPACE, "annotations": {REQUESTED_BY: BY_DESCHEDULER}}});
    let evict = || cluster.kubectl_with(&["create", "--raw", &path], &eviction.to_string());
    let text = format!("{:#}", evict().err().context("no refusal")?);
    ensure!(text.contains("Eviction triggered evacuation"), "{text}");
    let announced = (true, Some(BY_DRYDOCK.to_owned()));
    until_some("the eviction to be announced", || async {
        Ok((deschedulers_view(&cluster, "tidied").await? == announced).then_some(()))
    })
    .await?;
    // Cancels the evacuation as documented.
    cluster.documented("deploy/docs/drain.md", "kubectl patch vmi web", &[("web", "tidied")])?;
    cluster.kubectl(&["delete", "vmim", "--all", "--namespace", NAMESPACE])?;
    until_some("the announcement to be removed", || async {
        Ok((deschedulers_view(&cluster, "tidied").await? == (true, None)).then_some(()))
    })
    .await?;
    // With a target, the next eviction is completed.
    cluster.kubectl(&["uncordon", &second])?;
    evict().err().context("no refusal")?;
    let moved = until_on(&cluster, "tidied", &second).await?;
    ensure!(node_of(&moved)? != first, "the guest is still on {first}");
    until_some("no announced eviction", || async {
        Ok((deschedulers_view(&cluster, "tidied").await? == (true, None)).then_some(()))
    })
    .await?;
    cluster.no_guests().await
}

/// Returns how often the descheduler has printed a text.
fn printed(descheduler: &Session, text: &str) -> usize {
    descheduler.printed().matches(text).count()
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn real_descheduler_evicts_one_guest_at_a_time() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let names = ["tidied", "untidied"];
    let guests = names.map(|name| (name, counting(name, "LiveMigrate"), "True"));
    started_on_the_first(&cluster, &guests).await?;
    // The guests have no target, so the first eviction stays in progress as long as necessary.
    cluster.kubectl(&["cordon", &second])?;
    cluster.kubectl(&["taint", "nodes", &first, "test.drydock.dev/unwanted:NoSchedule"])?;
    let descheduler = cluster.descheduler_begun()?;
    let rounds = "Number of evictions/requests";
    descheduler.until_printed(rounds).await?;
    let marked = || async {
        let mut marked = Vec::new();
        for name in names {
            let instance = cluster.instances().get(name).await?;
            marked.extend(mark_of(&instance).map(|_| name));
        }
        anyhow::Ok(marked)
    };
    let wanted = until_some("one guest to be evicted", || async {
        Ok(marked().await?.first().copied())
    })
    .await?;
    // Further rounds find that the only eviction is in progress. The descheduler would evict the other guest if it
    // counted the refusal of the first eviction as a failure.
    descheduler.until_printed("Eviction in background assumed").await?;
    let before = printed(&descheduler, rounds);
    until_some("three more rounds", || async {
        Ok((printed(&descheduler, rounds) >= before + 3).then_some(()))
    })
    .await?;
    assert_eq!(marked().await?, [wanted]);
    assert_eq!(
        printed(&descheduler, "Eviction in background assumed"),
        1,
        "{}",
        descheduler.printed()
    );
    cluster.kubectl(&["uncordon", &second])?;
    for name in names {
        until_on(&cluster, name, &second).await?;
        cluster.goes_on(name).await?;
    }
    let printed = descheduler.printed();
    ensure!(!printed.contains("error when evicting pod"), "{printed}");
    drop(descheduler);
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drain_without_target_reports_why_and_ends_on_uncordon() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    started_on_the_first(&cluster, &[("waiting", counting("waiting", "LiveMigrate"), "True")]).await?;
    // Both nodes are cordoned, so the guest does not move back and forth.
    cluster.kubectl(&["cordon", &second])?;
    let refused = drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=15s"]);
    let text = format!("{:#}", refused.err().context("the drain succeeded")?);
    ensure!(
        text.contains(r#"Eviction triggered evacuation of VMI "default/waiting""#),
        "{text}"
    );
    let waiting = until_drain(&cluster, &first, "a remaining guest", |drain| drain.left == 1).await?;
    let (name, state, reason) = *left(&waiting).first().context("no guest is left")?;
    assert_eq!(name, "waiting");
    ensure!(
        (state == RemainingState::Blocked && reason == "NoTargetAvailable")
            || (state == RemainingState::Waiting && reason == "TargetPodUnschedulable"),
        "{state:?} {reason}"
    );
    cluster.kubectl(&["uncordon", &first])?;
    until(cluster.instances(), "waiting", "the removal of its mark", |instance| {
        mark_of(instance).is_none()
    })
    .await?;
    until_some("the end of all migrations", || async {
        let all = cluster.migrations().list(&ListParams::default()).await?.items;
        Ok(all
            .iter()
            .all(|migration| migration.phase().is_some_and(MigrationPhase::is_final))
            .then_some(()))
    })
    .await?;
    cluster.kubectl(&["uncordon", &second])?;
    assert_eq!(node_of(&cluster.instances().get("waiting").await?)?, first);
    // A second drain succeeds, since it has a target.
    drain(&cluster, &first, &[GUESTS_ALONE, "--timeout=90s"])?;
    until_on(&cluster, "waiting", &second).await?;
    cluster.goes_on("waiting").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drains_to_and_fro_do_not_stall_in_quick_succession() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let nodes = [cluster.first().to_owned(), cluster.second().to_owned()];
    started_on_the_first(&cluster, &[("moving", counting("moving", "LiveMigrate"), "True")]).await?;
    // Each drain starts this number of seconds after the previous migration.
    for (round, pause) in [0, 0, 0, 1, 3, 10].into_iter().enumerate() {
        meanwhile(Duration::from_secs(pause)).await;
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        drain(&cluster, from, &[GUESTS_ALONE, "--timeout=60s"]).with_context(|| format!("round {round}"))?;
        assert_eq!(node_of(&until_on(&cluster, "moving", to).await?)?, *to);
        cluster.kubectl(&["uncordon", from])?;
    }
    cluster.goes_on("moving").await?;
    cluster.no_guests().await
}

/// Sets only the name of the node to leave, as other tools may: the guest moves, and the mark is removed.
async fn check_mark_alone(cluster: &Cluster, name: &str, (from, to): (&str, &str)) -> Result<()> {
    let mark = Patch::Merge(json!({"status": {"evacuationNodeName": from}}));
    cluster
        .instances()
        .patch_status(name, &PatchParams::default(), &mark)
        .await?;
    until_on(cluster, name, to).await?;
    until(cluster.instances(), name, "the removal of its mark", |instance| {
        mark_of(instance).is_none()
    })
    .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn failed_evacuation_backs_off_ends_and_restarts_on_request() -> Result<()> {
    const TAINT: &str = "kubevirt.io/drain=draining:NoSchedule";
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let name = "stubborn";
    started_on_the_first(&cluster, &[(name, counting_on_linux(name, "LiveMigrate"), "True")]).await?;
    // The migration is slow enough for the target to be deleted in the meantime.
    cluster
        .limit_migrations("bandwidthPerMigration: 1Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0")
        .await?;
    cluster.kubectl(&["taint", "nodes", &first, TAINT])?;
    let migration = until_some("a running migration", || async {
        let found = migrations_of(&cluster, name).await?;
        Ok(found
            .into_iter()
            .find(|one| one.phase() == Some(MigrationPhase::Running)))
    })
    .await?;
    let target = migration
        .status
        .and_then(|status| status.target?.pod)
        .context("no target pod")?;
    cluster.delete_pod_now(NAMESPACE, &target).await?;
    let waits = until_drain(&cluster, &first, "a wait after the first failure", |drain| {
        left(drain) == [(name, RemainingState::Waiting, "BackOff")]
    })
    .await?;
    let message = &waits.remaining[0].message;
    ensure!(
        message.starts_with("1 of 10 migration attempts have failed ("),
        "{message}"
    );

    // Sets the status of the evacuation as before the last of ten attempts.
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
        message.starts_with("all 10 attempts to migrate the guest have failed"),
        "{message}"
    );
    until_node_condition(&cluster, &first, DRAINED, "VirtualMachinesLeft").await?;
    assert_eq!(node_of(&cluster.instances().get(name).await?)?, first);

    // Another field manager now owns a part of the evacuation request. The whole request is removed nevertheless.
    let foreign = json!({"status": {"evacuation": {"lastFailure": {"reason": "SaidByATest"}}}});
    let patch = Patch::Merge(foreign);
    cluster
        .instances()
        .patch_status(name, &PatchParams::default(), &patch)
        .await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    until(cluster.instances(), name, "the removal of its mark", |instance| {
        mark_of(instance).is_none()
    })
    .await?;
    cluster.limit_migrations("parallelMigrationsPerCluster: 2").await?;
    cluster.kubectl(&["taint", "nodes", &first, TAINT])?;
    until_on(&cluster, name, &second).await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    check_mark_alone(&cluster, name, (&second, &first)).await?;
    cluster.goes_on(name).await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn unmasking_a_feature_ends_the_back_off_of_a_guest() -> Result<()> {
    const TAINT: &str = "kubevirt.io/drain=draining:NoSchedule";
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let name = "masked-out";
    started_on_the_first(&cluster, &[(name, counting(name, "LiveMigrate"), "True")]).await?;
    let guest = cluster.instances().get(name).await?;
    let feature = cluster.labelled_feature(&guest, &second).await?;
    cluster.mask(&second, &[&feature]).await?;
    cluster.kubectl(&["taint", "nodes", &first, TAINT])?;
    let blocked = until_drain(&cluster, &first, "a guest without a target", |drain| {
        left(drain) == [(name, RemainingState::Blocked, "NoTargetAvailable")]
    })
    .await?;
    let message = &blocked.remaining[0].message;
    let named = format!("masks the CPU feature {feature} by {}", mask::means());
    ensure!(message.contains(&named), "{message}");

    // Sets the status as if the last of eight attempts had just failed: the back-off is longer than this test waits.
    let marked = until(cluster.instances(), name, "the mark", |instance| {
        instance
            .status
            .as_ref()
            .is_some_and(|status| status.evacuation.is_some())
    })
    .await?;
    let evacuation = marked.status.and_then(|status| status.evacuation).context("no mark")?;
    let failed = json!({"uid": "an-earlier-one", "at": evacuation.requested_at, "reason": "TargetRefused"});
    cluster
        .instances()
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"evacuation": {"failures": 8, "lastFailure": failed}}})),
        )
        .await?;
    let waits = until_drain(&cluster, &first, "a long wait", |drain| {
        left(drain) == [(name, RemainingState::Waiting, "BackOff")]
    })
    .await?;
    let message = &waits.remaining[0].message;
    ensure!(
        message.starts_with("8 of 10 migration attempts have failed (TargetRefused)"),
        "{message}"
    );
    until(cluster.instances(), name, "recorded circumstances", |instance| {
        let evacuation = instance.status.as_ref().and_then(|status| status.evacuation.as_ref());
        let last = evacuation.and_then(|evacuation| evacuation.last_failure.as_ref());
        last.is_some_and(|last| last.circumstances.is_some() && !last.outdated)
    })
    .await?;
    ensure!(migrations_of(&cluster, name).await?.is_empty(), "the guest has moved");

    cluster.mask(&second, &[]).await?;
    until_on(&cluster, name, &second).await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    cluster.goes_on(name).await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

/// The watches that the controller has while the API server refuses a step.
const WATCHED_RULES: [&str; 8] = [
    "admission policies",
    "admission policy bindings",
    "limit ranges",
    "mutating webhooks",
    "namespaces",
    "priority classes",
    "resource quotas",
    "validating webhooks",
];

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn refused_migration_is_reported_and_retried_until_created() -> Result<()> {
    const QUOTA: &str = "no-moves";
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let name = "refused";
    started_on_the_first(&cluster, &[(name, counting(name, "LiveMigrate"), "True")]).await?;
    cluster
        .apply(&format!(
            "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: {QUOTA}, namespace: {NAMESPACE}}}\nspec:\n  \
         hard: {{count/virtualmachineinstancemigrations.kubevirt.io: \"0\", count/configmaps: \"0\"}}\n"
        ))
        .await?;
    // The API server enforces the quota only some time after its creation.
    let probes = Api::<ConfigMap>::namespaced(cluster.client.clone(), NAMESPACE);
    until_some("the quota to be in force", || async {
        let probe: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "quota-probe"}}))?;
        match probes.create(&PostParams::default(), &probe).await {
            Err(kube::Error::Api(status)) if status.message.contains("exceeded quota") => return Ok(Some(())),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created?),
        }
        probes.delete("quota-probe", &DeleteParams::default()).await?;
        Ok(None)
    })
    .await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain=draining:NoSchedule"])?;
    let refused = until_drain(&cluster, &first, "a refused migration", |drain| {
        left(drain) == [(name, RemainingState::Blocked, "Refused")]
    })
    .await?;
    let message = &refused.remaining[0].message;
    ensure!(message.contains(&format!("exceeded quota: {QUOTA}")), "{message}");
    until_some("the rules to be watched", || async {
        let metrics = cluster.controller_metrics().await?;
        let is_watched = |rules: &&str| metrics.contains(&format!("drydock_watch_lists_total{{watch=\"{rules}\"}} "));
        Ok(WATCHED_RULES.iter().all(is_watched).then_some(()))
    })
    .await?;
    cluster.delete(&["resourcequota", QUOTA, "--namespace", NAMESPACE])?;
    until_on(&cluster, name, &second).await?;
    until_node_condition(&cluster, &first, DRAIN_IN_PROGRESS, "NothingToMove").await?;
    cluster.kubectl(&["taint", "nodes", &first, "kubevirt.io/drain-"])?;
    cluster.goes_on(name).await?;
    cluster.no_guests().await
}

/// Requests a preview of a drain on the Node, and checks its lines.
async fn check_preview(cluster: &Cluster, first: &str) -> Result<()> {
    let preview = |hypervisor: &Hypervisor| {
        let status = hypervisor.status.clone().unwrap_or_default();
        status.drain_preview.map(|preview| preview.lines)
    };
    let on_the_first = [("worker-1", first)];
    cluster.documented("deploy/docs/drain.md", "kubectl annotate node worker-1", &on_the_first)?;
    let wanted = format!(
        "{NAMESPACE}/kept would move (node {} could run the guest)",
        cluster.second()
    );
    let previewed = until(Api::all(cluster.client.clone()), first, &wanted, |hypervisor| {
        preview(hypervisor).is_some_and(|lines| lines.contains(&wanted))
    })
    .await?;
    let lines = preview(&previewed).unwrap_or_default();
    ensure!(
        lines[0].starts_with("1 virtual machines are on") && lines[0].contains("1 would move"),
        "{lines:?}"
    );
    ensure!(lines.iter().any(|line| line.contains("NoExecute")), "{lines:?}");
    let shown = cluster.documented(
        "deploy/docs/drain.md",
        "kubectl get hv worker-1 -o jsonpath='{.status.drainPreview",
        &on_the_first,
    )?;
    ensure!(shown.contains(&wanted), "{shown}");
    cluster.annotate(first, &[(DRAIN_PREVIEW, None)]).await?;
    until(Api::all(cluster.client.clone()), first, "no preview", |hypervisor| {
        preview(hypervisor).is_none()
    })
    .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn dry_run_marks_nothing_and_foreign_pdb_is_reported() -> Result<()> {
    let cluster = clean_for_drains().await?;
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
    let evict = |dry_run: &str| cluster.kubectl_with(&["create", "--raw", &path], &eviction(&pod, dry_run));
    let text = format!("{:#}", evict("\"dryRun\": [\"All\"]").err().context("no refusal")?);
    ensure!(
        text.contains(r#"Eviction triggered evacuation of VMI "default/kept""#),
        "{text}"
    );
    assert_eq!(mark_of(&cluster.instances().get("kept").await?), None);
    let other = evict("\"preconditions\": {\"uid\": \"other\"}")
        .err()
        .context("no refusal")?;
    let text = format!("{other:#}");
    ensure!(
        text.contains("the UID in the precondition (other) does not match the UID in record"),
        "{text}"
    );
    assert_eq!(mark_of(&cluster.instances().get("kept").await?), None);
    // The pod is in no cache, so the API server decides.
    let nobody = "virt-launcher-nobody";
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{nobody}/eviction");
    let result = cluster.kubectl_with(&["create", "--raw", &path], &eviction(nobody, ""));
    let text = format!("{:#}", result.err().context("no refusal")?);
    ensure!(text.contains("NotFound") || text.contains("not found"), "{text}");

    check_preview(&cluster, &first).await?;
    let untouched = cluster.instances().get("kept").await?;
    assert_eq!((mark_of(&untouched), node_of(&untouched)?), (None, first.clone()));
    ensure!(migrations_of(&cluster, "kept").await?.is_empty(), "the guest has moved");

    let theirs = format!(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: theirs, namespace: {NAMESPACE}}}\nspec:\n  \
         maxUnavailable: 1\n  selector: {{matchLabels: {{kubevirt.io: virt-launcher}}}}\n"
    );
    cluster.apply(&theirs).await?;
    cluster
        .until_vm_condition("kept", types::EVICTION_BUDGET_CONFLICT, "True")
        .await?;
    let budgets = || async {
        let api = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), NAMESPACE);
        let all = api.list(&ListParams::default()).await?.items;
        anyhow::Ok(all.into_iter().map(|budget| budget.name_any()).collect::<Vec<_>>())
    };
    until_some("the deletion of our budget", || async {
        Ok((budgets().await? == ["theirs"]).then_some(()))
    })
    .await?;
    // Now only the webhook protects the pod, and responds with its own message.
    let text = format!("{:#}", evict("\"dryRun\": [\"All\"]").err().context("no refusal")?);
    ensure!(text.contains("Eviction triggered evacuation"), "{text}");
    cluster.delete(&["pdb", "theirs", "--namespace", NAMESPACE])?;
    until(cluster.instances(), "kept", "the end of the conflict", |instance| {
        condition(instance, types::EVICTION_BUDGET_CONFLICT).0.is_empty()
    })
    .await?;
    until_some("our budget to be recreated", || async {
        Ok((budgets().await? == [pod.clone()]).then_some(()))
    })
    .await?;
    assert_eq!(node_of(&cluster.instances().get("kept").await?)?, first);
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn clusters_eviction_strategy_concerns_running_guests() -> Result<()> {
    let cluster = clean_for_drains().await?;
    cluster.apply(&bare_instance("unresponsive")).await?;
    cluster
        .until_vm_condition("unresponsive", types::LIVE_MIGRATABLE, "True")
        .await?;
    let running = cluster.instances().get("unresponsive").await?;
    assert_eq!(running.spec.eviction_strategy, None, "a default was written");
    let configured = async {
        for (strategy, wanted) in [("LiveMigrate", 1), ("None", 0)] {
            let configuration = format!(
                "apiVersion: hco.kubevirt.io/v1beta1\nkind: HyperConverged\nmetadata:\n  name: kubevirt-hyperconverged\n  \
                 namespace: drydock\nspec: {{evictionStrategy: {strategy}}}\n"
            );
            cluster.kubectl_with(&["apply"], &configuration)?;
            until_some(&format!("{wanted} budgets by {strategy}"), || async {
                let budgets = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), NAMESPACE);
                Ok((budgets.list(&ListParams::default()).await?.items.len() == wanted).then_some(()))
            })
            .await?;
        }
        anyhow::Ok(())
    };
    let configured = configured.await;
    cluster.delete(&["hyperconverged", "--all", "-n", "drydock"])?;
    configured?;
    cluster.no_guests().await
}

/// Number of concurrent evictions.
const MANY: usize = 200;
/// Number of other requests during the evictions.
const OTHERS: usize = 20;

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn many_evictions_at_once_are_refused_and_delay_no_others() -> Result<()> {
    let cluster = clean_for_drains().await?;
    started_on_the_first(&cluster, &[("wanted", counting("wanted", "LiveMigrate"), "True")]).await?;
    // The guest has no target, so evictions that the controller holds are held for the maximum time.
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
    let mut refused = 0;
    while let Some(response) = evictions.join_next().await {
        let response = response?;
        ensure!(is_refused(&response), "{response:?}");
        refused += 1;
    }
    assert_eq!(refused, MANY);
    let kept = cluster.instances().get("wanted").await?;
    assert_eq!(mark_of(&kept).as_deref(), Some(cluster.first()));
    cluster.kubectl(&["uncordon", cluster.second()])?;
    until_on(&cluster, "wanted", cluster.second()).await?;
    cluster.goes_on("wanted").await?;
    cluster.no_guests().await
}

/// Returns whether an eviction was refused with the status on which drain tools retry.
fn is_refused<T>(result: &kube::Result<T>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 429)
}

/// Returns the manifest of a pod that leaves only 64 MiB of a node's memory free, less than any guest requests.
async fn filling(cluster: &Cluster, node: &str) -> Result<String> {
    let found = Api::<Node>::all(cluster.client.clone()).get(node).await?;
    let offered = found.status.and_then(|status| status.allocatable).unwrap_or_default();
    let offered = offered.get("memory").and_then(|amount| quantity::bytes(&amount.0));
    let pods = Api::<Pod>::all(cluster.client.clone())
        .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
        .await?;
    let shares = pods.items.iter().filter_map(PodShare::of);
    let taken: u64 = shares.map(|(_, share)| share.requests.get("memory")).sum();
    let memory = offered
        .and_then(|offered| offered.checked_sub(taken + (64 << 20)))
        .with_context(|| format!("{node} has no memory to fill"))?;
    let resources = format!("    resources: {{requests: {{memory: '{memory}'}}}}\n");
    Ok(neighbor("filling", "filling", node) + &resources)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guests_without_room_elsewhere_block_or_are_shut_down() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let guests = [
        ("held", counting("held", "LiveMigrate"), "True"),
        ("yielding", counting("yielding", "LiveMigrateIfPossible"), "True"),
    ];
    started_on_the_first(&cluster, &guests).await?;
    cluster.apply(&filling(&cluster, &second).await?).await?;
    for (name, ..) in &guests {
        // The status was also false, for another reason, while the other node was cordoned.
        let has_no_room = |instance: &VirtualMachineInstance| {
            let (status, reason) = condition(instance, types::MIGRATION_TARGET_AVAILABLE);
            (status.as_str(), reason.as_str()) == ("False", "InsufficientResources")
        };
        let instance = until(cluster.instances(), name, "no room for the guest", has_no_room).await?;
        let message = target_message(&instance);
        ensure!(message.contains("of memory free of the"), "{message}");
    }
    let draining = drain_begun(&cluster, &first, &[GUESTS_ALONE, "--timeout=300s"])?;
    cluster.until_phase("yielding", Phase::Succeeded).await?;
    until_drain(&cluster, &first, "only one blocked guest to be left", |drain| {
        drain.left == 1 && left(drain) == [("held", RemainingState::Blocked, "NoTargetAvailable")]
    })
    .await?;
    let migrations = cluster.migrations().list(&ListParams::default()).await?.items;
    ensure!(migrations.is_empty(), "a migration was created without room on a node");

    cluster.delete(&[
        "pod",
        "filling",
        "--namespace",
        NAMESPACE,
        "--grace-period=0",
        "--force",
    ])?;
    // The drain continues once the other node has enough memory.
    until_on(&cluster, "held", &second).await?;
    draining.finish()?;
    cluster.goes_on("held").await?;
    cluster.reset().await?;
    cluster.no_guests().await
}

/// Returns the manifest of a pod from which the tests' guests have to stay apart, or with which they have to be spread.
fn neighbor(name: &str, app: &str, node: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: {app}}}}}\nspec:\n  \
         nodeName: {node}\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: busybox\n    \
         imagePullPolicy: IfNotPresent\n    command: [sleep, '3600']\n"
    )
}

/// Waits until the condition about a guest's migration target has this reason.
async fn until_target(cluster: &Cluster, name: &str, reason: &str) -> Result<VirtualMachineInstance> {
    until(cluster.instances(), name, reason, |instance| {
        condition(instance, types::MIGRATION_TARGET_AVAILABLE).1 == reason
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guests_that_other_pods_keep_away_block_until_those_are_gone() -> Result<()> {
    let cluster = clean_for_drains().await?;
    let (first, second) = (cluster.first().to_owned(), cluster.second().to_owned());
    let with = |name: &str, scheduling: &str| {
        counting(name, "LiveMigrate")
            .replace(
                "spec:\n  evictionStrategy",
                &format!("spec:\n{scheduling}  evictionStrategy"),
            )
            .replacen("metadata: {", &format!("metadata: {{labels: {{app: {name}}}, "), 1)
    };
    let selector =
        |app: &str| format!("labelSelector: {{matchLabels: {{app: {app}}}}}, topologyKey: kubernetes.io/hostname");
    let apart = format!(
        "  affinity:\n    podAntiAffinity:\n      requiredDuringSchedulingIgnoredDuringExecution:\n      - {{{}}}\n",
        selector("keeps-away")
    );
    let spread = format!(
        "  topologySpreadConstraints:\n  - {{{}, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor}}\n",
        selector("spread")
    );
    let guests = [
        ("apart", with("apart", &apart), "True"),
        ("spread", with("spread", &spread), "True"),
    ];
    started_on_the_first(&cluster, &guests).await?;
    for name in ["apart", "spread"] {
        until_target(&cluster, name, "TargetsFound").await?;
    }

    cluster.apply(&neighbor("away", "keeps-away", &second)).await?;
    let instance = until_target(&cluster, "apart", "PodAntiAffinityNotMet").await?;
    let message = target_message(&instance);
    ensure!(
        message.contains(&format!(
            "has the pod {NAMESPACE}/away, which conflicts by pod anti-affinity"
        )),
        "{message}"
    );
    // On the first node, the guest's own pod is the only one with this label.
    for name in ["n1", "n2"] {
        cluster.apply(&neighbor(name, "spread", &second)).await?;
    }
    let instance = until_target(&cluster, "spread", "TopologySpreadNotMet").await?;
    let message = target_message(&instance);
    ensure!(message.contains("than the maximum skew of 1 allows"), "{message}");

    // Once the first node is cordoned, it is no longer a topology domain (`nodeTaintsPolicy`), and only the second node
    // counts.
    let draining = drain_begun(&cluster, &first, &[GUESTS_ALONE, "--timeout=300s"])?;
    until_on(&cluster, "spread", &second).await?;
    until_drain(&cluster, &first, "only one blocked guest to be left", |drain| {
        drain.left == 1 && left(drain) == [("apart", RemainingState::Blocked, "NoTargetAvailable")]
    })
    .await?;
    let migrations = migrations_of(&cluster, "apart").await?;
    ensure!(migrations.is_empty(), "a migration was created without a suitable node");

    let delete = ["pod", "away", "--namespace", NAMESPACE, "--grace-period=0", "--force"];
    cluster.delete(&delete)?;
    until_on(&cluster, "apart", &second).await?;
    draining.finish()?;
    cluster.goes_on("apart").await?;
    cluster.delete(&[
        "pod",
        "n1",
        "n2",
        "--namespace",
        NAMESPACE,
        "--grace-period=0",
        "--force",
    ])?;
    cluster.reset().await?;
    cluster.no_guests().await
}

/// Returns the message that explains why no other node can run an instance.
fn target_message(instance: &VirtualMachineInstance) -> String {
    let mut conditions = instance.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.find(|condition| condition.type_ == types::MIGRATION_TARGET_AVAILABLE);
    found
        .and_then(|condition| condition.message.clone())
        .unwrap_or_default()
}
