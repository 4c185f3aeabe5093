//! Tests of the source's task with an in-memory libvirt, a fake API server and a fake tunnel.

use drydock_core::migration::{hand_over::Proof, source::TARGET_IS_LATE_AFTER};
use drydock_host::{
    domain::{InitialState, JobAmount, JobInfo, JobOperation, ShutOffReason},
    fake::{fake_guest::FakeLibvirt, fake_migration::migration_job},
};
use drydock_runtime::fake::ReceivedRequest;
use serde_json::{Value, json};

use super::{
    super::fixture::{Around, DOMAIN, Fixture, fixture},
    *,
};
use crate::tunnel::local::{ReplyProgress, SessionState};

mod failing_calls;
mod failing_writes;

/// Task of the source, with a connection to the libvirt in which its guest runs.
struct SourceFixture {
    task: SourceTask,
    guest: GuestConnection,
    fixture: Fixture,
}

/// Returns a source with this status, whose guest is running.
async fn source(status: &Value, read_status: bool) -> SourceFixture {
    let fixture = fixture(status, Role::Source).await;
    let task = SourceTask::new(
        fixture.shared.clone(),
        fixture.tunnels.clone(),
        fixture.receiver.clone(),
        read_status,
    );
    let (handle, events) = fixture.around.libvirt.connect(DOMAIN).await.unwrap();
    handle.define("<domain/>").await.unwrap();
    handle.create(InitialState::Running).await.unwrap();
    SourceFixture {
        task,
        guest: GuestConnection { handle, events },
        fixture,
    }
}

fn prepared() -> Value {
    json!({"target": {"state": "Prepared", "fingerprint": "0b".repeat(32), "address": "10.0.0.2:8444"}})
}

impl SourceFixture {
    /// Reconciles once, while `served` responds to its requests.
    async fn reconcile<T>(&mut self, served: impl AsyncFnOnce(&mut Around) -> T) -> (Result<(), SideError>, T) {
        let around = &mut self.fixture.around;
        let (result, served) = tokio::join!(self.task.reconcile(Some(&mut self.guest)), served(around));
        (result.map(drop), served)
    }

    /// Reconciles once. Panics if the task writes.
    async fn reconcile_without_writes(&mut self) -> Result<(), SideError> {
        let server = &mut self.fixture.around.server;
        tokio::select! {
            biased;
            result = self.task.reconcile(Some(&mut self.guest)) => result.map(drop),
            request = server.next_request() => panic!("wrote {}", request.body),
        }
    }

    /// Reconciles once, and stores the writes of the task. Returns its reports.
    async fn reconcile_with_writes(&mut self) -> Vec<Value> {
        let mut reports = Vec::new();
        let store = |around: &mut Around, request: ReceivedRequest| {
            reports.push(request.body["status"]["source"].clone());
            around.store(request);
        };
        let reconciling = self.task.reconcile(Some(&mut self.guest));
        self.fixture.around.serve(reconciling, store).await.unwrap();
        reports
    }

    /// Reconciles until the guest's migration has started.
    async fn begin(&mut self) {
        let (result, report) = self.reconcile(async |around| around.report("source").await).await;
        result.unwrap();
        assert_eq!(report["state"], "Migrating");
        self.fixture.around.libvirt.migrations_begun(1).await;
        self.fixture
            .around
            .libvirt
            .set_job(migration_job(JobOperation::OutgoingMigration));
    }

    /// Lets the task process all events so far.
    async fn take_in(&mut self) {
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(100), self.guest.events.recv()).await {
            self.task.take_in(&event);
        }
    }

    /// Changes the session of this side's tunnel, and waits until the task can read the change.
    async fn change_session(&mut self, change: impl Fn(&mut SessionState)) {
        let mut sessions = self.fixture.tunnels.sessions();
        self.fixture.around.tunnel.change(&change);
        sessions
            .wait_for(|known| {
                known.sessions.values().all(|session| {
                    let mut changed = session.state.clone();
                    change(&mut changed);
                    changed == session.state
                })
            })
            .await
            .unwrap();
    }

    fn calls(&self) -> Vec<&'static str> {
        self.fixture.around.tunnel.calls()
    }
}

#[tokio::test]
async fn guest_moves_once_the_target_is_prepared() {
    let mut source = source(&json!({}), false).await;
    source.reconcile_without_writes().await.unwrap();
    assert_eq!(source.calls(), ["prepare"], "the tunnel is prepared meanwhile");
    source.fixture.around.update(&prepared());
    source.begin().await;
    assert_eq!(source.calls(), ["prepare", "pair", "prepare"]);
    let migrations = source.fixture.around.libvirt.migrations();
    assert_eq!(migrations.len(), 1);
    assert!(
        migrations[0].destination.contains("unix"),
        "{}",
        migrations[0].destination
    );
    // The watch has not shown the report yet, and the job is running.
    source.task.monitor = None;
    let before = source.fixture.around.libvirt.migrations().len();
    let server = &mut source.fixture.around.server;
    tokio::select! {
        result = source.task.reconcile(Some(&mut source.guest)) => drop(result.unwrap()),
        // The task may report its progress.
        request = server.next_request() => assert!(request.body["status"]["source"]["progress"].is_object()),
    }
    assert_eq!(source.fixture.around.libvirt.migrations().len(), before);
}

#[tokio::test]
async fn libvirt_is_called_only_after_the_report_is_stored() {
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
    ] {
        let mut source = source(&prepared(), false).await;
        let (result, ()) = source
            .reconcile(async |around| around.write().await.refuse(code, reason))
            .await;
        assert!(matches!(result, Err(SideError::Api(_))), "{code}");
        assert!(source.fixture.around.libvirt.migrations().is_empty(), "{code}");
        source.begin().await;
        assert_eq!(source.fixture.around.libvirt.migrations().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn migration_that_an_earlier_process_began_is_not_begun_again() {
    let mut source = source(&prepared(), true).await;
    let (result, report) = source
        .reconcile(async |around| {
            let read = around.server.next_request().await;
            assert_eq!(read.method, "GET");
            let mut now = json!(around.stored());
            now["status"]["source"]["state"] = json!("Migrating");
            now["metadata"]["resourceVersion"] = json!("2");
            read.with(&now);
            around.report("source").await
        })
        .await;
    result.unwrap();
    // The migration has neither a job nor a session: the guest continues to run at the source.
    assert_eq!(
        (&report["state"], &report["reason"]),
        (&json!("Stayed"), &json!("MigrationEnded"))
    );
    assert!(source.fixture.around.libvirt.migrations().is_empty());
}

#[tokio::test]
async fn guest_is_released_only_after_the_reply_was_consumed() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source.fixture.around.libvirt.guest_leaves();
    source.take_in().await;
    source.reconcile_without_writes().await.unwrap();
    assert!(!source.calls().contains(&"release"), "{:?}", source.calls());
    source
        .change_session(|session| session.reply = ReplyProgress::Consumed)
        .await;
    let (result, report) = source.reconcile(async |around| around.report("source").await).await;
    result.unwrap();
    assert_eq!(report["state"], "Released");
}

/// Returns a source whose guest has left, and whose libvirt has consumed the last reply.
async fn released_source() -> SourceFixture {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source.fixture.around.libvirt.guest_leaves();
    source.fixture.around.libvirt.guest_migrated_away();
    source.take_in().await;
    source
        .change_session(|session| session.reply = ReplyProgress::Consumed)
        .await;
    source
}

#[tokio::test]
async fn source_reports_the_hand_over_once_acknowledged() {
    let mut source = released_source().await;
    source.reconcile_without_writes().await.unwrap();
    source.change_session(|session| session.acknowledged = true).await;
    let (result, report) = source.reconcile(async |around| around.report("source").await).await;
    result.unwrap();
    assert_eq!(report["state"], "HandedOver");
}

#[tokio::test]
async fn source_does_not_wait_for_a_late_acknowledgement() {
    let mut source = released_source().await;
    source.task.left_since = clock::Instant::now().checked_sub(TARGET_IS_LATE_AFTER);
    let (result, report) = source.reconcile(async |around| around.report("source").await).await;
    result.unwrap();
    assert_eq!(report["state"], "Stopped");
}

#[tokio::test]
async fn migrated_guest_is_released_and_reported_stopped() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source.fixture.around.libvirt.guest_leaves();
    source.fixture.around.libvirt.guest_migrated_away();
    source.take_in().await;
    source.task.left_since = clock::Instant::now().checked_sub(TARGET_IS_LATE_AFTER);
    let (result, report) = source.reconcile(async |around| around.report("source").await).await;
    result.unwrap();
    assert_eq!(report["state"], "Stopped");
    assert!(source.calls().contains(&"release"), "{:?}", source.calls());
    let released = source
        .fixture
        .tunnels
        .session("m")
        .and_then(|session| session.state.released);
    assert_eq!(released, Some(Proof::SourceStopped));
    assert!(!source.fixture.around.libvirt.calls().contains(&"destroy"));
}

/// Returns a source whose guest was paused for the hand-over, after which `between` was called and the guest ended.
///
/// The task has not read the events of `between` and of the end yet.
async fn ended_source(between: impl FnOnce(&FakeLibvirt)) -> SourceFixture {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source.fixture.around.libvirt.guest_leaves();
    source.take_in().await;
    between(&source.fixture.around.libvirt);
    source
        .fixture
        .around
        .libvirt
        .guest_ends(StoppedDetail::Failed, ShutOffReason::Failed);
    source
}

#[tokio::test]
async fn ended_guest_is_reported_once_all_events_are_read() {
    for (resumed, reported) in [(false, "Halted"), (true, "Ended")] {
        let between = |libvirt: &FakeLibvirt| {
            if resumed {
                libvirt.guest_resumes();
            }
        };
        let mut source = ended_source(between).await;
        source.reconcile_without_writes().await.unwrap();
        source.take_in().await;
        let (result, report) = source.reconcile(async |around| around.report("source").await).await;
        result.unwrap();
        assert_eq!(report["state"], reported, "resumed: {resumed}");
    }
}

#[tokio::test]
async fn lost_events_prove_nothing_unless_the_end_was_read() {
    for (read, reported) in [(true, "Halted"), (false, "Ended")] {
        let mut source = ended_source(|_| {}).await;
        if read {
            source.take_in().await;
        }
        source.task.hand_over_pause.connection_ended();
        let (result, report) = source.reconcile(async |around| around.report("source").await).await;
        result.unwrap();
        assert_eq!(report["state"], reported, "its end was read: {read}");
    }
}

#[tokio::test]
async fn guest_runs_on_after_failed_migration_with_libvirt_reason() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source
        .fixture
        .around
        .libvirt
        .migration_fails("unable to connect to the target");
    let result = moved(&mut source.task.moving).await;
    source.task.end_call(result);
    // The session is closed first, so that no data of the guest arrives later.
    source.reconcile_without_writes().await.unwrap();
    assert!(source.calls().ends_with(&["close"]), "{:?}", source.calls());
    let (result, report) = source.reconcile(async |around| around.report("source").await).await;
    result.unwrap();
    assert_eq!(
        (&report["state"], &report["reason"]),
        (&json!("Stayed"), &json!(LIBVIRT_GAVE_UP))
    );
    assert!(
        report["message"].as_str().unwrap().contains("unable to connect"),
        "{report}"
    );
    assert!(matches!(
        source.fixture.around.libvirt.state(),
        Some(DomainState::Running(_))
    ));
}

/// Returns the status of a prepared target, with limits that pause the guest after this number of seconds.
fn paused_after(seconds: u64) -> Value {
    let mut status = prepared();
    status["migrationState"] = json!({"migrationConfiguration": {
        "allowWorkloadDisruption": true, "completionTimeoutPerGiB": seconds,
    }});
    status
}

/// Returns the job of a guest that has migrated for this number of seconds and makes no progress.
fn job_after(seconds: u64) -> JobInfo {
    JobInfo {
        elapsed: Some(Duration::from_secs(seconds)),
        ..in_pass(2)
    }
}

#[tokio::test]
async fn guest_paused_by_user_is_not_paused_for_migration() {
    let mut source = source(&paused_after(1), false).await;
    source.guest.handle.suspend().await.unwrap();
    source.begin().await;
    source.fixture.around.libvirt.set_job(job_after(10));
    source.reconcile_without_writes().await.unwrap();
    assert!(
        source.fixture.around.libvirt.calls().ends_with(&["abort job"]),
        "its time is over"
    );
    let result = moved(&mut source.task.moving).await;
    source.task.end_call(result);
    source.reconcile_without_writes().await.unwrap();
    let reports = source.reconcile_with_writes().await;
    assert_eq!(
        (&reports[0]["state"], &reports[0]["mode"]),
        (&json!("Stayed"), &json!("PreCopy"))
    );
    assert_eq!(source.fixture.around.tunnel.kept_paused(), [true]);
    assert!(!source.fixture.around.libvirt.calls().contains(&"resume"));
    assert_eq!(
        source.fixture.around.libvirt.state(),
        Some(DomainState::Paused(PausedReason::User))
    );
}

#[tokio::test]
async fn only_a_running_guest_may_be_switched_to_post_copy() {
    for paused in [false, true] {
        let mut status = prepared();
        status["target"]["postCopy"] = json!(true);
        status["migrationState"] = json!({"migrationConfiguration": {"allowPostCopy": true}});
        let mut source = source(&status, false).await;
        if paused {
            source.guest.handle.suspend().await.unwrap();
        }
        source.begin().await;
        let migrations = source.fixture.around.libvirt.migrations();
        assert_eq!(migrations.len(), 1, "libvirt refuses a paused guest with post-copy");
        assert_eq!(migrations[0].post_copy, !paused);
    }
}

#[tokio::test]
async fn guest_is_paused_once_for_migration_with_doubled_timeout() {
    let mut source = source(&paused_after(100), false).await;
    source.begin().await;
    // The guest is paused at 101 s. Its timeout is then doubled, and the 150 s without progress start again.
    for seconds in [10, 101, 107, 113, 165] {
        source.fixture.around.libvirt.set_job(job_after(seconds));
        source.reconcile_with_writes().await;
    }
    assert_eq!(
        source.fixture.around.libvirt.state(),
        Some(DomainState::Paused(PausedReason::Migration))
    );
    let calls = source.fixture.around.libvirt.calls();
    let count = |name| calls.iter().filter(|call| **call == name).count();
    assert_eq!((count("suspend"), count("abort job")), (1, 0), "{calls:?}");
    assert!(!source.fixture.around.tunnel.kept_paused().contains(&true));
}

#[tokio::test]
async fn last_report_of_a_failed_migration_has_only_the_end() {
    let mut source = source(&json!({}), false).await;
    source.guest.handle.suspend().await.unwrap();
    source.reconcile_without_writes().await.unwrap();
    assert_eq!(source.fixture.around.tunnel.kept_paused(), [true]);
    source.fixture.around.update(&json!({"phase": "Failed"}));
    let reports = source.reconcile_with_writes().await;
    assert_eq!(
        (&reports[0]["state"], &reports[0]["keepPaused"]),
        (&json!("Stayed"), &Value::Null)
    );
    source.reconcile_without_writes().await.unwrap();
    assert!(source.calls().ends_with(&["close"]), "{:?}", source.calls());
}

#[tokio::test]
async fn tunnel_is_set_again_after_a_restart_of_either_process() {
    let mut source = source(&json!({}), false).await;
    source.guest.handle.suspend().await.unwrap();
    source.reconcile_without_writes().await.unwrap();
    source.reconcile_without_writes().await.unwrap();
    assert_eq!(source.fixture.around.tunnel.kept_paused(), [true]);
    // The tunnel was restarted, and has a new session.
    source.change_session(|session| session.keep_paused = false).await;
    source.reconcile_without_writes().await.unwrap();
    assert_eq!(source.fixture.around.tunnel.kept_paused(), [true, true]);
    // The agent was restarted, and the user resumes the guest.
    source.task.keep_paused = None;
    source.guest.handle.resume().await.unwrap();
    source.reconcile_without_writes().await.unwrap();
    assert_eq!(source.fixture.around.tunnel.kept_paused(), [true, true, false]);
}

/// Returns the job of a guest in this pass over its memory.
fn in_pass(iteration: u64) -> JobInfo {
    JobInfo {
        data: JobAmount {
            total: 2 << 20,
            processed: 1 << 20,
            remaining: 1 << 20,
        },
        iteration: Some(iteration),
        ..migration_job(JobOperation::OutgoingMigration)
    }
}

#[tokio::test]
async fn second_pass_has_the_usual_downtime() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    let mut found = Vec::new();
    for iteration in [1, 2] {
        source.fixture.around.libvirt.set_job(in_pass(iteration));
        source.reconcile_without_writes().await.unwrap();
        found.push(source.fixture.around.libvirt.migration_limits().0);
    }
    assert_eq!(found, [Some(100), Some(300)]);
}

#[tokio::test]
async fn agent_keeps_the_downtime_raised_by_the_previous_agent() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source.guest.handle.set_max_downtime(600).await.unwrap();
    source.fixture.around.libvirt.set_job(in_pass(2));
    source.reconcile_without_writes().await.unwrap();
    assert_eq!(source.fixture.around.libvirt.migration_limits().0, Some(600));
}

/// Returns the job of a guest of which no data has been sent for this number of seconds.
fn unsent_after(seconds: u64) -> JobInfo {
    JobInfo {
        elapsed: Some(Duration::from_secs(seconds)),
        ..migration_job(JobOperation::OutgoingMigration)
    }
}

#[tokio::test]
async fn migration_that_sends_nothing_fails_with_a_reason() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    source.fixture.around.libvirt.set_job(unsent_after(239));
    source.reconcile_without_writes().await.unwrap();
    assert!(!source.calls().contains(&"close"));
    source.fixture.around.libvirt.set_job(unsent_after(300));
    source.reconcile_without_writes().await.unwrap();
    assert!(source.calls().ends_with(&["close"]), "{:?}", source.calls());
    // The task does nothing else until libvirt notices the closed session.
    source.reconcile_without_writes().await.unwrap();
    source.fixture.around.libvirt.migration_fails("end of file");
    let result = moved(&mut source.task.moving).await;
    source.task.end_call(result);
    // In the meantime, the target has reported that no guest arrives, which aborts the migration.
    let lost = json!({"abort": {"reason": "TargetLost", "message": "lost"}});
    source.fixture.around.update(&lost);
    let reports = source.reconcile_with_writes().await;
    assert_eq!(
        (&reports[0]["state"], &reports[0]["reason"]),
        (&json!("Stayed"), &json!("NothingSent"))
    );
    assert!(
        reports[0]["message"].as_str().unwrap().contains("within 240 s"),
        "{reports:?}"
    );
    assert!(!source.fixture.around.libvirt.calls().contains(&"abort job"));
}

#[tokio::test]
async fn session_is_closed_when_an_abort_has_no_effect() {
    for (job, closed) in [(unsent_after(2), true), (job_after(300), false)] {
        let mut source = source(&prepared(), false).await;
        source.begin().await;
        let abort = json!({"abort": {"reason": "Deleted", "message": "it was deleted"}});
        source.fixture.around.update(&abort);
        source.fixture.around.libvirt.set_job(job.clone());
        source.reconcile_with_writes().await;
        assert!(source.fixture.around.libvirt.calls().ends_with(&["abort job"]));
        assert!(!source.calls().contains(&"close"));
        // libvirt still waits for its target.
        source.fixture.around.libvirt.set_job(job);
        source.reconcile_with_writes().await;
        assert_eq!(source.calls().ends_with(&["close"]), closed, "{:?}", source.calls());
    }
}

#[tokio::test]
async fn deleted_migration_aborts_the_job() {
    let mut source = source(&prepared(), false).await;
    source.begin().await;
    let abort = json!({"abort": {"reason": "Deleted", "message": "it was deleted"}});
    source.fixture.around.update(&abort);
    source.reconcile_without_writes().await.unwrap();
    assert!(
        source.fixture.around.libvirt.calls().contains(&"abort job"),
        "{:?}",
        source.fixture.around.libvirt.calls()
    );
}
