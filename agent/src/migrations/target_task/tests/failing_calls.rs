//! Tests in which each libvirt call that decides on an arrival fails once with each fault. The guest is resumed once.

use drydock_core::migration::status::POST_COPY_BROKEN;
use drydock_host::fake::fake_guest::CallFault;

use super::{failing_writes::about_to_report, *};

impl TargetFixture {
    /// Reconciles until the target has made a report. Connects again if the fault ends the connection.
    async fn reconcile_through(&mut self, report: &str, shown: &str, fault: CallFault) {
        for _ in 0..4 {
            let result = self.reconcile_once().await;
            let wake = self.task.side.next_reconcile(result);
            if self.fixture.around.has_reported("target", report) {
                return;
            }
            assert!(
                wake.is_some_and(|wake| wake > clock::Instant::now()),
                "{shown}: waits for ever, or spins"
            );
            if fault.ends_connection() {
                (self.handle, self._events) = self.fixture.around.libvirt.connect(DOMAIN).await.unwrap();
            }
        }
        panic!("{shown}: {report} is not reported");
    }
}

#[tokio::test]
async fn target_reports_only_the_truth_whichever_call_fails() {
    for fault in CallFault::ALL {
        for (report, call) in [
            ("Prepared", "state"),
            ("Prepared", "compare CPU"),
            ("Complete", "state"),
            ("Running", "state"),
            ("Running", "resume"),
            ("Ended", "state"),
            ("Gone", "state"),
            (POST_COPY_BROKEN, "state"),
        ] {
            let shown = format!("{report}: {fault:?} of {call}");
            let mut target = about_to_report(report).await;
            let libvirt = target.fixture.around.libvirt.clone();
            libvirt.fail_call(call, 0, fault);
            // A guest whose CPU libvirt does not compare is refused, because its CPU is not known to fit.
            let is_refusal = call == "compare CPU" && fault == CallFault::Refused;
            let expected = if is_refusal { "Refused" } else { report };
            target.reconcile_through(expected, &shown, fault).await;
            let resumed = libvirt.calls().iter().filter(|call| **call == "resume").count();
            let repeated = call == "resume" && fault != CallFault::LostResponse;
            assert_eq!(
                resumed,
                usize::from(matches!(report, "Running" | "Ended")) + usize::from(repeated),
                "{shown}"
            );
        }
    }
}
