//! Tests in which each write of a guest's task fails once with each fault.
//!
//! The guest is started once, and its state and end are reported.

use futures::future::join_all;

use super::*;
use crate::failing_write::FailingWrite;

const STATUS_WRITE: &str = "status";
const GATE_OPENED: &str = "opened gate";
const GATE_CLOSED: &str = "closed gate";

impl Around {
    /// Responds to the next request, which may be the failing write. Returns the name of the write if it succeeded.
    ///
    /// As in the API server, a report that is based on an earlier version is a conflict. The watch shows the VMI
    /// afterwards.
    async fn respond(&mut self, failing: &mut FailingWrite) -> Option<&'static str> {
        let request = self.server.next_request().await;
        if request.method == Method::GET {
            match request.path().ends_with("/pods") {
                true => list_no_pods(request),
                false => self.list(request),
            }
            return None;
        }
        if request.path() == STATUS && self.is_outdated(&request) {
            request.refuse(409, "Conflict");
            let stored = Arc::new(serde_json::from_value(self.stored.clone()).unwrap());
            self.seen.send_modify(|seen| seen.instance = stored);
            return None;
        }
        let write = match request.path() {
            GATE if request.body["status"]["conditions"][0]["status"] == "True" => GATE_OPENED,
            GATE => GATE_CLOSED,
            _ => STATUS_WRITE,
        };
        failing
            .respond(request, write, |request| self.execute(request))
            .then_some(write)
    }

    fn phase(&self) -> &Value {
        &self.stored["status"]["phase"]
    }
}

/// Serves a guest that starts and ends until both are reported, while one write fails.
async fn started_and_ended(mut failing: FailingWrite) {
    let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
    let end = fixture.attend(async |around| {
        let mut gate = None;
        while gate != Some(GATE_OPENED) || around.phase() != "Running" {
            gate = around
                .respond(&mut failing)
                .await
                .filter(|write| *write != STATUS_WRITE)
                .or(gate);
            let calls = around.libvirt.calls();
            assert!(STARTED.starts_with(&calls), "{failing}: {calls:?}");
        }
        around
            .libvirt
            .guest_ends(StoppedDetail::Crashed, ShutOffReason::Crashed);
        while gate != Some(GATE_CLOSED) || !failing.has_failed() {
            gate = around.respond(&mut failing).await.or(gate);
        }
        assert_ne!(around.phase(), "Failed", "{failing}: the end of the pod decides");
    });
    assert!(end.await.is_none(), "{failing}: the task has given up");
    assert_eq!(fixture.around.libvirt.calls(), STARTED, "{failing}");
    failing.assert_settled();
}

#[tokio::test]
async fn failed_write_of_a_guest_is_repeated_and_no_start() {
    let each = FailingWrite::each(&[GATE_OPENED, STATUS_WRITE, GATE_CLOSED]);
    join_all(each.into_iter().map(started_and_ended)).await;
}

/// Runs the task until `is_stored`, while its report fails once.
async fn reported(mut fixture: Fixture, mut failing: FailingWrite, is_stored: impl Fn(&Value) -> bool) {
    let receiver = fixture.around.seen.subscribe();
    let other = GuestTask::new(fixture.task.shared.clone(), receiver, mpsc::channel(1).1);
    let task = std::mem::replace(&mut fixture.task, other);
    let around = &mut fixture.around;
    let api_server = async {
        while !is_stored(&around.stored) || !failing.has_failed() {
            around.respond(&mut failing).await;
        }
    };
    tokio::select! {
        () = task.run() => panic!("{failing}: the task has ended"),
        () = api_server => {}
    }
    assert_eq!(fixture.around.libvirt.calls(), [""; 0], "{failing}");
    failing.assert_settled();
}

/// Responds to a list request with no pods, because the pod of the VMI no longer exists.
fn list_no_pods(request: ReceivedRequest) {
    request.with(&json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [],
    }));
}

#[tokio::test(start_paused = true)]
async fn failed_report_of_an_end_is_repeated_and_not_lost() {
    let ended = EndedGuest {
        outcome: Some(GuestOutcome::Crashed),
        message: "the guest crashed".into(),
        evicted: false,
        by_kubelet: false,
    };
    for failing in FailingWrite::each(&[STATUS_WRITE]) {
        let fixture = fixture(&running(), FakeLibvirt::default());
        fs::create_dir(fixture.kubelet.join("pods")).unwrap();
        let ending = ended.clone();
        fixture.around.seen.send_modify(|seen| {
            seen.pod = None;
            seen.ending = Some(ending);
        });
        let is_stored = |stored: &Value| {
            let drydock = &stored["status"]["drydock"];
            drydock["endedPods"] == json!([POD]) && drydock["ending"]["outcome"] == "Crashed"
        };
        reported(fixture, failing, is_stored).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_report_of_an_end_with_the_node_is_repeated() {
    for failing in FailingWrite::each(&[STATUS_WRITE]) {
        let fixture = fixture(&scheduled(), FakeLibvirt::default());
        fs::create_dir(fixture.kubelet.join("pods")).unwrap();
        // The launcher was never ready, so no guest was started.
        let now = clock::Instant::now();
        fixture.around.seen.send_modify(|seen| seen.node_deleted = Some(now));
        reported(fixture, failing, |stored| {
            stored["status"]["drydock"]["endedPods"] == json!([POD])
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_report_of_a_failed_start_is_repeated() {
    for failing in FailingWrite::each(&[STATUS_WRITE]) {
        let fixture = fixture(&scheduled(), FakeLibvirt::default());
        let run = fixture
            .kubelet
            .join(format!("pods/{POD}/volumes/kubernetes.io~empty-dir/{RUN_VOLUME}"));
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join(READY_FILE), "garbled").unwrap();
        reported(fixture, failing, |stored| {
            let ready = &stored["status"]["conditions"][0];
            ready["message"]
                .as_str()
                .is_some_and(|text| text.contains("ready file of the guest's launcher"))
        })
        .await;
    }
}
