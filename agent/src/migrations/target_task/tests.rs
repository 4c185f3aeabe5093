//! Tests of the target's task with an in-memory libvirt, a fake API server and a fake tunnel.

use drydock_host::domain::{DomainEvents, StoppedDetail};
use serde_json::{Value, json};

use super::{
    super::fixture::{Around, DOMAIN, Fixture, fixture},
    *,
};

mod failing_calls;
mod failing_writes;

/// Task of the target, with a connection to the libvirt of its pod.
struct TargetFixture {
    task: TargetTask,
    handle: DomainHandle,
    _events: DomainEvents,
    fixture: Fixture,
}

async fn target(status: &Value, read_status: bool) -> TargetFixture {
    let fixture = fixture(status, Role::Target).await;
    let task = TargetTask::new(
        fixture.shared.clone(),
        fixture.tunnels.clone(),
        fixture.receiver.clone(),
        read_status,
    );
    let (handle, events) = fixture.around.libvirt.connect(DOMAIN).await.unwrap();
    TargetFixture {
        task,
        handle,
        _events: events,
        fixture,
    }
}

impl TargetFixture {
    /// Reconciles once, while `served` responds to its requests.
    async fn reconcile<T>(&mut self, served: impl AsyncFnOnce(&mut Around) -> T) -> (Result<(), SideError>, T) {
        let around = &mut self.fixture.around;
        let (result, served) = tokio::join!(self.task.reconcile(Some(&self.handle)), served(around));
        (result.map(drop), served)
    }

    /// Reconciles once. Panics if the task writes.
    async fn reconcile_without_writes(&mut self) -> Result<(), SideError> {
        let server = &mut self.fixture.around.server;
        tokio::select! {
            biased;
            result = self.task.reconcile(Some(&self.handle)) => result.map(drop),
            request = server.next_request() => panic!("wrote {}", request.body),
        }
    }

    /// Reconciles once, and stores the writes of the task. Returns the result.
    async fn reconcile_once(&mut self) -> Result<Option<Duration>, SideError> {
        let around = &mut self.fixture.around;
        around
            .serve(self.task.reconcile(Some(&self.handle)), Around::store)
            .await
    }

    /// Reconciles once, and stores the writes of the task. Panics if the reconcile fails.
    async fn reconcile_with_writes(&mut self) {
        self.reconcile_once().await.unwrap();
    }

    fn calls(&self) -> Vec<&'static str> {
        self.fixture.around.tunnel.calls()
    }
}

#[tokio::test]
async fn target_that_fits_is_prepared_and_reported_once() {
    let mut target = target(&json!({}), false).await;
    let (result, report) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    assert_eq!(
        (&report["state"], &report["address"]),
        (&json!("Prepared"), &json!("10.0.0.1:8444"))
    );
    assert_eq!(report["fingerprint"].as_str().map(str::len), Some(64));
    // The watch has not shown the report yet.
    target.reconcile_without_writes().await.unwrap();
    assert_eq!(target.calls(), ["prepare"]);
}

#[tokio::test]
async fn target_without_a_feature_of_the_guest_is_refused() {
    let mut target = target(&json!({}), false).await;
    target
        .fixture
        .around
        .libvirt
        .set_cpu_comparison(CpuComparison::Incompatible {
            message: "the CPU is incompatible with host CPU: avx512f".into(),
            features: vec!["avx512f".into()],
        });
    let (result, report) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    assert_eq!(
        (&report["state"], &report["reason"]),
        (&json!("Refused"), &json!("CPUFeatureMissing"))
    );
    assert!(report["message"].as_str().unwrap().contains("avx512f"), "{report}");
    target.reconcile_without_writes().await.unwrap();
    assert_eq!(target.calls(), [""; 0]);
}

#[tokio::test]
async fn failed_status_report_is_repeated_unchanged() {
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
    ] {
        let mut target = target(&json!({}), false).await;
        let (result, ()) = target
            .reconcile(async |around| around.write().await.refuse(code, reason))
            .await;
        assert!(matches!(result, Err(SideError::Api(_))), "{code}");
        let (result, report) = target.reconcile(async |around| around.report("target").await).await;
        result.unwrap();
        assert_eq!(report["state"], "Prepared", "{code}");
    }
}

#[tokio::test]
async fn report_of_an_earlier_process_is_read_before_anything_is_done() {
    let mut target = target(&json!({}), true).await;
    let prepared = json!({"target": {"state": "Prepared", "fingerprint": "0f".repeat(32), "address": "10.0.0.1:8444"}});
    // The session ended with the earlier process, and the watch lags behind.
    let (result, report) = target
        .reconcile(async |around| {
            let read = around.server.next_request().await;
            assert_eq!(read.method, "GET");
            let mut now = json!(around.stored());
            for (key, value) in prepared["target"].as_object().unwrap() {
                now["status"]["target"][key] = value.clone();
            }
            now["metadata"]["resourceVersion"] = json!("2");
            read.with(&now);
            around.report("target").await
        })
        .await;
    result.unwrap();
    assert_eq!(report["state"], "Gone", "nothing can arrive any more");
    assert_eq!(target.calls(), [""; 0]);
}

#[tokio::test]
async fn tunnel_that_refuses_is_called_again() {
    let mut target = target(&json!({}), false).await;
    target.fixture.around.tunnel.refuse(true);
    let refused = target.reconcile_without_writes().await;
    assert!(matches!(refused, Err(SideError::Tunnel(_))), "{refused:?}");
    target.fixture.around.tunnel.refuse(false);
    let (result, report) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    assert_eq!(report["state"], "Prepared");
}

#[tokio::test]
async fn source_is_paired_and_a_lost_guest_reported() {
    let mut target = target(&json!({}), false).await;
    let (result, _) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    let migrating = json!({"source": {"state": "Migrating", "fingerprint": "0a".repeat(32)}});
    target.fixture.around.update(&migrating);
    target.reconcile_without_writes().await.unwrap();
    assert_eq!(target.calls(), ["prepare", "pair"]);
    target.fixture.around.libvirt.guest_arrives("<domain/>");
    target.reconcile_without_writes().await.unwrap();
    target
        .fixture
        .around
        .libvirt
        .guest_does_not_arrive(StoppedDetail::Failed);
    // libvirt may try again over the same session. The source decides.
    target.reconcile_without_writes().await.unwrap();
    let stayed = json!({"source": {"state": "Stayed"}});
    target.fixture.around.update(&stayed);
    target.reconcile_without_writes().await.unwrap();
    assert!(target.calls().ends_with(&["close"]), "{:?}", target.calls());
    let (result, report) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    assert_eq!(report["state"], "Gone");
    assert_eq!(
        target.fixture.around.libvirt.calls(),
        [""; 0],
        "libvirt has removed the domain itself"
    );
}

#[tokio::test]
async fn complete_guest_is_resumed_only_once_the_source_has_let_go() {
    let mut target = target(&json!({}), false).await;
    let (result, _) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    let migrating = json!({"source": {"state": "Migrating", "fingerprint": "0a".repeat(32)}});
    target.fixture.around.update(&migrating);
    target.fixture.around.libvirt.guest_arrives("<domain/>");
    target.fixture.around.libvirt.guest_is_complete();
    target.reconcile_without_writes().await.unwrap();
    assert_eq!(target.fixture.around.libvirt.calls(), [""; 0]);
    let stopped = json!({"source": {"state": "Stopped"}});
    target.fixture.around.update(&stopped);
    target.reconcile_without_writes().await.unwrap();
    assert_eq!(target.fixture.around.libvirt.calls(), ["resume"]);
    let (result, report) = target.reconcile(async |around| around.report("target").await).await;
    result.unwrap();
    assert_eq!(report["state"], "Running");
}
