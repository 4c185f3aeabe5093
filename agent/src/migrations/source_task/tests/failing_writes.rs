//! Tests in which each write of a source fails once with each fault. The guest migrates once, and no proof is lost.

use drydock_core::migration::status::POST_COPY_BROKEN;
use futures::{FutureExt, future::join_all};

use super::*;
use crate::failing_write::FailingWrite;

/// Name of the write that announces a pause.
const PAUSED_MODE: &str = "mode Paused";
const PROGRESS: &str = "progress";

/// Reports of a source that follow the report that it is migrating.
pub(super) const REPORTS: [&str; 7] = [
    "Released",
    "HandedOver",
    "Stopped",
    "Halted",
    "Ended",
    "Stayed",
    POST_COPY_BROKEN,
];

/// Returns the name of a write, which describes the change to the status of the source.
fn name_of(written: &Value) -> String {
    let stays = written["state"] == "Migrating" && written["startTimestamp"].is_string();
    match written["state"].as_str() {
        _ if written["reason"] == POST_COPY_BROKEN => POST_COPY_BROKEN.into(),
        Some("Migrating") if written["progress"].is_object() => PROGRESS.into(),
        Some("Migrating") if stays && written["mode"] == "Paused" => PAUSED_MODE.into(),
        state => state.unwrap_or_default().into(),
    }
}

impl SourceFixture {
    /// Reconciles once with a failing write. Returns whether another reconcile is scheduled without an event.
    async fn reconcile_failing(&mut self, failing: &mut FailingWrite) -> bool {
        let Self { task, guest, fixture } = self;
        let respond = |around: &mut Around, request: ReceivedRequest| {
            let name = name_of(&request.body["status"]["source"]);
            failing.respond(request, &name, |request| around.execute(request));
        };
        let result = fixture.around.serve(task.reconcile(Some(guest)), respond).await;
        let failed = result.is_err();
        let wake = task.side.next_reconcile(result);
        assert!(!failed || wake.is_some(), "{failing}: no retry");
        if let Some(wake) = wake {
            assert!(wake > clock::Instant::now(), "{failing}: retried at once");
        }
        wake.is_some()
    }

    /// Reconciles with a failing write until the source has made a report. `check` runs after each other reconcile.
    async fn reconcile_until(
        &mut self,
        report: &str,
        failing: &mut FailingWrite,
        check: impl Fn(&Self, &FailingWrite),
    ) {
        for _ in 0..4 {
            let retried = self.reconcile_failing(failing).await;
            if self.fixture.around.has_reported("source", report) && failing.is_settled() {
                return;
            }
            assert!(retried, "{failing}: the source waits for ever");
            check(self, failing);
        }
        panic!("{failing}: {report} is not reported");
    }
}

/// Returns a source that is about to report a state, or broken post-copy.
pub(super) async fn about_to_report(report: &str) -> SourceFixture {
    match report {
        POST_COPY_BROKEN => {
            let mut source = source(&prepared(), false).await;
            source.begin().await;
            source.reconcile_with_writes().await;
            source.fixture.around.libvirt.post_copy_breaks();
            source
        }
        "Migrating" => source(&prepared(), false).await,
        "Released" => {
            let mut source = source(&prepared(), false).await;
            source.begin().await;
            source.fixture.around.libvirt.guest_leaves();
            source.take_in().await;
            let consumed = |session: &mut SessionState| session.reply = ReplyProgress::Consumed;
            source.change_session(consumed).await;
            source
        }
        "HandedOver" => {
            let mut source = released_source().await;
            source.reconcile_without_writes().await.unwrap();
            source.change_session(|session| session.acknowledged = true).await;
            source
        }
        "Stopped" => {
            let mut source = released_source().await;
            source.task.left_since = clock::Instant::now().checked_sub(TARGET_IS_LATE_AFTER);
            source
        }
        "Halted" | "Ended" => {
            let resumed = report == "Ended";
            let between = |libvirt: &FakeLibvirt| {
                if resumed {
                    libvirt.guest_resumes();
                }
            };
            let mut source = ended_source(between).await;
            source.take_in().await;
            source
        }
        "Stayed" => {
            let mut source = source(&prepared(), false).await;
            source.begin().await;
            source.fixture.around.libvirt.migration_fails("unable to connect");
            let result = moved(&mut source.task.moving).await;
            source.task.end_call(result);
            source.reconcile_without_writes().await.unwrap();
            source
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn guest_moves_once_and_only_after_the_report_is_stored() {
    for mut failing in FailingWrite::each(&["Migrating"]) {
        for is_shown in [false, true] {
            let mut source = about_to_report("Migrating").await;
            failing = failing.renewed();
            source.reconcile_failing(&mut failing).await;
            let libvirt = source.fixture.around.libvirt.clone();
            assert!(failing.has_failed() && libvirt.migrations().is_empty(), "{failing}");
            if is_shown {
                source.fixture.around.update(&json!({}));
            }
            source.reconcile_failing(&mut failing).await;
            libvirt.migrations_begun(1).await;
            libvirt.set_job(migration_job(JobOperation::OutgoingMigration));
            source.reconcile_failing(&mut failing).await;
            assert_eq!(libvirt.migrations().len(), 1, "{failing}");
            let stored = json!(source.fixture.around.stored());
            assert_eq!(stored["status"]["source"]["state"], "Migrating", "{failing}");
        }
    }
}

/// Reconciles a source until it has made a report whose write fails once.
async fn reported(report: &str, mut failing: FailingWrite) {
    let mut source = about_to_report(report).await;
    let before = source.fixture.around.libvirt.calls();
    let proof = |source: &SourceFixture| {
        let session = source.fixture.tunnels.session("m");
        session.and_then(|session| session.state.released)
    };
    let proven = proof(&source);
    source
        .reconcile_until(report, &mut failing, |source, failing| {
            assert!(
                proven.is_none() || proof(source) == proven,
                "{failing}: the proof is forgotten"
            );
            let keeps = matches!(report, "Stayed" | "Ended" | POST_COPY_BROKEN);
            assert!(!keeps || proof(source).is_none(), "{failing}: handed over");
        })
        .await;
    let calls = source.fixture.around.libvirt.calls();
    assert_eq!(calls, before, "{failing}: libvirt was called again");
}

#[tokio::test]
async fn each_failed_report_of_a_source_is_repeated() {
    let each = REPORTS.iter().flat_map(|report| {
        FailingWrite::each(&[*report])
            .into_iter()
            .map(|failing| reported(report, failing).boxed_local())
    });
    join_all(each).await;
}

#[tokio::test]
async fn guest_is_paused_only_after_the_mode_is_stored() {
    for mut failing in FailingWrite::each(&[PAUSED_MODE]) {
        let mut source = source(&paused_after(100), false).await;
        source.begin().await;
        let libvirt = source.fixture.around.libvirt.clone();
        let suspended = || libvirt.calls().iter().filter(|call| **call == "suspend").count();
        for seconds in [10, 101] {
            libvirt.set_job(job_after(seconds));
            source.reconcile_failing(&mut failing).await;
        }
        assert!(failing.has_failed(), "{failing}");
        assert_eq!(suspended(), 0, "{failing}");
        for seconds in [102, 120, 121] {
            libvirt.set_job(job_after(seconds));
            source.reconcile_failing(&mut failing).await;
        }
        assert_eq!(suspended(), 1, "{failing}");
        assert!(!libvirt.calls().contains(&"abort job"), "{failing}");
    }
}

#[tokio::test]
async fn failed_report_of_progress_delays_nothing() {
    for mut failing in FailingWrite::each(&[PROGRESS]) {
        let mut source = source(&prepared(), false).await;
        source.begin().await;
        let libvirt = source.fixture.around.libvirt.clone();
        for iteration in 2..5 {
            libvirt.set_job(in_pass(iteration));
            assert!(
                source.reconcile_failing(&mut failing).await,
                "{failing}: not measured again"
            );
            source.task.progress.as_mut().unwrap().at -= Duration::from_secs(3600);
        }
        failing.assert_settled();
        assert_eq!(libvirt.migrations().len(), 1, "{failing}");
    }
}
