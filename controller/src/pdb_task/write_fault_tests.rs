//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use drydock_runtime::Events;
use kube::Client;

use super::{
    tests::{instance, pod},
    *,
};
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";

/// A scenario with a running guest that may be evicted later.
struct Protected(PdbTask);

impl Scenario for Protected {
    fn start(client: Client, events: Events) -> Self {
        Self(PdbTask::new(GuestContext::with_events(client, events)))
    }

    fn show(&self, cluster: &FakeCluster) {
        self.0.context.show(cluster);
    }

    async fn reconcile(&self) -> Again {
        reconciler::reconcile(&self.0, &Key::namespaced("shop", "web"))
            .await
            .into()
    }

    fn act(cluster: &mut FakeCluster) {
        cluster.change(INSTANCE, |instance| {
            instance["spec"]["evictionStrategy"] = json!("None");
        });
    }

    fn reports_refusal(write: &str, cluster: &FakeCluster) -> bool {
        let status = cluster.get(INSTANCE).map(|instance| instance["status"].to_string());
        !write.starts_with("POST") || status.is_some_and(|status| status.contains("refused with 403"))
    }
}

#[tokio::test(start_paused = true)]
async fn pdb_of_a_guest_survives_each_write_fault() {
    let cluster = || {
        FakeCluster::with([
            (
                "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances",
                json!(instance()),
            ),
            ("/api/v1/namespaces/shop/pods", json!(pod())),
        ])
    };
    check_each_write::<Protected>(
        cluster,
        &[
            "POST poddisruptionbudgets/virt-launcher-web-1",
            "DELETE poddisruptionbudgets/virt-launcher-web-1",
        ],
    )
    .await;
}
