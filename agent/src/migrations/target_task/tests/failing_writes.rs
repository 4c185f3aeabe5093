//! Each write of a target fails once in each way: the guest is resumed once, and the state is reported.

use drydock_runtime::fake::ReceivedRequest;

use super::*;
use crate::failing_write::FailingWrite;

impl TargetFixture {
    /// Reconciles until the target has reported `state`, with one write that fails.
    async fn reconcile_until(&mut self, state: &str, failing: &mut FailingWrite) {
        for _ in 0..4 {
            let Self {
                task, handle, fixture, ..
            } = self;
            let around = &mut fixture.around;
            let result = {
                let reconciling = task.reconcile(Some(handle));
                tokio::pin!(reconciling);
                loop {
                    tokio::select! {
                        biased;
                        result = &mut reconciling => break result,
                        request = around.server.next_request() => around.respond(request, failing),
                    }
                }
            };
            let wake = task.side.next_reconcile(result);
            let target = json!(around.stored())["status"]["target"].clone();
            if target["state"] == state && failing.is_settled() {
                return;
            }
            let retried = wake.is_some_and(|wake| wake > clock::Instant::now());
            assert!(retried, "{failing}: the target waits for ever in {target}, or spins");
        }
        panic!("{failing}: {state} is not reported");
    }
}

impl Around {
    /// Responds to a report, which may be the write that fails, or to the list of pods.
    fn respond(&mut self, request: ReceivedRequest, failing: &mut FailingWrite) {
        let reported = &request.body["status"]["target"];
        let name = match reported["reason"].as_str() {
            Some("PostCopyBroken") => "PostCopyBroken",
            _ => reported["state"].as_str().unwrap_or_default(),
        }
        .to_owned();
        failing.respond(request, &name, |request| self.execute(request));
    }
}

fn migrating() -> Value {
    json!({"source": {"state": "Migrating", "fingerprint": "0a".repeat(32)}})
}

/// A target that is about to report a state.
pub(super) async fn about_to_report(state: &str) -> TargetFixture {
    let mut target = target(&json!({}), false).await;
    let libvirt = target.fixture.around.libvirt.clone();
    if state == "Refused" {
        libvirt.set_cpu_comparison(CpuComparison::Incompatible {
            message: "the CPU is incompatible with host CPU: avx512f".into(),
            features: vec!["avx512f".into()],
        });
    }
    if !matches!(state, "Running" | "Gone") {
        return target;
    }
    let (result, _) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    target.fixture.around.update(&migrating());
    target.reconcile_without_writes().await.unwrap();
    if state == "Running" {
        libvirt.guest_arrives("<domain/>");
        libvirt.guest_is_complete();
        target.fixture.around.update(&json!({"source": {"state": "Stopped"}}));
    } else {
        target.fixture.around.update(&json!({"source": {"state": "Stayed"}}));
    }
    target
}

#[tokio::test]
async fn each_failed_report_of_a_target_is_repeated() {
    for (state, calls) in [
        ("Prepared", &[][..]),
        ("Refused", &[]),
        ("Running", &["resume"]),
        ("Gone", &[]),
    ] {
        for mut failing in FailingWrite::each(&[state]) {
            let mut target = about_to_report(state).await;
            target.reconcile_until(state, &mut failing).await;
            assert_eq!(target.fixture.around.libvirt.calls(), calls, "{failing}");
            let prepared = target.calls().iter().filter(|call| **call == "prepare").count();
            assert!(prepared <= 1, "{failing}: {:?}", target.calls());
        }
    }
}
