//! Faults while a guest moves, on all that has part in it and in every phase: afterwards it is on one
//! node, nothing of it is missing, the objects say so, and it can be moved again.
//!
//! ```text
//!  a guest ─▶ migration, held in a phase ─▶ fault ─▶ undone ─▶ judged ─▶ moved again ─▶ judged ─▶ the next
//! ```

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
        Case, Kind, Moment, Part, Side, every_case,
        judge::{Fate, Found, judge},
        pairwise,
        strike::{Blow, HandOverWatch, Sides, Undo, hold_agent},
    },
    guests::{Collector, NAMESPACE, instance, meanwhile, ticks},
    migrations::{node_of, phase, pod_has_ended},
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

/// The guest.
const NAME: &str = "struck";
/// Without it on a node, a migration finds none.
const HOLD: &str = "example.com/fault-test";
/// Seconds of the deadlines of all phases that have one.
const DEADLINE: u64 = 8;
/// How long a fault lasts that is not over at once: longer than any deadline.
const LASTS: Duration = Duration::from_secs(11);
/// So slow that a fault comes before the guest has moved.
const SLOW: &str = "bandwidthPerMigration: 12Mi\nprogressTimeout: 8";
/// How often a guest is moved again at most: seconds may be too few where the machine is busy.
const ATTEMPTS: usize = 3;
/// Which cases are few, unless the environment variable `DRYDOCK_FAULTS_SEED` says another number. Of
/// either test only those are tried in whose name `DRYDOCK_FAULTS_ONLY` is.
const SEED: u64 = 1;
/// So many of the few are tried unless the environment variable `DRYDOCK_FAULTS_CASES` says another number:
/// those that have most pairs come first, and each takes half a minute.
const CASES: usize = 12;

/// Carries out cases on a cluster whose deadlines are seconds, and gives it back as it was.
async fn tried(cases: &[Case], keep: impl FnMut(&Value) -> Result<()>) -> Result<()> {
    let cluster = Cluster::connect().await?;
    let done = async {
        cluster.reset().await?;
        cluster.no_guests().await?;
        set_deadlines(&cluster, &format!("={DEADLINE}"))?;
        cluster.limit_migrations(SLOW)?;
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

/// `=SECONDS`, or `-` for those of every day.
fn set_deadlines(cluster: &Cluster, to: &str) -> Result<()> {
    let [preparing, starting] = ["PREPARING", "STARTING"].map(|part| format!("DRYDOCK_MIGRATION_{part}{to}"));
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

/// Makes sure that what a case kills is not kept from starting again by what was killed before.
async fn renew(cluster: &Cluster, case: Case) -> Result<()> {
    cluster.until_whole().await?;
    if case.kind == Kind::Kill && matches!(case.part, Part::Agent | Part::Tunnel | Part::Controller) {
        cluster.renew_killed(0).await?;
    }
    Ok(())
}

/// The guest, and who hears it.
struct Guest {
    collector: Collector,
}

impl Guest {
    async fn start(cluster: &Cluster) -> Result<Self> {
        cluster.no_guests().await?;
        let collector = Collector::start(cluster).await?;
        let control = collector.ticking("50ms");
        cluster.apply(&instance(NAME, &control))?;
        collector.first_boot().await?;
        Ok(Self { collector })
    }
}

/// Where the guest is and where it can go.
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

/// The pod that was made for the migration.
async fn target_pod(cluster: &Cluster, sides: &Sides) -> Result<Pod> {
    let instance = cluster.instances().get(NAME).await?;
    let pods = cluster.launchers_of(&instance).await?;
    let on = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&sides.target);
    pods.into_iter()
        .find(|pod| on(pod) && !pod_has_ended(pod))
        .context("no target pod")
}

/// Asks for a migration, which waits for [`HOLD`] if it is to be held before it has a node.
async fn ask(cluster: &Cluster, held: bool) -> Result<String> {
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

/// What is found now.
async fn look(cluster: &Cluster, guest: &Guest, sides: &Sides, migration: &str, may_end: bool) -> Result<Found> {
    let migration = cluster.migrations().get(migration).await?;
    let instance = cluster.instances().get(NAME).await?;
    let status = instance.status.clone().unwrap_or_default();
    let mut found = Found {
        source: sides.source.clone(),
        target: sides.target.clone(),
        may_have_ended: may_end,
        migration: phase(&migration),
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

/// Waits until what is found may be, and until the guest, if there is one, has gone on from there.
async fn settled(
    cluster: &Cluster,
    guest: &Guest,
    sides: &Sides,
    migration: &str,
    may_end: bool,
) -> Result<(Found, Fate)> {
    let mut complaint = String::new();
    let mut before = None;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let found = look(cluster, guest, sides, migration, may_end).await;
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
                complaint = format!("{fate:?}, and no further sign of life");
            }
            Err(error) => complaint = error,
        }
        meanwhile(Duration::from_millis(250)).await;
    }
    let last = cluster.migrations().get_opt(migration).await.ok().flatten();
    let status = last.and_then(|migration| serde_json::to_string(&migration.status).ok());
    Err(anyhow!("{complaint}; the migration is {status:?}"))
}

/// What came of a case.
struct Outcome {
    /// The migration's end.
    migration: String,
    /// Where the guest was then.
    guest: &'static str,
    /// What became of the next migration.
    retry: &'static str,
}

/// Lets a migration go on that was held for the fault.
enum Release {
    /// It was not held.
    Nothing,
    /// The target's node gets the label that it waits for.
    Label,
    /// The agent of the source goes on.
    Agent(Undo),
}

impl Release {
    async fn carry_out(&self, cluster: &Cluster, sides: &Sides) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Label => cluster.label(&sides.target, &[(HOLD, Some("here"))]).await,
            Self::Agent(undo) => undo.carry_out(cluster).await,
        }
    }
}

/// Carries out a case with a guest that runs.
async fn trial(cluster: &Cluster, guest: &Guest, case: Case) -> Result<Outcome> {
    let mut sides = sides(cluster).await?;
    let mut watch = match case.moment {
        Moment::HandOver => Some(HandOverWatch::start(cluster, &sides.source_pod).await?),
        _ => None,
    };
    for node in &cluster.nodes {
        cluster.label(node, &[(HOLD, None)]).await?;
    }
    let mut release = Release::Nothing;
    let mut undo = Undo::Nothing;
    let struck = async {
        if case.moment == Moment::PreparingTarget {
            release = Release::Agent(hold_agent(cluster, &sides.source).await?);
        }
        let migration = ask(cluster, case.moment == Moment::Scheduling).await?;
        match case.moment {
            Moment::Scheduling => {
                cluster
                    .until_migration_waits(&migration, "TargetPodUnschedulable")
                    .await?;
                release = Release::Label;
            }
            Moment::PreparingTarget => {
                cluster
                    .until_migration(&migration, MigrationPhase::PreparingTarget)
                    .await?;
            }
            Moment::Running | Moment::HandOver => {
                cluster.until_migration(&migration, MigrationPhase::Running).await?;
            }
        }
        if case.moment != Moment::Scheduling {
            sides.target_pod = Some(target_pod(cluster, &sides).await?);
        }
        let blow = Blow::prepare(cluster, case, &sides).await?;
        undo = blow.undo();
        if let Some(watch) = &mut watch {
            watch.wait().await?;
        } else {
            let now = phase(&cluster.migrations().get(&migration).await?);
            ensure!(
                now < Some(MigrationPhase::Succeeded),
                "it was over before it was struck: {now:?}"
            );
        }
        blow.strike()?;
        // All others go on with it while the fault lasts.
        let is_held = case.part == Part::Agent && case.side == Side::Source && case.kind == Kind::Freeze;
        if !is_held {
            let _ = timeout(Duration::from_secs(2), release.carry_out(cluster, &sides)).await;
        }
        if case.kind != Kind::Kill {
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
        return Ok(Outcome {
            migration,
            guest: "ended, and told as such",
            retry: "-",
        });
    }
    cluster.until_whole().await?;
    let sides = self::sides(cluster).await?;
    moved_again(cluster, guest, &sides).await?;
    until_no_sessions(cluster).await?;
    Ok(Outcome {
        migration,
        guest: if fate == Fate::Moved { "target" } else { "source" },
        retry: "succeeded",
    })
}

/// Waits until no tunnel keeps anything of a migration: with it an old tunnel would never end.
async fn until_no_sessions(cluster: &Cluster) -> Result<()> {
    until_some("tunnels without sessions", || async {
        let mut open = false;
        for node in &cluster.nodes {
            let pod = cluster.agent_pod(node).await?.name_any();
            let metrics = cluster.tunnel_admin(&pod, "metrics")?;
            let sessions = metrics
                .lines()
                .filter(|line| line.starts_with("drydock_tunnel_sessions"));
            open |= sessions.into_iter().any(|line| !line.ends_with(" 0"));
        }
        Ok((!open).then_some(()))
    })
    .await
}

/// Moves the guest without any fault.
async fn moved_again(cluster: &Cluster, guest: &Guest, sides: &Sides) -> Result<()> {
    for attempt in 1.. {
        let again = ask(cluster, false).await?;
        let (found, fate) = settled(cluster, guest, sides, &again, false)
            .await
            .context("when moved again")?;
        if fate == Fate::Moved {
            break;
        }
        let last = cluster.migrations().get(&again).await?;
        let told = serde_json::to_string(&last.status)?;
        let too_late = found.reason.as_deref() == Some("DeadlineExceeded");
        ensure!(too_late && attempt < ATTEMPTS, "it cannot be moved again: {told}");
        println!("moved again, attempt {attempt}: {told}");
    }
    Ok(())
}

/// Carries out cases one after the other, and keeps what came of each. One that fails does not keep
/// the others from being tried.
async fn carry_out(cluster: &Cluster, cases: &[Case], mut keep: impl FnMut(&Value) -> Result<()>) -> Result<()> {
    let mut guest = None;
    let mut failed = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let begun = Instant::now();
        let tried = async {
            renew(cluster, *case).await?;
            if guest.is_none() {
                guest = Some(Guest::start(cluster).await?);
            }
            trial(cluster, guest.as_ref().context("no guest")?, *case).await
        }
        .await;
        let seconds = begun.elapsed().as_secs();
        let name = case.to_string();
        let told = match &tried {
            Ok(Outcome {
                migration,
                guest,
                retry,
            }) => {
                json!({"case": name, "passed": true, "migration": migration, "guest": guest, "retry": retry, "seconds": seconds})
            }
            Err(error) => json!({"case": name, "passed": false, "error": format!("{error:#}"), "seconds": seconds}),
        };
        println!("{}/{} {told}", number + 1, cases.len());
        keep(&told)?;
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
async fn whatever_fails_while_it_moves_a_guest_is_on_one_node_and_can_be_moved_again() -> Result<()> {
    let seed = setting("DRYDOCK_FAULTS_SEED").map_or(Ok(SEED), |text| text.parse())?;
    let only = setting("DRYDOCK_FAULTS_ONLY").unwrap_or_default();
    let most = setting("DRYDOCK_FAULTS_CASES").map_or(Ok(CASES), |text| text.parse())?;
    let mut cases = pairwise(seed);
    println!("seed {seed}: {most} of {} cases", cases.len());
    cases.truncate(most);
    cases.retain(|case| case.to_string().contains(&only));
    tried(&cases, |_| Ok(())).await
}

/// The cases whose last line in the results of earlier runs says that they passed.
fn passed(results: &str) -> Vec<String> {
    let mut passed = Vec::new();
    for line in results.lines() {
        let Ok(told) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let case = told["case"].as_str().unwrap_or_default().to_owned();
        passed.retain(|other| *other != case);
        if told["passed"] == true {
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
    // What there is, for whoever makes a table of it.
    let names: Vec<String> = every_case().iter().map(Case::to_string).collect();
    writeln!(results, "{}", json!({ "cases": names }))?;
    // Those first that are the most different, in case there is no time for all.
    let mut cases = pairwise(SEED);
    cases.extend(every_case());
    let mut seen = BTreeSet::new();
    cases.retain(|case| seen.insert(*case));
    cases.retain(|case| !before.contains(&case.to_string()) && case.to_string().contains(&only));
    println!("{} passed before; {} cases", before.len(), cases.len());
    tried(&cases, |told| Ok(writeln!(results, "{told}")?)).await
}

#[test]
fn what_has_passed_is_not_tried_again() {
    let results = "{\"cases\": [\"a\", \"b\"]}\n{\"case\": \"a\", \"passed\": true}\n{\"case\": \"b\", \"passed\": true}\n\
                   {\"case\": \"b\", \"passed\": false}\n{\"case\": \"c\", \"passed\": false}\n{\"case\": \"c\", \"passed\": true}\n{\"case\": \"d\", \"pa";
    assert_eq!(passed(results), ["a", "c"]);
}
