//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use drydock_api::kubevirt::names::MIGRATION_FINALIZER;
use drydock_runtime::{Events, WorkQueueMetrics};
use kube::Client;
use serde_json::{Value, json};

use super::{
    tests::{MIGRATION, UID, instance, key, migration, target_pod},
    *,
};
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const MIGRATIONS: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations";
const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances";
const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";
const PODS: &str = "/api/v1/namespaces/shop/pods";

/// A scenario with a migration that both agents carry out.
struct Move(MigrationTask);

impl Scenario for Move {
    fn start(client: Client, events: Events) -> Self {
        let node = |name: &str| {
            let node = json!({
                "metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            serde_json::from_value(node).unwrap()
        };
        let context = GuestContext::with_events(client, events);
        context.launchers.nodes.nodes.show([node("a"), node("b")]);
        let work = WorkQueue::new("migrations", 1, &WorkQueueMetrics::default());
        Self(MigrationTask::new(context, PhaseDeadlines::default(), work))
    }

    fn show(&self, cluster: &FakeCluster) {
        self.0.context.show(cluster);
    }

    async fn begin(&self) {
        self.0.rebuild_slots().await;
    }

    async fn reconcile(&self) -> Again {
        reconciler::reconcile(&self.0, &key()).await.into()
    }

    /// Performs the actions of the scheduler, the kubelet and both agents.
    fn act(cluster: &mut FakeCluster) {
        for pod in cluster.paths("pods") {
            cluster.change(&pod, |pod| {
                if pod["spec"]["nodeName"].is_null() {
                    pod["spec"]["nodeName"] = json!("b");
                    let running = json!([{
                        "name": "compute", "ready": true, "restartCount": 0, "image": "", "imageID": "",
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    }]);
                    pod["status"] = json!({"phase": "Running", "containerStatuses": running});
                }
            });
        }
        let Some(status) = cluster.get(MIGRATION).map(|migration| migration["status"].clone()) else {
            return;
        };
        let state = |side: &str| status[side]["state"].as_str().unwrap_or_default().to_owned();
        let report = |cluster: &mut FakeCluster, side: &str, state: &str| {
            cluster.change(MIGRATION, |migration| {
                migration["status"][side]["state"] = json!(state);
                if side == "source" {
                    migration["status"][side]["startTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
            });
        };
        match (&*state("source"), &*state("target")) {
            ("", "") if status["phase"] == "PreparingTarget" => report(cluster, "target", "Prepared"),
            ("", "Prepared") => report(cluster, "source", "Migrating"),
            ("Migrating", "Prepared") => report(cluster, "target", "Running"),
            ("Migrating", "Running") => report(cluster, "source", "Stopped"),
            // Action of the instance task.
            ("Stopped", "Running") => {
                cluster.change(INSTANCE, |instance| instance["status"]["nodeName"] = json!("b"));
            }
            _ => {}
        }
    }

    fn end_back_off(&self) {
        let (step, refusals) = (RefusedStep::TargetPod(key()), &self.0.context.refusals);
        if let Some(refused) = refusals.of(&step, clock::now()) {
            refusals.note(step, &refused.message, Timestamp::UNIX_EPOCH);
        }
    }

    fn kept(&self) -> String {
        format!(
            "{:?}, {:?}, {:?}",
            self.0.turns.used(),
            self.0.turns.state_of(UID).wait,
            self.0.context.refusals.is_empty()
        )
    }

    fn refusal_event(write: &str) -> Option<&'static str> {
        write.starts_with("POST pods").then_some("FailedCreate")
    }

    fn reports_refusal(write: &str, cluster: &FakeCluster) -> bool {
        let conditions = cluster
            .get(MIGRATION)
            .map(|migration| migration["status"]["conditions"].to_string());
        !write.starts_with("POST pods") || conditions.is_some_and(|conditions| conditions.contains("FailedCreate"))
    }
}

/// Returns a cluster with this migration of a guest that runs on node a, and these other pods of the guest.
fn cluster(migration: Value, pods: impl IntoIterator<Item = Value>) -> FakeCluster {
    let mut source = json!(target_pod(&json!({"phase": "Running"})));
    source["metadata"]["name"] = json!("p");
    source["metadata"]["uid"] = json!("uid-p");
    source["metadata"]["labels"] = json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-web"});
    source["spec"]["nodeName"] = json!("a");
    let pods = pods.into_iter().chain([source]).map(|pod| (PODS, pod));
    FakeCluster::with(
        [(MIGRATIONS, migration), (INSTANCES, json!(instance()))]
            .into_iter()
            .chain(pods),
    )
}

#[tokio::test(start_paused = true)]
async fn migration_survives_each_write_fault() {
    check_each_write::<Move>(
        || cluster(migration(), []),
        &[
            "POST pods/virt-launcher-web-433fe80087",
            "PATCH virtualmachineinstancemigrations/m/status",
            "PATCH virtualmachineinstancemigrations/m/status",
            "PATCH virtualmachineinstancemigrations/m/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn canceled_migration_survives_each_write_fault() {
    let canceled = || {
        let mut canceled = migration();
        canceled["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        canceled["metadata"]["finalizers"] = json!([MIGRATION_FINALIZER]);
        canceled["status"] = json!({"phase": "Scheduled"});
        let mut target = json!(target_pod(&json!({"phase": "Running"})));
        target["metadata"]["labels"]["kubevirt.io/created-by"] = json!("uid-web");
        cluster(canceled, [target])
    };
    check_each_write::<Move>(
        canceled,
        &[
            "PATCH virtualmachineinstancemigrations/m/status",
            "DELETE pods/q",
            "PATCH virtualmachineinstancemigrations/m",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn refused_target_survives_each_write_fault() {
    let refused = || {
        let mut refused = migration();
        refused["metadata"]["finalizers"] = json!([MIGRATION_FINALIZER]);
        refused["status"] = json!({
            "phase": "PreparingTarget",
            "source": {"node": "a", "pod": "p", "podUID": "uid-p"},
            "target": {"node": "b", "pod": "q", "podUID": "uid-q", "state": "Refused", "message": "no"},
        });
        let mut target = json!(target_pod(&json!({"phase": "Running"})));
        target["metadata"]["labels"]["kubevirt.io/created-by"] = json!("uid-web");
        cluster(refused, [target])
    };
    check_each_write::<Move>(
        refused,
        &["PATCH virtualmachineinstancemigrations/m/status", "DELETE pods/q"],
    )
    .await;
}
