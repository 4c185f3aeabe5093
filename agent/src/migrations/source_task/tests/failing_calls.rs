//! Tests in which each libvirt call that decides on a migration fails once with each fault. No false state is reported.

use std::iter;

use drydock_host::fake::fake_guest::CallFault;
use futures::{FutureExt, future::join_all};

use super::{
    failing_writes::{REPORTS, about_to_report},
    *,
};

impl SourceFixture {
    /// Reconciles once. Returns the time of the next reconcile without an event.
    async fn reconcile_once(&mut self) -> Option<clock::Instant> {
        let Self { task, guest, fixture } = self;
        let result = fixture.around.serve(task.reconcile(Some(guest)), Around::store).await;
        task.side.next_reconcile(result)
    }

    /// Replaces a connection that has ended, as the task does.
    async fn reconnect(&mut self) {
        self.take_in().await;
        self.task.hand_over_pause.connection_ended();
        let (handle, events) = self.fixture.around.libvirt.connect(DOMAIN).await.unwrap();
        self.guest = GuestConnection { handle, events };
    }

    /// Returns the reported state and the reason.
    fn reported(&self) -> [Value; 2] {
        let source = json!(self.fixture.around.stored())["status"]["source"].clone();
        ["state", "reason"].map(|field| source[field].clone())
    }
}

/// Reconciles a source until it has made a report, while one call fails.
async fn reported_after(report: &str, call: &'static str, fault: CallFault) {
    let shown = format!("{report}: {fault:?} of {call}");
    let mut source = about_to_report(report).await;
    let before = source.reported();
    let migrations = source.fixture.around.libvirt.migrations().len();
    source.fixture.around.libvirt.fail_call(call, 0, fault);
    for _ in 0..4 {
        let wake = source.reconcile_once().await;
        if source.fixture.around.has_reported("source", report) {
            break;
        }
        assert_eq!(source.reported(), before, "{shown}");
        // The end of the connection is an event, so no reconcile needs to be due.
        let is_due = wake.is_some_and(|wake| wake > clock::Instant::now());
        assert!(is_due || fault.ends_connection(), "{shown}: waits for ever, or spins");
        if fault.ends_connection() {
            source.reconnect().await;
        }
    }
    assert!(source.fixture.around.has_reported("source", report), "{shown}");
    let calls = source.fixture.around.libvirt.calls();
    assert!(
        !calls.contains(&"destroy") && !calls.contains(&"resume"),
        "{shown}: {calls:?}"
    );
    let begun = source.fixture.around.libvirt.migrations().len() - migrations;
    assert!(begun <= usize::from(report == "Migrating"), "{shown}");
}

#[tokio::test]
async fn source_reports_only_the_truth_whichever_call_fails() {
    let each = iter::once("Migrating").chain(REPORTS).flat_map(|report| {
        let calls = ["state", "job"];
        calls
            .into_iter()
            .flat_map(move |call| CallFault::ALL.map(|fault| reported_after(report, call, fault).boxed_local()))
    });
    join_all(each).await;
}

#[tokio::test]
async fn failed_abort_of_the_job_is_repeated() {
    for fault in CallFault::ALL {
        let mut source = source(&prepared(), false).await;
        source.begin().await;
        let abort = json!({"abort": {"reason": "Deleted", "message": "it was deleted"}});
        source.fixture.around.update(&abort);
        let libvirt = source.fixture.around.libvirt.clone();
        libvirt.set_job(in_pass(2));
        libvirt.fail_call("abort job", 0, fault);
        for _ in 0..2 {
            let wake = source.reconcile_once().await;
            assert!(
                wake.is_some_and(|wake| wake > clock::Instant::now()),
                "{fault:?}: waits for ever, or spins"
            );
            if fault.ends_connection() {
                source.reconnect().await;
            }
        }
        let aborts = libvirt.calls().iter().filter(|call| **call == "abort job").count();
        assert_eq!(
            aborts,
            if fault == CallFault::LostResponse { 1 } else { 2 },
            "{fault:?}"
        );
        assert!(matches!(libvirt.state(), Some(DomainState::Running(_))), "{fault:?}");
    }
}
