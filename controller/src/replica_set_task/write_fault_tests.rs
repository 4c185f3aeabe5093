//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use drydock_runtime::Events;
use kube::Client;
use serde_json::Value;

use super::{
    tests::{INSTANCES, SET, instance, key, set, task_in},
    *,
};
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const SETS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancereplicasets";

struct ReplicaSet(ReplicaSetTask);

impl Scenario for ReplicaSet {
    fn start(client: Client, events: Events) -> Self {
        Self(task_in(GuestContext::with_events(client, events)))
    }

    fn show(&self, cluster: &FakeCluster) {
        self.0.sets.show(cluster.all("virtualmachineinstancereplicasets"));
        self.0.context.show(cluster);
    }

    async fn reconcile(&self) -> Again {
        reconciler::reconcile(&self.0, &key()).await.into()
    }

    fn refusal_event(write: &str) -> Option<&'static str> {
        match write.split_once(' ')?.0 {
            "POST" => Some("FailedCreate"),
            "DELETE" => Some("FailedDelete"),
            _ => None,
        }
    }

    fn reports_refusal(write: &str, cluster: &FakeCluster) -> bool {
        let Some(reason) = Self::refusal_event(write) else {
            return true;
        };
        let status = cluster.get(SET).map(|set| set["status"]["conditions"].to_string());
        status.is_some_and(|conditions| conditions.contains(reason))
    }
}

fn cluster(replicas: i32, instances: impl IntoIterator<Item = Value>) -> FakeCluster {
    let instances = instances.into_iter().map(|instance| (INSTANCES, instance));
    FakeCluster::with([(SETS, json!(set(replicas)))].into_iter().chain(instances))
}

#[tokio::test(start_paused = true)]
async fn creation_of_replicas_survives_each_write_fault() {
    check_each_write::<ReplicaSet>(
        || cluster(3, []),
        &[
            "POST virtualmachineinstances/web-q5lp5x",
            "POST virtualmachineinstances/web-nvpl9w",
            "POST virtualmachineinstances/web-gr2vs2",
            "PATCH virtualmachineinstancereplicasets/web/status",
            "PATCH virtualmachineinstancereplicasets/web/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn surplus_of_replicas_survives_each_write_fault() {
    let three = || cluster(1, ["a", "b", "c"].map(|name| json!(instance(name))));
    check_each_write::<ReplicaSet>(
        three,
        &[
            "DELETE virtualmachineinstances/a",
            "DELETE virtualmachineinstances/b",
            "PATCH virtualmachineinstancereplicasets/web/status",
            "PATCH virtualmachineinstancereplicasets/web/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn release_of_a_replica_survives_each_write_fault() {
    let relabelled = || {
        let mut other = json!(instance("a"));
        other["metadata"]["labels"] = json!({"app": "other"});
        cluster(1, [other, json!(instance("b"))])
    };
    check_each_write::<ReplicaSet>(
        relabelled,
        &[
            "PATCH virtualmachineinstances/a",
            "PATCH virtualmachineinstancereplicasets/web/status",
        ],
    )
    .await;
}
