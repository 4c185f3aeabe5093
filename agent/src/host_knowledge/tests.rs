use std::time::Duration;

use clap::Parser;
use drydock_host::{
    fake::tcg_node,
    problem::{HostProblem, ProblemReason},
};

use super::*;
use crate::args::{AgentArgs, AgentCommand};

/// Returns the state of an agent whose inspection is running. The sender ends the inspection.
fn inspecting() -> (HostKnowledge, oneshot::Sender<Result<InspectionReport, InspectorError>>) {
    let flags = ["drydock-agent", "run", "--node-name=n", "--pod-uid=p"];
    let AgentCommand::Run(args) = AgentArgs::parse_from(flags).command else {
        unreachable!("the flags are those of `run`");
    };
    let mut host = HostKnowledge::new(Arc::new(*args), Process::new(), AgentMetrics::default());
    let (sender, receiver) = oneshot::channel();
    host.running = Some(receiver);
    (host, sender)
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn report(problem: Option<HostProblem>) -> Result<InspectionReport, InspectorError> {
    Ok(InspectionReport {
        facts: tcg_node(),
        problem,
        took: Duration::from_millis(7),
    })
}

fn crashed() -> Option<HostProblem> {
    Some(HostProblem::new(ProblemReason::LibvirtdCrashed, "libvirtd ended"))
}

#[tokio::test(start_paused = true)]
async fn result_of_an_inspection_decides_facts_and_failure() {
    for (result, has_facts, reason) in [
        (report(None), true, None),
        (report(crashed()), true, Some("LibvirtdCrashed")),
        (
            Err(InspectorError::Hung(Duration::from_secs(70))),
            false,
            Some("InspectionTimedOut"),
        ),
        (
            Err(InspectorError::Ended("signal: 11".into(), "no error output".into())),
            false,
            Some("InspectionCrashed"),
        ),
    ] {
        let (mut host, sender) = inspecting();
        sender.send(result).unwrap();
        let ended = host.ended().await;
        host.conclude(ended, now());
        assert_eq!(host.facts().is_some(), has_facts, "{reason:?}");
        assert_eq!(host.failure().map(|failure| failure.reason.as_str()), reason);
        assert!(host.is_concluded(), "{reason:?}");
        assert_eq!(host.next_check(), Some(clock::Instant::now()), "{reason:?}");
        if let Some((_, record)) = host.facts() {
            assert_eq!((record.took_milliseconds, record.at.0), (7, now()), "{reason:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn problem_on_an_unsupported_architecture_is_no_failure() {
    let (mut host, _sender) = inspecting();
    let mut facts = tcg_node();
    facts.architecture = "riscv64".into();
    let problem = Some(HostProblem::new(ProblemReason::ArchitectureNotSupported, "riscv64"));
    let took = Duration::ZERO;
    host.conclude(Some(Ok(InspectionReport { facts, problem, took })), now());
    assert!(host.failure().is_none() && host.facts().is_some());
}

#[tokio::test(start_paused = true)]
async fn inspection_that_is_running_is_not_started_again() {
    let (mut host, sender) = inspecting();
    for _ in 0..3 {
        assert!(!host.check(now()));
    }
    let due = clock::Instant::now() + host.args.fingerprint_interval;
    assert_eq!(host.next_check(), Some(due));
    sender.send(report(crashed())).unwrap();
    let ended = host.ended().await;
    host.conclude(ended, now());
    // The fingerprint is now that of this machine. The first check requires an inspection, which fails, so the second
    // check waits for the retry.
    host.known.check(
        fingerprint::fingerprint(&Roots::default(), &inspector::programs(&host.args.host)),
        now(),
    );
    host.known.fail(
        InspectionFailure {
            reason: "LibvirtdCrashed".into(),
            message: String::new(),
        },
        None,
        now(),
    );
    assert!(!host.check(now()));
    let retry = host.next_check().unwrap() - clock::Instant::now();
    assert!(
        retry > Duration::ZERO && retry < host.args.fingerprint_interval,
        "{retry:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn lost_inspection_is_started_again_by_the_next_check() {
    let (mut host, sender) = inspecting();
    drop(sender);
    let ended = host.ended().await;
    assert!(ended.is_none());
    host.conclude(ended, now());
    assert!(!host.is_concluded() && host.facts().is_none());
    assert!(host.check(now()), "not inspected again");
    host.process.stop();
}
