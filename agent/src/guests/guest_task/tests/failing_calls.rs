//! Tests in which each libvirt call that decides on a start fails once with each fault. The guest is started once.

use drydock_host::fake::fake_guest::CallFault;

use super::*;

/// Serves a guest until it is reported as running, while one call fails.
async fn started_once(call: &'static str, after: usize, fault: CallFault) {
    let shown = format!("{fault:?} of {call} number {}", after + 1);
    let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
    fixture.around.libvirt.fail_call(call, after, fault);
    let mut attempts = 0;
    let mut is_open = false;
    while !is_open || fixture.around.stored["status"]["phase"] != "Running" {
        attempts += 1;
        assert!(attempts < 4, "{shown}: not started");
        let (handle, events) = fixture.around.libvirt.connect(DOMAIN).await.unwrap();
        let folder = PodFolder::new(&fixture.kubelet, POD, RUN_VOLUME).unwrap();
        let ready = Ready::default();
        let Fixture { task, around, .. } = &mut fixture;
        let serving = async {
            while !is_open || around.stored["status"]["phase"] != "Running" {
                let (path, status) = around.next().await;
                is_open |= path == GATE && status["conditions"][0]["status"] == "True";
            }
        };
        tokio::select! {
            end = task.attend(&handle, events, &ready, &folder, POD) => match end {
                Ok(AfterServing::Again) | Err(GuestTaskError::Call(_)) => {}
                Ok(AfterServing::OnChange) => panic!("{shown}: waits for a change"),
                Err(trouble) => panic!("{shown}: {trouble:?}"),
            },
            () = serving => {}
        }
    }
    let calls = fixture.around.libvirt.calls();
    let starts = calls.iter().filter(|made| **made == "create").count();
    let failed = call == "create" && fault != CallFault::LostResponse;
    assert_eq!(starts, if failed { 2 } else { 1 }, "{shown}: {calls:?}");
    assert_eq!(attempts, 2, "{shown}: the call was not made");
}

#[tokio::test]
async fn guest_is_started_once_whichever_call_fails() {
    for fault in CallFault::ALL {
        for (call, after) in [
            ("versions", 0),
            ("state", 0),
            ("state", 1),
            ("define", 0),
            ("create", 0),
            ("xml", 0),
        ] {
            started_once(call, after, fault).await;
        }
    }
}
