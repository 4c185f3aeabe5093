//! Faults during a migration, of every component involved and in every phase.
//!
//! Afterwards the guest is on one node, none of its data is missing, the objects are correct, and the guest can be
//! migrated again.

use std::{collections::BTreeSet, fs::OpenOptions, io::Write, time::Duration, time::Instant};

use anyhow::{Context, Result, anyhow, ensure};
use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec, migration::MigrationPhase,
    names::conditions as types,
};
use drydock_core::migration::deadlines::UNSCHEDULABLE_SECONDS;
use drydock_tests::{
    Cluster,
    cluster::setting,
    faults::{
        Case, Component, FaultKind, Moment, Side, every_case,
        judge::{Fate, FoundState, judge},
        pairwise,
        strike::{Blow, HandOverWatch, Sides, Undo, hold_agent},
    },
    guests::{Collector, NAMESPACE, instance, meanwhile, ticks},
    migrations::{node_of, pod_has_ended},
    own_parts::CONTROLLERS,
    watching::{PATIENCE, until_some},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ObjectMeta, PostParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Name of the guest.
const NAME: &str = "struck";
/// Label that a migration selects to be held: the migration finds no target until a node has the label.
const HOLD: &str = "example.com/fault-test";
/// Deadline of all phases that have one, in seconds.
const DEADLINE: u64 = 8;
/// Duration of a fault that is not instantaneous: longer than any deadline.
const LASTS: Duration = Duration::from_secs(11);
/// Limits that make a migration slow enough for a fault to occur before it is complete.
const SLOW: &str = "bandwidthPerMigration: 12Mi\nprogressTimeout: 8";
/// Maximum number of migrations after a fault, since a deadline of seconds may be too short on a busy machine.
const ATTEMPTS: usize = 3;
/// Seed that selects the small set of cases; overridden by the environment variable `DRYDOCK_FAULTS_SEED`. Both tests
/// run only cases whose name contains `DRYDOCK_FAULTS_ONLY`.
const SEED: u64 = 1;
/// Number of cases of the small set to run; overridden by the environment variable `DRYDOCK_FAULTS_CASES`.
///
/// The cases that cover the most pairs come first, and each case takes half a minute.
const CASES: usize = 9;

/// Runs cases on a cluster with deadlines of seconds, and restores the cluster.
async fn tried(cases: &[Case], keep: impl FnMut(&Value) -> Result<()>) -> Result<()> {
    let cluster = Cluster::connect().await?;
    let done = async {
        cluster.reset().await?;
        cluster.no_guests().await?;
        set_deadlines(&cluster, &format!("={DEADLINE}s"))?;
        cluster.limit_migrations(SLOW).await?;
        carry_out(&cluster, cases, keep).await
    }
    .await;
    set_deadlines(&cluster, "-")?;
    for node in &cluster.nodes {
        cluster.label(node, &[(HOLD, None)]).await?;
    }
    cluster.reset().await?;
    cluster.no_guests().await?;
    done
}

/// Sets the deadlines: `to` is `=DURATION`, or `-` for the defaults.
fn set_deadlines(cluster: &Cluster, to: &str) -> Result<()> {
    let [preparing, starting] = ["PREPARE", "START"].map(|part| format!("DRYDOCK_MIGRATION_{part}_TIMEOUT{to}"));
    cluster.kubectl(&[
        "-n",
        "drydock",
        "set",
        "env",
        "deployment/drydock-controller",
        &preparing,
        &starting,
    ])?;
    cluster.rolled_out(CONTROLLERS)
}

/// Ensures that the restart back-off from earlier kills does not delay the restart of the process that the case kills.
async fn renew(cluster: &Cluster, case: Case) -> Result<()> {
    cluster.until_whole().await?;
    if case.kind == FaultKind::Kill && matches!(case.part, Component::Agent | Component::Tunnel | Component::Controller)
    {
        cluster.renew_killed(0).await?;
    }
    Ok(())
}

/// The guest, and the collector of its datagrams.
struct CountingGuest {
    collector: Collector,
}

impl CountingGuest {
    async fn start(cluster: &Cluster) -> Result<Self> {
        cluster.no_guests().await?;
        let collector = Collector::start(cluster).await?;
        let control = collector.ticking("50ms");
        cluster.apply(&instance(NAME, &control)).await?;
        collector.first_boot().await?;
        Ok(Self { collector })
    }
}

/// Returns the guest's current node and its target node.
async fn sides(cluster: &Cluster) -> Result<Sides> {
    let instance = cluster.until_vm_condition(NAME, types::LIVE_MIGRATABLE, "True").await?;
    let source = node_of(&instance)?;
    let target = cluster
        .nodes
        .iter()
        .find(|node| **node != source)
        .context("one node")?
        .clone();
    let source_pod = cluster.until_one_pod(NAME).await?;
    Ok(Sides {
        source,
        target,
        source_pod,
        target_pod: None,
    })
}

/// Returns the pod that was created for the migration.
async fn target_pod(cluster: &Cluster, sides: &Sides) -> Result<Pod> {
    let instance = cluster.instances().get(NAME).await?;
    let pods = cluster.launchers_of(&instance).await?;
    let on = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&sides.target);
    pods.into_iter()
        .find(|pod| on(pod) && !pod_has_ended(pod))
        .context("no target pod")
}

/// Creates a migration. If `held`, the migration selects [`HOLD`], and so waits before it has a node.
async fn create_migration(cluster: &Cluster, held: bool) -> Result<String> {
    let selector = held.then(|| (HOLD.to_owned(), "here".to_owned()));
    let migration = VirtualMachineInstanceMigration {
        metadata: ObjectMeta {
            generate_name: Some(format!("{NAME}-")),
            annotations: Some([(UNSCHEDULABLE_SECONDS.to_owned(), DEADLINE.to_string())].into()),
            ..ObjectMeta::default()
        },
        spec: VirtualMachineInstanceMigrationSpec {
            vmi_name: NAME.to_owned(),
            added_node_selector: selector.into_iter().collect(),
            priority: None,
        },
        status: None,
    };
    Ok(cluster
        .migrations()
        .create(&PostParams::default(), &migration)
        .await?
        .name_any())
}

/// Returns the observed state.
async fn collect(
    cluster: &Cluster,
    guest: &CountingGuest,
    sides: &Sides,
    migration: &str,
    may_end: bool,
) -> Result<FoundState> {
    let migration = cluster.migrations().get(migration).await?;
    let instance = cluster.instances().get(NAME).await?;
    let status = instance.status.clone().unwrap_or_default();
    let mut found = FoundState {
        source: sides.source.clone(),
        target: sides.target.clone(),
        may_have_ended: may_end,
        migration: migration.phase(),
        reason: migration.status.clone().and_then(|status| status.reason),
        state: status
            .migration_state
            .filter(|state| state.migration_uid == migration.uid())
            .map(|state| (state.completed, state.failed)),
        phase: status.phase,
        node: status.node_name,
        running: Default::default(),
        pods: Vec::new(),
        printed: ticks(&cluster.consoles(NAME).await?),
        sent: guest.collector.in_order().await,
    };
    for node in &cluster.nodes {
        found
            .running
            .insert(node.clone(), cluster.guests_on(node, NAMESPACE, NAME)?);
    }
    for pod in cluster.launchers_of(&instance).await? {
        if !pod_has_ended(&pod) {
            let node = pod.spec.and_then(|spec| spec.node_name);
            found.pods.push(node.unwrap_or_default());
        }
    }
    Ok(found)
}

/// Waits until the state is valid and the guest, if it still exists, has sent further ticks.
async fn settled(
    cluster: &Cluster,
    guest: &CountingGuest,
    sides: &Sides,
    migration: &str,
    may_end: bool,
) -> Result<(FoundState, Fate)> {
    let mut complaint = String::new();
    let mut before = None;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let found = collect(cluster, guest, sides, migration, may_end).await;
        let verdict = found.map_err(|error| format!("{error:#}")).and_then(|found| {
            let fate = judge(&found)?;
            Ok((found, fate))
        });
        match verdict {
            Ok((found, Fate::Ended)) => return Ok((found, Fate::Ended)),
            Ok((found, fate)) => {
                let count = (found.printed.len(), found.sent.len());
                let (printed, sent) = *before.get_or_insert(count);
                if count.0 > printed && count.1 > sent {
                    return Ok((found, fate));
                }
                complaint = format!("{fate:?}, but the guest sent no further ticks");
            }
            Err(error) => complaint = error,
        }
        meanwhile(Duration::from_millis(250)).await;
    }
    let last = cluster.migrations().get_opt(migration).await.ok().flatten();
    let status = last.and_then(|migration| serde_json::to_string(&migration.status).ok());
    Err(anyhow!("{complaint}; the migration is {status:?}"))
}

/// The result of a case.
struct CaseOutcome {
    /// The final phase and reason of the migration.
    migration: String,
    /// The guest's location afterwards.
    guest: &'static str,
    /// The result of the next migration.
    retry: &'static str,
}

/// The action that releases a migration that was held for the fault.
enum HeldRelease {
    /// Nothing to do: the migration was not held.
    Nothing,
    /// Set the label that the migration selects on the target node.
    Label,
    /// Continue the agent of the source.
    Agent(Undo),
}

impl HeldRelease {
    async fn carry_out(&self, cluster: &Cluster, sides: &Sides) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Label => cluster.label(&sides.target, &[(HOLD, Some("here"))]).await,
            Self::Agent(undo) => undo.carry_out(cluster).await,
        }
    }
}

/// Waits until a migration is at this moment, or, for the hand-over, just before it.
async fn until_moment(cluster: &Cluster, moment: Moment, migration: &str) -> Result<()> {
    match moment {
        Moment::Scheduling => {
            cluster
                .until_migration_waits(migration, "TargetPodUnschedulable")
                .await?;
        }
        Moment::PreparingTarget => {
            cluster
                .until_migration(migration, MigrationPhase::PreparingTarget)
                .await?;
        }
        Moment::Running | Moment::HandOver => {
            cluster.until_migration(migration, MigrationPhase::Running).await?;
        }
    }
    Ok(())
}

/// Runs a case with a running guest.
async fn trial(cluster: &Cluster, guest: &CountingGuest, case: Case) -> Result<CaseOutcome> {
    let mut sides = sides(cluster).await?;
    let mut watch = match case.moment {
        Moment::HandOver => Some(HandOverWatch::start(cluster, &sides.source_pod).await?),
        _ => None,
    };
    for node in &cluster.nodes {
        cluster.label(node, &[(HOLD, None)]).await?;
    }
    let mut release = HeldRelease::Nothing;
    let mut undo = Undo::Nothing;
    let struck = async {
        if case.moment == Moment::PreparingTarget {
            release = HeldRelease::Agent(hold_agent(cluster, &sides.source).await?);
        }
        let migration = create_migration(cluster, case.moment == Moment::Scheduling).await?;
        until_moment(cluster, case.moment, &migration).await?;
        if case.moment == Moment::Scheduling {
            release = HeldRelease::Label;
        } else {
            sides.target_pod = Some(target_pod(cluster, &sides).await?);
        }
        let blow = Blow::prepare(cluster, case, &sides).await?;
        undo = blow.undo();
        if let Some(watch) = &mut watch {
            watch.wait().await?;
        } else {
            let now = cluster.migrations().get(&migration).await?.phase();
            ensure!(
                now < Some(MigrationPhase::Succeeded),
                "the migration ended before the fault: {now:?}"
            );
        }
        blow.strike()?;
        // In all other cases, the migration is released while the fault lasts.
        let is_held = case.part == Component::Agent && case.side == Side::Source && case.kind == FaultKind::Freeze;
        if !is_held {
            let _ = timeout(Duration::from_secs(2), release.carry_out(cluster, &sides)).await;
        }
        if case.kind != FaultKind::Kill {
            meanwhile(LASTS).await;
        }
        anyhow::Ok(migration)
    }
    .await;
    let undone = undo.carry_out(cluster).await;
    release.carry_out(cluster, &sides).await?;
    undone?;
    let migration = struck?;
    let judged = settled(cluster, guest, &sides, &migration, case.may_end_the_guest()).await;
    let (found, fate) = judged?;
    let ended = found.migration.map(MigrationPhase::as_str).unwrap_or_default();
    let migration = format!("{ended} {}", found.reason.unwrap_or_default());
    let migration = migration.trim().to_owned();
    if fate == Fate::Ended {
        return Ok(CaseOutcome {
            migration,
            guest: "ended, and reported as such",
            retry: "-",
        });
    }
    cluster.until_whole().await?;
    let sides = self::sides(cluster).await?;
    moved_again(cluster, guest, &sides).await?;
    until_no_sessions(cluster).await?;
    Ok(CaseOutcome {
        migration,
        guest: if fate == Fate::Moved { "target" } else { "source" },
        retry: "succeeded",
    })
}

/// Waits until no tunnel has a session. A tunnel with a session would not end when it is replaced.
async fn until_no_sessions(cluster: &Cluster) -> Result<()> {
    until_some("tunnels without sessions", || async {
        let mut open = false;
        for node in &cluster.nodes {
            let pod = cluster.agent_pod(node).await?.name_any();
            let metrics = cluster.tunnel_admin(&pod, "metrics").await?;
            let sessions = metrics
                .lines()
                .filter(|line| line.starts_with("drydock_tunnel_sessions"));
            open |= sessions.into_iter().any(|line| !line.ends_with(" 0"));
        }
        Ok((!open).then_some(()))
    })
    .await
}

/// Migrates the guest without a fault.
async fn moved_again(cluster: &Cluster, guest: &CountingGuest, sides: &Sides) -> Result<()> {
    for attempt in 1.. {
        let again = create_migration(cluster, false).await?;
        let (found, fate) = settled(cluster, guest, sides, &again, false)
            .await
            .context("during the second migration")?;
        if fate == Fate::Moved {
            break;
        }
        let last = cluster.migrations().get(&again).await?;
        let status = serde_json::to_string(&last.status)?;
        let too_late = found.reason.as_deref() == Some("DeadlineExceeded");
        ensure!(too_late && attempt < ATTEMPTS, "migrating again failed: {status}");
        println!("second migration, attempt {attempt}: {status}");
    }
    Ok(())
}

/// Runs cases one after the other, and passes each result to `keep`. A failed case does not prevent the others.
async fn carry_out(cluster: &Cluster, cases: &[Case], mut keep: impl FnMut(&Value) -> Result<()>) -> Result<()> {
    let mut guest = None;
    let mut failed = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let begun = Instant::now();
        let tried = async {
            renew(cluster, *case).await?;
            if guest.is_none() {
                guest = Some(CountingGuest::start(cluster).await?);
            }
            trial(cluster, guest.as_ref().context("no guest")?, *case).await
        }
        .await;
        let seconds = begun.elapsed().as_secs();
        let name = case.to_string();
        let result = match &tried {
            Ok(CaseOutcome {
                migration,
                guest,
                retry,
            }) => {
                json!({"case": name, "passed": true, "migration": migration, "guest": guest, "retry": retry, "seconds": seconds})
            }
            Err(error) => json!({"case": name, "passed": false, "error": format!("{error:#}"), "seconds": seconds}),
        };
        println!("{}/{} {result}", number + 1, cases.len());
        keep(&result)?;
        let lives = tried.as_ref().is_ok_and(|outcome| outcome.retry == "succeeded");
        if !lives {
            guest = None;
        }
        if let Err(error) = tried {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {}:\n{}",
        failed.len(),
        cases.len(),
        failed.join("\n")
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_runs_once_and_can_move_again_after_any_fault() -> Result<()> {
    let seed = setting("DRYDOCK_FAULTS_SEED").map_or(Ok(SEED), |text| text.parse())?;
    let only = setting("DRYDOCK_FAULTS_ONLY").unwrap_or_default();
    let most = setting("DRYDOCK_FAULTS_CASES").map_or(Ok(CASES), |text| text.parse())?;
    let mut cases = pairwise(seed);
    println!("seed {seed}: {most} of {} cases", cases.len());
    cases.truncate(most);
    cases.retain(|case| case.to_string().contains(&only));
    tried(&cases, |_| Ok(())).await
}

/// Returns the cases that passed according to their last line in the results of earlier runs.
fn passed(results: &str) -> Vec<String> {
    let mut passed = Vec::new();
    for line in results.lines() {
        let Ok(result) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let case = result["case"].as_str().unwrap_or_default().to_owned();
        passed.retain(|other| *other != case);
        if result["passed"] == true {
            passed.push(case);
        }
    }
    passed
}

#[tokio::test]
#[ignore = "takes an hour: hack/test --all-faults"]
async fn the_whole_matrix_of_faults() -> Result<()> {
    let file = setting("DRYDOCK_FAULTS_RESULTS").context("run by hack/test --all-faults")?;
    let only = setting("DRYDOCK_FAULTS_ONLY").unwrap_or_default();
    let before = passed(&std::fs::read_to_string(&file).unwrap_or_default());
    let mut results = OpenOptions::new().create(true).append(true).open(&file)?;
    // The list of all cases, for tools that build a table of the results.
    let names: Vec<String> = every_case().iter().map(Case::to_string).collect();
    writeln!(results, "{}", json!({ "cases": names }))?;
    // The most diverse cases come first, in case the time does not suffice for all.
    let mut cases = pairwise(SEED);
    cases.extend(every_case());
    let mut seen = BTreeSet::new();
    cases.retain(|case| seen.insert(*case));
    cases.retain(|case| !before.contains(&case.to_string()) && case.to_string().contains(&only));
    println!("{} passed before; {} cases", before.len(), cases.len());
    tried(&cases, |result| Ok(writeln!(results, "{result}")?)).await
}

#[test]
fn passed_cases_are_not_tried_again() {
    let results = "{\"cases\": [\"a\", \"b\"]}\n{\"case\": \"a\", \"passed\": true}\n{\"case\": \"b\", \"passed\": true}\n\
                   {\"case\": \"b\", \"passed\": false}\n{\"case\": \"c\", \"passed\": false}\n{\"case\": \"c\", \"passed\": true}\n{\"case\": \"d\", \"pa";
    assert_eq!(passed(results), ["a", "c"]);
}
