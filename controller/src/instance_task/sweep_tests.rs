//! Measures the cost of a change of a node in a large cluster, in which every unfinished instance is reconciled.

use std::{cell::Cell, future::poll_fn, pin::pin, time::Instant};

use drydock_api::{
    Hypervisor,
    hypervisor::{HypervisorSpec, HypervisorStatus},
};
use drydock_runtime::{
    CancellationToken, EventMetrics, Events, Reporter, WorkQueueMetrics,
    fake::{ApiServer, IDENTITY, api_server, candidate, keep_elected},
};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::sync::Notify;

use super::*;
use crate::nodes::Nodes;

const NODES: usize = 500;
const INSTANCES: usize = 100_000;
/// Interval of another task on the same thread.
const TICK: Duration = Duration::from_millis(1);

fn node_name(number: usize) -> String {
    format!("node-{number:03}")
}

/// Returns the status of a Hypervisor as an agent wrote it.
fn recorded() -> Value {
    serde_json::from_str(include_str!("../../../tests/scale/recorded/hypervisor.json")).unwrap()
}

fn nodes(client: &Client) -> Nodes {
    // Identical nodes share their facts, like in the cache of the process.
    let status: HypervisorStatus = serde_json::from_value(recorded()).unwrap();
    let labels: Value = serde_json::from_str(include_str!("../../../tests/scale/recorded/node.json")).unwrap();
    let node = |number: usize| -> Node {
        let mut labels = labels["labels"].clone();
        labels["kubernetes.io/hostname"] = json!(node_name(number));
        serde_json::from_value(json!({
            "metadata": {"name": node_name(number), "uid": node_name(number), "labels": labels},
            "status": {
                "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250", "devices.kubevirt.io/kvm": "1000"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .unwrap()
    };
    let hypervisor = |number: usize| {
        let mut hypervisor = Hypervisor::new(&node_name(number), HypervisorSpec::default());
        hypervisor.status = Some(status.clone());
        hypervisor
    };
    let mut nodes = Nodes::filled(client, (0..NODES).map(node));
    nodes.hypervisors = drydock_runtime::AssumeCache::filled((0..NODES).map(hypervisor));
    nodes
}

/// Returns a running instance with the CPU model of its host, and its pod. No node meets the requirements of every
/// tenth instance.
fn running(number: usize, host_model: &Value) -> (VirtualMachineInstance, Pod) {
    let (name, node) = (format!("vm-{number:06}"), node_name(number % NODES));
    let (uid, pod_uid) = (format!("uid-of-{name}"), format!("uid-of-pod-{name}"));
    let instance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid, "resourceVersion": "10", "finalizers": [FINALIZER],
            "labels": {NODE_NAME: node, "app": "shop"},
        },
        "spec": {
            "nodeSelector": if number.is_multiple_of(10) { json!({"disk": "nvme"}) } else { json!({}) },
            "evictionStrategy": "LiveMigrate",
            "domain": {
                "cpu": {"cores": 2, "model": "host-model"}, "memory": {"guest": "2Gi"},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
            },
            "volumes": [{"name": "root", "containerDisk": {"image": "registry.example/root:1"}}],
        },
        "status": {
            "phase": "Running", "nodeName": node, "activePods": {&pod_uid: node},
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-01T10:00:00Z"},
                {"type": "LiveMigratable", "status": "True", "lastTransitionTime": "2026-05-01T10:00:00Z"},
            ],
            "drydock": {"podUID": pod_uid, "guestCPU": {
                "model": host_model["name"], "vendor": "AMD", "required": host_model["required"],
                "disabled": host_model["disabled"],
            }},
        },
    }));
    let pod = serde_json::from_value(json!({
        "metadata": {
            "name": format!("virt-launcher-{name}"), "namespace": "shop", "uid": pod_uid, "resourceVersion": "11",
            "labels": {"kubevirt.io": "virt-launcher"},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": uid,
                "controller": true,
            }],
        },
        "spec": {"nodeName": node, "containers": [{"name": "compute"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{
                "name": "compute", "image": "i", "imageID": "j", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-05-01T10:00:00Z"}},
            }],
        },
    }));
    (instance.unwrap(), pod.unwrap())
}

/// Refuses each request with a conflict, and counts the requests.
async fn refuse_all(mut server: ApiServer, requests: &Cell<usize>) {
    loop {
        server.next_request().await.refuse(409, "Conflict");
        requests.set(requests.get() + 1);
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Polls a future, and raises `longest` to the processor time of its longest poll.
async fn measure_polls<F: Future>(future: F, longest: &Cell<Duration>) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let before = processor_time();
        let polled = future.as_mut().poll(context);
        longest.set(longest.get().max(processor_time() - before));
        polled
    })
    .await
}

/// Returns the longest delay of a task that runs at each [`TICK`]. The measurement ends with `over`.
async fn longest_delay(over: CancellationToken) -> Duration {
    let mut longest = Duration::ZERO;
    while !over.is_cancelled() {
        let begun = Instant::now();
        tokio::time::sleep(TICK).await;
        longest = longest.max(begun.elapsed().saturating_sub(TICK));
    }
    longest
}

#[test]
#[ignore = "a measurement without a verdict, for `hack/bench sweep`"]
fn change_of_a_node_with_100_000_instances() {
    // The controller has one thread as well.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let ((client, server), (for_events, _)) = (api_server(), api_server());
    let reporter = Reporter {
        component: "drydock-controller",
        instance: IDENTITY.into(),
    };
    let process = Process::new();
    let (leadership, lease_server) = candidate(&process, Trigger::new());
    let host_model = recorded()["facts"]["virtualization"]["hostModel"].clone();
    let (vms, pods): (Vec<_>, Vec<_>) = (0..INSTANCES).map(|number| running(number, &host_model)).unzip();
    let events = Events::start(&process, for_events, reporter, &EventMetrics::default());
    let mut context = GuestContext::with_events(client, events);
    context.launchers.nodes = nodes(&context.client);
    context.launchers.show(pods);
    context.instances.objects.show(vms);
    let instances = context.instances.clone();
    let task = InstanceTask::new(context);
    let requests = Cell::new(0);
    let (work, stopping) = (
        WorkQueue::new("instances", MAX_CONCURRENT_RECONCILES, &WorkQueueMetrics::default()),
        process.stopping(),
    );
    let started = Notify::new();
    let all = async || {
        started.notify_one();
        Vec::new()
    };
    let reconcile = async |key: Key| reconciler::reconcile(&task, &key).await;
    let longest_poll = Cell::new(Duration::ZERO);
    let running = measure_polls(work.run(&stopping, leadership, all, reconcile), &longest_poll);
    let sweeping = async {
        started.notified().await;
        let (begun, over) = (Instant::now(), CancellationToken::new());
        let (longest, ()) = tokio::join!(longest_delay(over.clone()), async {
            work.add_pages(|last, count| instances.unfinished_after(last, count))
                .await;
            while !work.is_empty() {
                tokio::time::sleep(TICK).await;
            }
            over.cancel();
        });
        let swept = begun.elapsed();
        let begun = Instant::now();
        let mut visited = 0;
        instances.objects.shown().for_each(|_, _| visited += 1);
        let figures = json!({
            "instances": visited, "nodes": NODES, "requests": requests.get(), "sweep": swept.as_secs_f64(),
            "blocked": longest_poll.get().as_secs_f64(), "delay": longest.as_secs_f64(), "visit": begun.elapsed().as_secs_f64(),
        });
        println!("figures: {figures}");
    };
    tokio::select! {
        () = running => panic!("it ends only when the process stops"),
        () = refuse_all(server, &requests) => {}
        () = keep_elected(lease_server) => {}
        () = sweeping => {}
    }
}
