//! Tests of the steps with a simulated API server.

use std::sync::atomic::{AtomicBool, Ordering};

use drydock_runtime::{
    Events,
    fake::{ApiServer, api_server},
};
use serde_json::{Value, json};

use super::*;
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const MACHINES: &str = "/apis/kubevirt.io/v1/virtualmachines";

fn uninstall(client: Client) -> Uninstall {
    Uninstall {
        client,
        namespace: "drydock".into(),
        folders_namespace: "drydock-uninstall".into(),
        deadline: Instant::now() + Duration::from_secs(60),
    }
}

/// Responds to the six lists of objects that need Drydock. A kind that `responses` does not have is not served.
async fn lists(server: &mut ApiServer, responses: &[(&str, Value)]) {
    for _ in 0..6 {
        let request = server.next_request().await;
        assert_eq!(request.method, "GET", "{}", request.line);
        let path = request.path().to_owned();
        match responses.iter().find(|(of, _)| *of == path) {
            Some((_, response)) => request.with(response),
            None => request.refuse(404, "NotFound"),
        }
    }
}

/// Returns a list of objects with metadata only.
fn metadata(names: &[(&str, &str)], more: i64) -> Value {
    let items = names.iter().map(|(namespace, name)| {
        json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"},
        })
    });
    let remaining = (more > 0).then_some(more);
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": {"resourceVersion": "1", "remainingItemCount": remaining}, "items": items.collect::<Vec<_>>(),
    })
}

#[tokio::test(start_paused = true)]
async fn machine_that_is_left_is_named_and_nothing_is_changed() {
    let (client, mut server) = api_server();
    let uninstall = uninstall(client);
    let machines = metadata(&[("default", "web")], 4);
    let pods = metadata(&[("default", "virt-launcher-web-1")], 0);
    let responses = [(MACHINES, machines), ("/api/v1/pods", pods)];
    let (result, ()) = tokio::join!(uninstall.all(), lists(&mut server, &responses));
    let Err(UninstallError::InUse(what)) = &result else {
        panic!("{result:?}")
    };
    assert_eq!(
        what,
        "5 VirtualMachines (default/web and 4 more), 1 virt-launcher Pod (default/virt-launcher-web-1)"
    );
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn kinds_that_are_not_served_have_no_objects() {
    let (client, mut server) = api_server();
    let uninstall = uninstall(client);
    let pods = [("/api/v1/pods", metadata(&[], 0))];
    let (result, ()) = tokio::join!(uninstall.refuse_if_in_use(), lists(&mut server, &pods));
    assert!(result.is_ok(), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_request_is_repeated_until_the_time_is_over() {
    let (client, mut server) = api_server();
    let uninstall = uninstall(client);
    let serve = async {
        // The webhook does not know yet that the last virtual machine was deleted.
        server.next_request().await.refuse(403, "Forbidden");
        server.next_request().await.with(&json!({"items": [], "metadata": {}}));
    };
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(uninstall.client.clone());
    let listed = uninstall.persist("list nodes", async || nodes.list(&Default::default()).await);
    let (listed, ()) = tokio::join!(listed, serve);
    assert!(listed.unwrap().items.is_empty());

    let refuse = async {
        loop {
            server.next_request().await.refuse(403, "Forbidden");
        }
    };
    let listed = uninstall.persist("list nodes", async || nodes.list(&Default::default()).await);
    let failure = tokio::select! {
        listed = listed => listed.unwrap_err().to_string(),
        () = refuse => "never".into(),
    };
    assert_eq!(failure, "could not list nodes in time");
}

#[tokio::test(start_paused = true)]
async fn only_api_services_of_drydock_are_deleted() {
    let (client, mut server) = api_server();
    let uninstall = uninstall(client);
    let service = |name: &str, namespace: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {"groupPriorityMinimum": 1000, "versionPriority": 15,
                "service": {"name": "drydock-webhooks", "namespace": namespace}},
        })
    };
    let base = "/apis/apiregistration.k8s.io/v1/apiservices";
    let responses = async {
        let ours = service("v1.subresources.kubevirt.io", "drydock");
        server.next_request().await.with(&ours);
        let request = server.next_request().await;
        assert_eq!(
            (request.method.as_str(), request.path()),
            ("DELETE", format!("{base}/v1.subresources.kubevirt.io").as_str())
        );
        request.with(&ours);
        server
            .next_request()
            .await
            .with(&service("v1alpha3.subresources.kubevirt.io", "elsewhere"));
    };
    let (deleted, ()) = tokio::join!(uninstall.delete_api_services(), responses);
    deleted.unwrap();
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn only_drydocks_finalizer_of_a_migration_is_removed() {
    let (client, mut server) = api_server();
    let uninstall = uninstall(client);
    let mut list = metadata(&[("a", "ours"), ("a", "free")], 0);
    list["items"][0]["metadata"]["finalizers"] = json!(["kubevirt.io/migrationJobFinalize", "example.org/other"]);
    let serve = async {
        server.next_request().await.with(&list);
        let request = server.next_request().await;
        let seen = (
            request.method.to_string(),
            request.path().to_owned(),
            request.body.clone(),
        );
        request.with(&list["items"][0]);
        seen
    };
    let (released, (method, path, body)) = tokio::join!(uninstall.release_migrations(), serve);
    released.unwrap();
    let expected = "/apis/kubevirt.io/v1/namespaces/a/virtualmachineinstancemigrations/ours";
    assert_eq!((method.as_str(), path.as_str()), ("PATCH", expected));
    assert_eq!(
        body["metadata"],
        json!({"resourceVersion": "1", "finalizers": ["example.org/other"]})
    );
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn labels_and_conditions_of_a_node_are_removed() {
    let (client, mut server) = api_server();
    let uninstall = uninstall(client);
    let node = |name: &str, labels: Value, conditions: Value| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"conditions": conditions},
        })
    };
    let marked = node(
        "a",
        json!({"kubevirt.io/schedulable": "true", "x": "y"}),
        json!([{"type": "Drained", "status": "False"}]),
    );
    let clean = node("b", json!({"x": "y"}), json!([{"type": "Ready", "status": "True"}]));
    let serve = async {
        server.next_request().await.list("1", &[marked.clone(), clean]);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let request = server.next_request().await;
            seen.push((
                request.path().to_owned(),
                request.content_type.clone(),
                request.body.clone(),
            ));
            request.with(&marked);
        }
        seen
    };
    let (cleaned, seen) = tokio::join!(uninstall.clean_nodes(), serve);
    cleaned.unwrap();
    let [merge, strategic] = ["merge", "strategic-merge"].map(|how| format!("application/{how}-patch+json"));
    let labels = json!({"metadata": {"labels": {"kubevirt.io/schedulable": null}}});
    let conditions = json!({"status": {"conditions": [{"type": "Drained", "$patch": "delete"}]}});
    let expected = vec![
        ("/api/v1/nodes/a".to_owned(), merge, labels),
        ("/api/v1/nodes/a/status".to_owned(), strategic, conditions),
    ];
    assert_eq!(seen, expected);
    assert!(server.is_left_alone().await);
}

/// A scenario with all steps, run by one Job and, if that is interrupted, by the next one.
struct Removal {
    uninstall: Uninstall,
    is_done: AtomicBool,
}

impl Scenario for Removal {
    fn start(client: Client, _: Events) -> Self {
        Self {
            uninstall: uninstall(client),
            is_done: AtomicBool::new(false),
        }
    }

    fn show(&self, _: &FakeCluster) {}

    async fn reconcile(&self) -> Again {
        if self.is_done.load(Ordering::Relaxed) {
            return Again::OnChange;
        }
        match self.uninstall.all().await {
            Ok(()) => {
                self.is_done.store(true, Ordering::Relaxed);
                Again::OnChange
            }
            Err(_) => Again::Failed,
        }
    }

    /// The step itself repeats the write.
    fn is_repeated_by_others(_: &str) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn uninstall_survives_each_write_fault() {
    let node = json!({
        "metadata": {"name": "a", "labels": {"kubernetes.io/os": "linux", "kubevirt.io/schedulable": "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Drained", "status": "False"}]},
    });
    let folders = json!({
        "metadata": {"name": "folders-a", "labels": {"app.kubernetes.io/name": "drydock-uninstall-folders"}},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let service = json!({
        "metadata": {"name": "v1.subresources.kubevirt.io"},
        "spec": {"groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"name": "drydock-webhooks", "namespace": "drydock"}},
    });
    let migration = json!({"metadata": {"name": "m", "finalizers": ["kubevirt.io/migrationJobFinalize"]}});
    let cluster = || {
        let named = |name: &str| json!({"metadata": {"name": name}});
        FakeCluster::with([
            ("/apis/apps/v1/namespaces/drydock/daemonsets", named("drydock-agent")),
            (
                "/apis/apps/v1/namespaces/drydock/deployments",
                named("drydock-controller"),
            ),
            (
                "/apis/apps/v1/namespaces/drydock-uninstall/daemonsets",
                named("drydock-uninstall-folders"),
            ),
            ("/apis/apiregistration.k8s.io/v1/apiservices", service.clone()),
            (
                "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations",
                migration.clone(),
            ),
            ("/api/v1/nodes", node.clone()),
            ("/api/v1/namespaces/drydock-uninstall/pods", folders.clone()),
            ("/apis/drydock.dev/v1alpha1/hypervisors", named("a")),
        ])
    };
    check_each_write::<Removal>(
        cluster,
        &[
            "DELETE daemonsets/drydock-agent",
            "DELETE deployments/drydock-controller",
            "DELETE apiservices/v1.subresources.kubevirt.io",
            "PATCH virtualmachineinstancemigrations/m",
            "PATCH nodes/a",
            "PATCH nodes/a",
            "PATCH nodes/a/status",
            "DELETE hypervisors/",
        ],
    )
    .await;
}
