//! Tests of the plugin in terminals of several sizes and in pipes, with a simulated API server.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod api_server;
mod window;

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use api_server::ApiServer;
use window::{STARTING, Window};

const HYPERVISORS: &str = "/apis/drydock.dev/v1alpha1/hypervisors";
const MIGRATIONS: &str = "/apis/kubevirt.io/v1/virtualmachineinstancemigrations";
const MAINTENANCES: &str = "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances";

fn guest(name: &str, state: &str, message: &str) -> Value {
    json!({"namespace": "shop", "name": name, "state": state, "reason": "Any", "message": message})
}

fn hypervisor(node: &str, total: usize, remaining: &[Value]) -> Value {
    let count = |state: &str| remaining.iter().filter(|guest| guest["state"] == state).count();
    json!({"apiVersion": "drydock.dev/v1alpha1", "kind": "Hypervisor", "metadata": {"name": node}, "spec": {},
        "status": {"drain": {"startedAt": "2026-11-27T14:00:00Z", "total": total, "left": remaining.len(),
            "moving": count("Moving"), "waiting": count("Waiting"), "blocked": count("Blocked"), "shuttingDown": 0,
            "remaining": remaining}}})
}

fn maintenance(node: &str, phase: &str) -> Value {
    json!({"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "kind": "NodeMaintenance", "metadata": {"name": node},
        "spec": {"nodeName": node}, "status": {"phase": phase}})
}

fn migration() -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"namespace": "shop", "name": "m", "uid": "m"}, "spec": {"vmiName": "web"},
        "status": {"phase": "Running", "sourceNode": "worker-1", "target": {"node": "worker-2"},
            "source": {"node": "worker-1", "progress": {"summary": "", "dataTotal": 4_294_967_296_u64, "dataProcessed": 0,
                "dataRemaining": 1_500_000_000_u64}}}})
}

/// Returns a cluster in which one guest moves away from a node and another one blocks the drain.
fn cluster() -> ApiServer {
    let guests = [
        guest("cache", "Blocked", "the guest cannot be migrated"),
        guest("web", "Moving", "its migration is under way"),
    ];
    ApiServer::start(vec![
        (HYPERVISORS.into(), hypervisor("worker-1", 3, &guests)),
        (MAINTENANCES.into(), maintenance("worker-1", "Running")),
        (MIGRATIONS.into(), migration()),
    ])
}

/// Runs the plugin without a terminal. Returns its exit code and its output.
fn run(words: &[&str]) -> (Option<i32>, String) {
    let child = {
        let _starting = STARTING.lock();
        Command::new(env!("CARGO_BIN_EXE_kubectl-drydock"))
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn drain_is_drawn_in_windows_of_80_and_40_columns() {
    for columns in [80, 40] {
        let server = cluster();
        let kubeconfig = server.kubeconfig();
        let mut window = Window::open(columns, 24, &["watch", "worker-1", "--kubeconfig", &kubeconfig]);
        let seen = window.until("65%");
        insta::assert_snapshot!(format!("at_{columns}_columns"), seen);
        assert!(
            window.written.contains("\x1b[1;31mBLOCKED\x1b[0m"),
            "{:?}",
            window.written
        );
        server.change(HYPERVISORS, &hypervisor("worker-1", 3, &[]));
        window.until("3 of 3 gone");
        server.change(MAINTENANCES, &maintenance("worker-1", "Succeeded"));
        let (code, seen) = window.close();
        assert_eq!(code, Some(0));
        // The lines that were drawn before have been replaced.
        assert!(
            seen.contains("safe to switch off") && !seen.contains("BLOCKED") && !seen.contains("Ctrl-C"),
            "{seen}"
        );
    }
}

#[test]
fn window_that_becomes_narrower_is_drawn_anew() {
    let server = cluster();
    let kubeconfig = server.kubeconfig();
    let mut window = Window::open(80, 30, &["watch", "worker-1", "--kubeconfig", &kubeconfig]);
    window.until("65%");
    window.resize(40);
    let seen = window.until("  maintenance stop worker-1");
    assert_eq!(seen.matches("shop/web").count(), 1, "{seen}");
    assert!(
        seen.starts_with("worker-1  emptying  [###.......]\n  1 of 3 gone\n"),
        "{seen}"
    );
}

#[test]
fn interrupt_ends_the_view_and_names_the_way_back() {
    let server = cluster();
    let kubeconfig = server.kubeconfig();
    let mut window = Window::open(80, 24, &["watch", "--kubeconfig", &kubeconfig, "--no-color"]);
    let seen = window.until("Ctrl-C ends this view");
    assert!(seen.contains("worker-1  emptying"), "{seen}");
    window.interrupt();
    window.until("the drain continues; to cancel it: kubectl drydock maintenance stop worker-1");
    assert!(!window.written.contains("\x1b[1;31m"), "{:?}", window.written);
    assert_eq!(window.close().0, Some(0));
}

#[test]
fn worst_of_several_nodes_is_the_exit_code() {
    let server = cluster();
    let kubeconfig = server.kubeconfig();
    for (node, phase) in [("worker-2", "Succeeded"), ("worker-3", "Failed")] {
        server.change(MAINTENANCES, &maintenance(node, phase));
    }
    let watch = |words: &[&str]| run(&[&["watch", "--kubeconfig", &kubeconfig], words].concat());
    // The blocked node does not delay the others.
    let (code, text) = watch(&["worker-1", "worker-2", "--fail-when-blocked", "1s"]);
    assert_eq!(code, Some(3), "{text}");
    for part in ["worker-1 shop/cache Blocked", "worker-2 - Empty MaintenanceSucceeded"] {
        assert!(text.contains(part), "{text}");
    }
    // Lines do not need a terminal.
    assert!(!text.contains('\x1b'), "{text}");
    assert_eq!(watch(&["worker-2"]).0, Some(0));
    assert_eq!(watch(&["worker-2", "worker-3"]).0, Some(1));
    assert_eq!(watch(&["worker-1", "worker-2", "--timeout", "1"]).0, Some(4));
}

#[test]
fn terminal_follows_a_migration_to_the_end() {
    let server = cluster();
    let kubeconfig = server.kubeconfig();
    // Path of the migrations in one namespace.
    let list = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations";
    server.change(list, &migration());
    let mut window = Window::open(80, 24, &["watch", "--vm", "shop/web", "--kubeconfig", &kubeconfig]);
    window.until("65%");
    let mut over = migration();
    over["status"]["phase"] = "Failed".into();
    over["status"]["migrationState"] = json!({"failed": true, "failureReason": "the target refused the guest"});
    server.change(list, &over);
    let (code, seen) = window.close();
    assert_eq!(code, Some(1));
    assert_eq!(
        seen.trim_end(),
        "shop/web  Failed  from worker-1  to worker-2\n  the target refused the guest"
    );
}

#[test]
fn names_are_completed_from_the_cluster() {
    let named = |name: &str| json!({"metadata": {"name": name}});
    let mut machine = named("web");
    machine["metadata"]["namespace"] = "shop".into();
    let server = ApiServer::start(vec![
        ("/api/v1/nodes".into(), named("worker-1")),
        ("/api/v1/nodes".into(), named("worker-2")),
        ("/apis/kubevirt.io/v1/virtualmachineinstances".into(), machine),
    ]);
    let kubeconfig = server.kubeconfig();
    let complete = |words: &[&str]| run(&[&["__complete", "--", "--kubeconfig", &kubeconfig], words].concat()).1;
    assert_eq!(complete(&["drain", "worker-1", ""]), "worker-2\n:4\n");
    assert_eq!(complete(&["explain", "vm", "sh"]), "shop/web\n:4\n");
    // Without a cluster there are no candidates, and no error either.
    assert_eq!(
        run(&["__complete", "--", "--kubeconfig", "/no/such/file", "drain", ""]),
        (Some(0), ":4\n".to_owned())
    );
}
