//! Tests in which each write of a target fails once with each fault. The guest is resumed once, and the state is
//! reported.

use drydock_core::migration::{status::POST_COPY_BROKEN, target::COMPLETE_FOR};
use drydock_host::domain::ShutOffReason;
use drydock_runtime::fake::ReceivedRequest;

use super::*;
use crate::failing_write::FailingWrite;

impl TargetFixture {
    /// Reconciles with a failing write until the target has made a report.
    async fn reconcile_until(&mut self, report: &str, failing: &mut FailingWrite) {
        for _ in 0..4 {
            let Self {
                task, handle, fixture, ..
            } = self;
            let respond = |around: &mut Around, request: ReceivedRequest| {
                let reported = &request.body["status"]["target"];
                let broken = reported["reason"].as_str().filter(|reason| *reason == POST_COPY_BROKEN);
                let name = broken.or(reported["state"].as_str()).unwrap_or_default().to_owned();
                failing.respond(request, &name, |request| around.execute(request));
            };
            let result = fixture.around.serve(task.reconcile(Some(handle)), respond).await;
            let wake = task.side.next_reconcile(result);
            if fixture.around.has_reported("target", report) && failing.is_settled() {
                return;
            }
            let retried = wake.is_some_and(|wake| wake > clock::Instant::now());
            assert!(retried, "{failing}: the target waits for ever, or spins");
        }
        panic!("{failing}: {report} is not reported");
    }
}

fn migrating() -> Value {
    json!({"source": {"state": "Migrating", "fingerprint": "0a".repeat(32)}})
}

/// Returns a target that is about to report a state, or broken post-copy.
pub(super) async fn about_to_report(report: &str) -> TargetFixture {
    let mut target = target(&json!({}), false).await;
    let libvirt = target.fixture.around.libvirt.clone();
    if report == "Refused" {
        libvirt.set_cpu_comparison(CpuComparison::Incompatible {
            message: "the CPU is incompatible with host CPU: avx512f".into(),
            features: vec!["avx512f".into()],
        });
    }
    if matches!(report, "Prepared" | "Refused") {
        return target;
    }
    target.reconcile_with_writes().await;
    target.fixture.around.update(&migrating());
    target.reconcile_without_writes().await.unwrap();
    if report == "Gone" {
        target.fixture.around.update(&json!({"source": {"state": "Stayed"}}));
        return target;
    }
    libvirt.guest_arrives("<domain/>");
    if report == POST_COPY_BROKEN {
        libvirt.guest_arrives_by_post_copy();
        libvirt.post_copy_breaks();
        return target;
    }
    libvirt.guest_is_complete();
    if report == "Complete" {
        target.task.complete_since = clock::Instant::now().checked_sub(COMPLETE_FOR);
        return target;
    }
    target.fixture.around.update(&json!({"source": {"state": "Stopped"}}));
    if report == "Ended" {
        target.reconcile_with_writes().await;
        target.reconcile_with_writes().await;
        assert!(target.fixture.around.has_reported("target", "Running"));
        libvirt.guest_ends(StoppedDetail::Shutdown, ShutOffReason::Shutdown);
    }
    target
}

#[tokio::test]
async fn each_failed_report_of_a_target_is_repeated() {
    for (report, calls) in [
        ("Prepared", &[][..]),
        ("Refused", &[]),
        ("Complete", &[]),
        ("Running", &["resume"]),
        ("Ended", &["resume"]),
        ("Gone", &[]),
        (POST_COPY_BROKEN, &[]),
    ] {
        for mut failing in FailingWrite::each(&[report]) {
            let mut target = about_to_report(report).await;
            target.reconcile_until(report, &mut failing).await;
            assert_eq!(target.fixture.around.libvirt.calls(), calls, "{failing}");
            let prepared = target.calls().iter().filter(|call| **call == "prepare").count();
            assert!(prepared <= 1, "{failing}: {:?}", target.calls());
        }
    }
}
