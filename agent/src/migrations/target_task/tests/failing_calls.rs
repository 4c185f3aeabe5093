//! Each call to libvirt that decides on an arrival fails once in each way: the guest is resumed once.

use drydock_host::fake::fake_guest::CallFault;

use super::{failing_writes::about_to_report, *};

impl TargetFixture {
    /// Reconciles until the target has reported `state`, and connects again when the connection has ended.
    async fn reconcile_through(&mut self, state: &str, shown: &str, fault: CallFault) {
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
                        _ = around.report("target") => {}
                    }
                }
            };
            let wake = task.side.next_reconcile(result);
            if json!(around.stored())["status"]["target"]["state"] == state {
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
        panic!("{shown}: {state} is not reported");
    }
}

#[tokio::test]
async fn target_reports_only_the_truth_whichever_call_fails() {
    for fault in CallFault::ALL {
        for (state, call) in [
            ("Prepared", "state"),
            ("Prepared", "compare CPU"),
            ("Running", "state"),
            ("Running", "resume"),
            ("Gone", "state"),
        ] {
            let shown = format!("{state}: {fault:?} of {call}");
            let mut target = about_to_report(state).await;
            let libvirt = target.fixture.around.libvirt.clone();
            libvirt.fail_call(call, 0, fault);
            // A CPU that libvirt does not compare is not known to fit.
            let is_refusal = call == "compare CPU" && fault == CallFault::Refused;
            let expected = if is_refusal { "Refused" } else { state };
            target.reconcile_through(expected, &shown, fault).await;
            let resumed = libvirt.calls().iter().filter(|call| **call == "resume").count();
            let repeated = call == "resume" && fault != CallFault::LostResponse;
            assert_eq!(
                resumed,
                usize::from(state == "Running") + usize::from(repeated),
                "{shown}"
            );
        }
    }
}
