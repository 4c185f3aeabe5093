//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use drydock_api::kubevirt::Phase;
use drydock_runtime::Events;
use kube::Client;
use serde_json::Value;

use super::{
    tests::{INSTANCES, MACHINE, instance, key, machine},
    *,
};
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";

/// A scenario with a machine. Its guest runs as soon as the machine has an instance, and ends when the instance is
/// deleted.
struct Machine(MachineTask);

impl Scenario for Machine {
    fn start(client: Client, events: Events) -> Self {
        let context = GuestContext::with_events(client, events);
        Self(MachineTask::new(context, AssumeCache::filled([])))
    }

    fn show(&self, cluster: &FakeCluster) {
        self.0.machines.show(cluster.all("virtualmachines"));
        self.0.context.show(cluster);
    }

    async fn reconcile(&self) -> Again {
        reconciler::reconcile(&self.0, &key()).await.into()
    }

    fn act(cluster: &mut FakeCluster) {
        for instance in cluster.paths("virtualmachineinstances") {
            if !cluster.get(&instance).unwrap()["metadata"]["deletionTimestamp"].is_null() {
                cluster.remove(&instance);
            }
            cluster.change(&instance, |instance| {
                if instance["status"]["phase"].is_null() {
                    instance["status"]["phase"] = json!("Running");
                }
            });
        }
    }

    fn refusal_event(write: &str) -> Option<&'static str> {
        write.starts_with("POST").then_some("FailedCreate")
    }

    fn reports_refusal(write: &str, cluster: &FakeCluster) -> bool {
        let status = cluster
            .get(MACHINE)
            .map(|machine| machine["status"]["conditions"].to_string());
        !write.starts_with("POST") || status.is_some_and(|conditions| conditions.contains("FailedCreate"))
    }
}

/// Returns a cluster with a machine with this strategy and status. If a phase is given, the machine has an instance in
/// that phase.
fn cluster(strategy: RunStrategy, phase: Option<Phase>, change: impl FnOnce(&mut Value)) -> FakeCluster {
    let of = machine(strategy, "1");
    let mut machine = json!(of);
    machine["status"] = json!({"runStrategy": strategy, "observedGeneration": 1});
    change(&mut machine);
    let running = phase.map(|phase| (INSTANCES, json!(instance(&of, "i1", phase))));
    FakeCluster::with([(MACHINES, machine)].into_iter().chain(running))
}

#[tokio::test(start_paused = true)]
async fn new_machine_survives_each_write_fault() {
    let new = || {
        cluster(RunStrategy::Always, None, |machine| {
            machine["metadata"].as_object_mut().unwrap().remove("finalizers");
            machine.as_object_mut().unwrap().remove("status");
        })
    };
    check_each_write::<Machine>(
        new,
        &[
            "PATCH virtualmachines/vm1",
            "PATCH virtualmachines/vm1/status",
            "POST virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn failed_start_is_counted_once_despite_write_faults() {
    let failed = || cluster(RunStrategy::Always, Some(Phase::Failed), |_| ());
    check_each_write::<Machine>(
        failed,
        &[
            "PATCH virtualmachines/vm1/status",
            "DELETE virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn halted_machine_survives_each_write_fault() {
    let halted = || cluster(RunStrategy::Halted, Some(Phase::Running), |_| ());
    check_each_write::<Machine>(
        halted,
        &[
            "PATCH virtualmachines/vm1/status",
            "DELETE virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn requested_restart_survives_each_write_fault() {
    let restart = || {
        cluster(RunStrategy::Manual, Some(Phase::Running), |machine| {
            machine["status"]["stateChangeRequests"] = json!([{"action": "Stop", "uid": "i1"}, {"action": "Start"}]);
        })
    };
    check_each_write::<Machine>(
        restart,
        &[
            "PATCH virtualmachines/vm1/status",
            "DELETE virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
            "POST virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn requested_stop_survives_each_write_fault() {
    let stop = || {
        cluster(RunStrategy::Manual, Some(Phase::Running), |machine| {
            machine["status"]["stateChangeRequests"] = json!([{"action": "Stop", "uid": "i1"}]);
        })
    };
    check_each_write::<Machine>(
        stop,
        &[
            "PATCH virtualmachines/vm1/status",
            "DELETE virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn requested_start_survives_each_write_fault() {
    let start = || {
        cluster(RunStrategy::Manual, None, |machine| {
            machine["status"]["stateChangeRequests"] = json!([{"action": "Start"}]);
        })
    };
    check_each_write::<Machine>(
        start,
        &[
            "PATCH virtualmachines/vm1/status",
            "POST virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn paused_start_of_a_halted_machine_survives_write_faults() {
    let start = || {
        cluster(RunStrategy::Halted, None, |machine| {
            machine["status"]["stateChangeRequests"] = json!([{"action": "Start", "data": {"paused": "true"}}]);
        })
    };
    check_each_write::<Machine>(
        start,
        &[
            "PATCH virtualmachines/vm1/status",
            "PATCH virtualmachines/vm1",
            "PATCH virtualmachines/vm1/status",
            "POST virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1/status",
            "PATCH virtualmachines/vm1/status",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn deleted_machine_survives_each_write_fault() {
    let deleted = || {
        cluster(RunStrategy::Always, Some(Phase::Running), |machine| {
            machine["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        })
    };
    check_each_write::<Machine>(
        deleted,
        &[
            "PATCH virtualmachines/vm1/status",
            "DELETE virtualmachineinstances/vm1",
            "PATCH virtualmachines/vm1",
        ],
    )
    .await;
}
