//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use drydock_api::HypervisorSpec;
use drydock_runtime::{Events, Process, Readiness, Registry, WatchMetrics, WatchStarter};
use futures::FutureExt;
use kube::Client;
use serde_json::json;
use tokio::sync::Mutex;

use super::{
    tests::{instance, tainted},
    *,
};
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const NODE: &str = "/api/v1/nodes/a";
const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances";
const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";

/// A scenario with a drain of node `a`. The guest leaves as soon as there is a migration, and the taint is removed
/// after that.
struct Drain {
    task: DrainTask,
    kept: Mutex<BTreeMap<String, PodsGuard>>,
}

impl Scenario for Drain {
    fn start(client: Client, events: Events) -> Self {
        let watches = WatchStarter::new(&Process::new(), &Readiness::new(), &WatchMetrics::default());
        let pods = NodePods::start(&client, &watches, |_| ());
        let context = GuestContext::with_events(client, events);
        let metrics = DrainMetrics::register(&mut Registry::default());
        let task = DrainTask::new(context, pods, metrics, Trigger::new());
        Self {
            task,
            kept: Mutex::default(),
        }
    }

    fn show(&self, cluster: &FakeCluster) {
        let nodes = &self.task.context.launchers.nodes;
        nodes.nodes.show(cluster.all("nodes"));
        nodes.hypervisors.show(cluster.all("hypervisors"));
        self.task.context.show(cluster);
    }

    async fn reconcile(&self) -> Again {
        // The watch of the node's pods receives its list in the meantime.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let mut kept = self.kept.lock().await;
        let result = self
            .task
            .plan_and_execute(&mut kept, true, &mut Duration::default())
            .await;
        let is_notified = self.task.changed.notified().now_or_never().is_some();
        match result {
            Err(_) => Again::Failed,
            Ok(wake) if wake.is_some() || is_notified => Again::At,
            Ok(_) => Again::OnChange,
        }
    }

    fn act(cluster: &mut FakeCluster) {
        for migration in cluster.paths("virtualmachineinstancemigrations") {
            cluster.change(&migration, |migration| {
                migration["status"] = json!({"phase": "Succeeded"});
            });
            cluster.change(INSTANCE, |instance| instance["status"]["nodeName"] = json!("b"));
        }
        let is_marked = |instance: &serde_json::Value| !instance["status"]["evacuationNodeName"].is_null();
        if cluster
            .get(INSTANCE)
            .is_some_and(|instance| instance["status"]["nodeName"] == "b" && !is_marked(instance))
        {
            cluster.change(NODE, |node| node["spec"]["taints"] = json!([]));
        }
    }

    fn end_back_off(&self) {
        let (step, refusals) = (
            RefusedStep::Drain(Key::namespaced("shop", "web")),
            &self.task.context.refusals,
        );
        if let Some(refused) = refusals.of(&step, clock::now()) {
            refusals.note(step, &refused.message, Timestamp::UNIX_EPOCH);
        }
    }

    fn kept(&self) -> String {
        self.task.context.refusals.is_empty().to_string()
    }

    fn refusal_event(write: &str) -> Option<&'static str> {
        write.starts_with("POST").then_some("FailedCreate")
    }
}

#[tokio::test(start_paused = true)]
async fn drain_survives_each_write_fault() {
    let cluster = || {
        let mut node = json!(tainted("a"));
        // The Node already reports the drain.
        node["status"] = json!({"conditions": [{"type": "DrainInProgress", "status": "True"}]});
        let mut guest = json!(instance("web"));
        guest["metadata"]["annotations"] = json!({EVICTION_SOURCE: "descheduler"});
        let mut hypervisor = json!(Hypervisor::new("a", HypervisorSpec::default()));
        hypervisor["metadata"]["uid"] = json!("uid-h");
        FakeCluster::with([
            ("/api/v1/nodes", node),
            ("/apis/drydock.dev/v1alpha1/hypervisors", hypervisor),
            (INSTANCES, guest),
        ])
    };
    check_each_write::<Drain>(
        cluster,
        &[
            "PATCH virtualmachineinstances/web/status",
            "PATCH hypervisors/a/status",
            "PATCH nodes/a/status",
            "POST virtualmachineinstancemigrations/kubevirt-evacuation-*",
            "PATCH hypervisors/a/status",
            "PATCH hypervisors/a/status",
            "PATCH virtualmachineinstances/web",
            "PATCH virtualmachineinstances/web/status",
            "PATCH hypervisors/a/status",
            "PATCH nodes/a/status",
            "PATCH hypervisors/a/status",
            "PATCH nodes/a/status",
        ],
    )
    .await;
}
