//! Tests which fields an agent's token may write, with a real token.

use anyhow::{Context, Result, ensure};
use drydock_api::{
    Hypervisor,
    kubevirt::{
        Phase, VirtualMachineInstance,
        names::{self, EVICTION_IN_PROGRESS},
    },
    labels as keys,
};
use drydock_tests::{
    Cluster, agent,
    cluster::now,
    guests::{NAMESPACE, bare_instance},
    watching::until,
};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

async fn patch_node(client: &Client, node: &str, patch: Value) -> Result<(), kube::Error> {
    Api::<Node>::all(client.clone())
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(drop)
}

fn refusal(result: Result<(), kube::Error>, what: &str) -> Result<String> {
    match result {
        Ok(()) => anyhow::bail!("{what} was allowed"),
        Err(kube::Error::Api(status)) => {
            ensure!(status.code == 403 || status.code == 422, "{what}: {status:?}");
            Ok(status.message)
        }
        Err(other) => Err(other.into()),
    }
}

fn label(key: &str) -> Value {
    json!({"metadata": {"labels": {key: "true"}}})
}

/// Returns patches that the policy refuses: description, Node, patch, and a part of the refusal.
fn refused_patches<'a>(own: &'a str, other: &'a str) -> Vec<(&'static str, &'a str, Value, &'static str)> {
    vec![
        (
            "another node",
            other,
            label("cpu-model.node.kubevirt.io/x"),
            "only write the Node it runs on",
        ),
        (
            "a foreign key",
            own,
            label("example.com/x"),
            "may not change these labels: example.com/x",
        ),
        (
            "a similar domain",
            own,
            label("x.kubevirt.io.evil/x"),
            "x.kubevirt.io.evil/x",
        ),
        (
            "a similar prefix",
            own,
            label("cpu-model.node.kubevirt.io.evil/x"),
            "these labels",
        ),
        (
            "a similar key",
            own,
            label("kubevirt.io/sev-custom"),
            "kubevirt.io/sev-custom",
        ),
        (
            "a role",
            own,
            label("node-role.kubernetes.io/control-plane"),
            "these labels",
        ),
        (
            "removing a foreign key",
            own,
            json!({"metadata": {"labels": {"kubernetes.io/os": null}}}),
            "kubernetes.io/os",
        ),
        (
            "the spec",
            own,
            json!({"spec": {"unschedulable": true}}),
            "may not change the spec",
        ),
        (
            "a taint",
            own,
            json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}),
            "may not change the spec",
        ),
        (
            "an annotation",
            own,
            json!({"metadata": {"annotations": {"x": "y"}}}),
            "may not change annotations",
        ),
        (
            "a finalizer",
            own,
            json!({"metadata": {"finalizers": ["example.com/x"]}}),
            "finalizers or owners",
        ),
    ]
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agent_may_label_the_own_node_and_nothing_else() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let (own, other) = (cluster.first(), cluster.second());
    let agent = cluster.as_agent_of(own).await?;
    for prefix in keys::OWNED_PREFIXES.into_iter().chain([keys::GUEST]) {
        patch_node(&agent, own, label(&format!("{prefix}by-a-test"))).await?;
    }
    for key in keys::OWNED_KEYS {
        patch_node(&agent, own, label(key)).await?;
    }
    patch_node(
        &agent,
        own,
        json!({"metadata": {"labels": {(keys::SCHEDULABLE): "true"}}}),
    )
    .await?;

    for (what, node, patch, expected) in refused_patches(own, other) {
        let message = refusal(patch_node(&agent, node, patch).await, what)?;
        ensure!(message.contains(expected), "{what}: {message}");
    }
    let nodes = Api::<Node>::all(agent.clone());
    refusal(
        nodes.delete(other, &DeleteParams::default()).await.map(drop),
        "deleting a node",
    )?;
    let status = nodes
        .patch_status(
            own,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"phase": "x"}})),
        )
        .await;
    refusal(status.map(drop), "a node's status")?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agent_may_write_only_the_own_hypervisor_and_lease() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let (own, other) = (cluster.first(), cluster.second());
    let agent = cluster.as_agent_of(own).await?;
    let hypervisors = Api::<Hypervisor>::all(agent.clone());
    let status = Patch::Merge(json!({"status": {"agentVersion": "forged"}}));
    hypervisors.patch_status(own, &PatchParams::default(), &status).await?;
    let parameters = PatchParams::default();
    let message = refusal(
        hypervisors.patch_status(other, &parameters, &status).await.map(drop),
        "another's Hypervisor",
    )?;
    ensure!(message.contains("only write the Hypervisor"), "{message}");
    refusal(
        hypervisors.delete(own, &DeleteParams::default()).await.map(drop),
        "deleting its Hypervisor",
    )?;

    let leases = Api::<Lease>::namespaced(agent.clone(), "drydock-nodes");
    let holder = Patch::Merge(json!({"metadata": {"annotations": {"by": "a-test"}}}));
    leases.patch(own, &parameters, &holder).await?;
    let message = refusal(
        leases.patch(other, &parameters, &holder).await.map(drop),
        "another's Lease",
    )?;
    ensure!(message.contains("only write the Lease"), "{message}");
    let elsewhere = Api::<Lease>::namespaced(agent, "drydock");
    refusal(
        elsewhere
            .patch("drydock-controller", &parameters, &holder)
            .await
            .map(drop),
        "the controller's Lease",
    )?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agent_may_write_only_events_of_the_own_pod() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let own = cluster.agent_pod(cluster.first()).await?.name_any();
    let others = cluster.agent_pod(cluster.second()).await?.name_any();
    let event = |instance: &str, name: &str| -> Result<Event> {
        Ok(serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NAMESPACE}, "eventTime": MicroTime(now()), "type": "Normal",
            "action": "Test", "reason": "Tested", "reportingController": "drydock-agent", "reportingInstance": instance,
            "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "any", "namespace": NAMESPACE},
        }))?)
    };
    let agents = Api::<Event>::namespaced(cluster.as_agent_of(cluster.first()).await?, NAMESPACE);
    let parameters = PostParams::default();
    agents.create(&parameters, &event(&own, "of-this-agent")?).await?;
    let forged = agents.create(&parameters, &event(&others, "of-another-agent")?).await;
    let message = refusal(forged.map(drop), "an event of another agent")?;
    ensure!(message.contains("only write events reported by"), "{message}");
    let all = Api::<Event>::namespaced(cluster.client.clone(), NAMESPACE);
    all.create(&parameters, &event("kubelet", "of-a-kubelet")?).await?;
    let series = Patch::Merge(json!({"series": {"count": 2, "lastObservedTime": MicroTime(now())}}));
    agents.patch("of-this-agent", &PatchParams::default(), &series).await?;
    let forged = agents.patch("of-a-kubelet", &PatchParams::default(), &series).await;
    let message = refusal(forged.map(drop), "a series of a kubelet's event")?;
    ensure!(message.contains("only write events reported by"), "{message}");
    for name in ["of-this-agent", "of-a-kubelet"] {
        all.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// Creates an instance that fits no node, so that only the test writes its status.
///
/// The administrator sets the node in its status to `node`.
async fn parked(cluster: &Cluster, name: &str, node: &str) -> Result<Api<VirtualMachineInstance>> {
    let manifest = bare_instance(name).replace("spec:\n", "spec:\n  nodeSelector: {example.com/no: where}\n");
    cluster.apply(&manifest).await?;
    cluster.until_phase(name, Phase::Scheduling).await?;
    let status = json!({"status": {
        "nodeName": node,
        // The agent on the node of a pod would look for the pod, so the pod is on another node.
        "activePods": {"0-2": "elsewhere"},
        "phase": "Running",
    }});
    let parameters = PatchParams::default();
    cluster
        .instances()
        .patch_status(name, &parameters, &Patch::Merge(status))
        .await?;
    Ok(Api::namespaced(cluster.as_agent_of(cluster.first()).await?, NAMESPACE))
}

/// A field of a status that an agent may not write: description, status, and a part of the refusal.
type Foreign = (&'static str, Value, &'static str);

/// Returns fields that only the controller may write in the status of an instance on the agent's node.
fn foreign_fields(own: &str, other: &str) -> Vec<Foreign> {
    let controllers = "are the controller's to write";
    vec![
        ("where it runs", json!({"nodeName": other}), controllers),
        ("where it runs, to nowhere", json!({"nodeName": null}), controllers),
        ("its pods", json!({"activePods": {"0-3": own}}), controllers),
        ("the end of its pods", json!({"activePods": null}), controllers),
        ("that it is evacuated", json!({"evacuationNodeName": own}), controllers),
        ("why it ended", json!({"reason": "GuestShutdown"}), controllers),
        ("its class", json!({"qosClass": "Guaranteed"}), controllers),
        (
            "that it succeeded",
            json!({"phase": "Succeeded"}),
            "only make a virtual machine Running",
        ),
        (
            "that it failed",
            json!({"phase": "Failed"}),
            "only make a virtual machine Running",
        ),
        (
            "that it has not run",
            json!({"phase": "Scheduled"}),
            "only make a virtual machine Running",
        ),
        (
            "when it was scheduled",
            json!({"phaseTransitionTimestamps": [{"phase": "Scheduled", "phaseTransitionTimestamp": "2026-01-01T00:00:00Z"}]}),
            "only write when",
        ),
        (
            "the end of another node's pod",
            json!({"drydock": {"endedPods": ["0-2"]}}),
            "only report of pods on the node it runs on",
        ),
        (
            "the end of an unknown pod",
            json!({"drydock": {"endedPods": ["0-9"]}}),
            "only report of pods on the node it runs on",
        ),
        (
            "a claim",
            json!({"volumeStatus": [{"name": "containerdisk", "persistentVolumeClaimInfo": {"claimName": "x"}}]}),
            "claims are the controller's",
        ),
    ]
}

/// Returns a status with the `kept` conditions, and a condition of this type that is true.
fn with_condition(kept: &[Value], type_: &str) -> Value {
    let mut all = kept.to_vec();
    all.retain(|condition| condition["type"] != type_);
    all.push(json!({"type": type_, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}));
    json!({ "conditions": all })
}

/// Returns conditions that only the controller may write, in addition to the `kept` ones.
fn foreign_conditions(kept: &[Value]) -> Vec<Foreign> {
    let with = |type_: &str| with_condition(kept, type_);
    vec![
        (
            "a target for it",
            with("MigrationTargetAvailable"),
            "only write the conditions",
        ),
        (
            "that it is to be fenced",
            with("FencingRequired"),
            "only write the conditions",
        ),
        (
            "that its pod is placed",
            with("PodScheduled"),
            "only write the conditions",
        ),
        ("that it agrees", with("Synchronized"), "only write the conditions"),
    ]
}

/// Checks that a write to the status, a subresource, changes nothing else, and that RBAC grants no other write.
async fn writes_to_the_status_change_nothing_else(cluster: &Cluster, here: &Api<VirtualMachineInstance>) -> Result<()> {
    let parameters = PatchParams::default();
    let before = cluster.instances().get("here").await?;
    let sneaked = json!({"metadata": {"labels": {"x": "y"}, "finalizers": null}, "spec": {"hostname": "x"}, "status": {"phase": "Running"}});
    here.patch_status("here", &parameters, &Patch::Merge(sneaked)).await?;
    let after = cluster.instances().get("here").await?;
    assert_eq!(after.labels(), before.labels());
    assert_eq!(after.finalizers(), before.finalizers());
    assert_eq!(after.spec.hostname, before.spec.hostname);
    let elsewhere = json!({"spec": {"hostname": "x"}});
    refusal(
        here.patch("here", &parameters, &Patch::Merge(elsewhere))
            .await
            .map(drop),
        "the spec",
    )?;
    refusal(
        here.delete("here", &DeleteParams::default()).await.map(drop),
        "deleting it",
    )?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agent_may_report_guests_of_the_own_node_and_decide_nothing() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let (own, other) = (cluster.first(), cluster.second());
    let here = parked(&cluster, "here", own).await?;
    let there = parked(&cluster, "there", other).await?;
    let parameters = PatchParams::default();

    let message = refusal(
        there
            .patch_status(
                "there",
                &parameters,
                &Patch::Merge(json!({"status": {"phase": "Running"}})),
            )
            .await
            .map(drop),
        "another node's guest",
    )?;
    ensure!(message.contains("on the node it runs on"), "{message}");

    // The conditions of the controller and the administrator are kept in each write.
    let listed = here.list(&ListParams::default()).await?;
    let found = listed.items.into_iter().find(|vmi| vmi.name_any() == "here");
    let kept: Vec<Value> = found
        .and_then(|vmi| vmi.status)
        .unwrap_or_default()
        .conditions
        .iter()
        .filter(|condition| condition.type_ != "Ready")
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    for (what, status, expected) in foreign_fields(own, other).into_iter().chain(foreign_conditions(&kept)) {
        let written = here
            .patch_status("here", &parameters, &Patch::Merge(json!({ "status": status })))
            .await;
        let message = refusal(written.map(drop), what)?;
        ensure!(message.contains(expected), "{what}: {message}");
    }
    writes_to_the_status_change_nothing_else(&cluster, &here).await?;

    // The agent may write its own fields.
    for status in [
        with_condition(&kept, "Ready"),
        json!({"guestOSInfo": {"id": "debian"}, "migrationMethod": "BlockMigration"}),
        json!({"interfaces": [{"name": "default", "ipAddress": "10.0.0.1"}]}),
        json!({"volumeStatus": [{"name": "containerdisk", "target": "vda"}]}),
        json!({"drydock": {"virtType": "qemu"}}),
    ] {
        here.patch_status("here", &parameters, &Patch::Merge(json!({ "status": status })))
            .await?;
    }
    // The pod does not exist, so no agent will ever report its end.
    let over = Patch::Merge(json!({"status": {"activePods": null}}));
    for name in ["here", "there"] {
        cluster.instances().patch_status(name, &parameters, &over).await?;
    }
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agent_may_open_the_gate_of_launchers_on_the_own_node_only() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let (own, other) = (cluster.first(), cluster.second());
    let pod = |name: &str, node: &str, label: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{kubevirt.io: {label}}}}}\n\
             spec:\n  nodeName: {node}\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: compute\n    image: busybox\n    \
             imagePullPolicy: IfNotPresent\n    command: [sleep, '3600']\n"
        )
    };
    let manifests = [
        pod("launcher-here", own, "virt-launcher"),
        pod("launcher-there", other, "virt-launcher"),
        pod("other-here", own, "virt-handler"),
    ];
    cluster.kubectl_with(&["create"], &manifests.concat())?;
    for name in ["launcher-here", "launcher-there", "other-here"] {
        until(cluster.pods(), name, "readiness", agent::is_ready).await?;
    }
    let agent = Api::<Pod>::namespaced(cluster.as_agent_of(own).await?, NAMESPACE);
    let parameters = PatchParams::default();
    let gate = Patch::Strategic(json!({"status": {"conditions": [{"type": names::GUEST_RUNNING, "status": "True"}]}}));
    for (name, what) in [
        ("launcher-there", "another node's launcher"),
        ("other-here", "another pod"),
    ] {
        let message = refusal(agent.patch_status(name, &parameters, &gate).await.map(drop), what)?;
        ensure!(message.contains("only write launcher pods"), "{what}: {message}");
    }
    let forged = |type_: &str| json!({"status": {"conditions": [{"type": type_, "status": "False"}]}});
    for (what, patch) in [
        ("that it is ready", forged("Ready")),
        ("that it is disrupted", forged("DisruptionTarget")),
        ("its phase", json!({"status": {"phase": "Failed"}})),
        (
            "its host's address",
            json!({"status": {"hostIP": "10.9.9.9", "hostIPs": [{"$patch": "replace"}, {"ip": "10.9.9.9"}]}}),
        ),
        ("why", json!({"status": {"reason": "Evicted"}})),
        ("its containers", json!({"status": {"containerStatuses": null}})),
        (
            "its labels",
            json!({"metadata": {"labels": {"app": "somebody-elses-service"}}}),
        ),
        (
            "the loss of a label",
            json!({"metadata": {"labels": {"kubevirt.io": null}}}),
        ),
        ("an annotation", json!({"metadata": {"annotations": {"x": "y"}}})),
        (
            "a finalizer",
            json!({"metadata": {"finalizers": ["example.com/stuck"]}}),
        ),
    ] {
        let written = agent
            .patch_status("launcher-here", &parameters, &Patch::Strategic(patch))
            .await;
        let message = refusal(written.map(drop), what)?;
        ensure!(
            message.contains("only write the condition drydock.dev/guest-running"),
            "{what}: {message}"
        );
    }
    agent.patch_status("launcher-here", &parameters, &gate).await?;
    refusal(
        agent.delete("launcher-here", &DeleteParams::default()).await.map(drop),
        "deleting a pod",
    )?;
    cluster.reset().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drydock_reads_no_tenant_secrets_and_enters_no_tenant_pods() -> Result<()> {
    let cluster = Cluster::connect().await?;
    for account in ["drydock-agent", "drydock-controller"] {
        let user = format!("--as=system:serviceaccount:drydock:{account}");
        for (verb, resource, sub) in [
            ("get", "secrets", ""),
            ("list", "secrets", ""),
            ("watch", "secrets", ""),
            ("create", "secrets", ""),
            ("get", "configmaps", ""),
            ("create", "pods", "exec"),
            ("get", "pods", "exec"),
            ("get", "pods", "log"),
            ("patch", "pods", "ephemeralcontainers"),
            ("create", "serviceaccounts", "token"),
            ("impersonate", "users", ""),
        ] {
            // A policy restricts this right: `controller_changes_pods_only_as_necessary`.
            if (account, sub) == ("drydock-controller", "ephemeralcontainers") {
                continue;
            }
            let sub = format!("--subresource={sub}");
            // kubectl exits with status 1 if the access is denied.
            let allowed = cluster.kubectl(&["auth", "can-i", verb, resource, "--namespace", NAMESPACE, &sub, &user]);
            ensure!(allowed.is_err(), "{account} can {verb} {resource} {sub}");
        }
    }
    // Checks that the query itself works, with a right that is granted.
    let user = "--as=system:serviceaccount:drydock:drydock-controller";
    let allowed = cluster.kubectl(&["auth", "can-i", "list", "pods", "--namespace", NAMESPACE, user])?;
    assert_eq!(allowed.trim(), "yes");
    Ok(())
}

/// Returns the manifest of a tenant's pod that fits no node, with these labels.
fn tenants_pod(name: &str, labels: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {NAMESPACE}, labels: {labels}}}
spec:
  nodeSelector: {{no-node: has-this}}
  containers: [{{name: own, image: own}}]
  volumes:
    - {{name: password, secret: {{secretName: password}}}}
    - {{name: disk, image: {{reference: disk}}}}
"
    )
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn controller_changes_pods_only_as_necessary() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let pods = [
        tenants_pod("own", "{}"),
        tenants_pod("like-a-launcher", "{kubevirt.io: virt-launcher}"),
    ];
    cluster.apply(&pods.concat()).await?;
    let outcome = async {
        only_launchers(&cluster).await?;
        only_image_digest_probes(&cluster).await?;
        only_the_deschedulers_annotation(&cluster).await
    }
    .await;
    cluster.kubectl(&["-n", NAMESPACE, "delete", "pod", "own", "like-a-launcher", "--now"])?;
    outcome
}

async fn only_launchers(cluster: &Cluster) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.as_controller().await?, NAMESPACE);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let container = json!([{"name": "first", "image": "own", "securityContext": {"privileged": true}}]);
    for (field, value, expected) in [
        ("/metadata/name", json!("one-more-launcher"), ""),
        ("/metadata/labels", json!({}), "only create launcher pods"),
        ("/spec/automountServiceAccountToken", json!(true), "no token"),
        ("/spec/hostNetwork", json!(true), "share a namespace"),
        ("/spec/hostPID", json!(true), "share a namespace"),
        ("/spec/hostIPC", json!(true), "share a namespace"),
        (
            "/spec/volumes",
            json!([{"name": "root", "hostPath": {"path": "/"}}]),
            "mount a folder",
        ),
        ("/spec/containers", container.clone(), "be privileged"),
        ("/spec/initContainers", container, "be privileged"),
    ] {
        let mut pod = json!({
            "metadata": {"name": "like-a-launcher", "labels": {"kubevirt.io": "virt-launcher"}},
            "spec": {
                "automountServiceAccountToken": false, "hostNetwork": false, "hostPID": false, "hostIPC": false,
                "volumes": [], "initContainers": [], "containers": [{"name": "own", "image": "own"}],
            },
        });
        let place = pod.pointer_mut(field).with_context(|| format!("no {field}"))?;
        *place = value;
        let result = pods.create(&dry_run, &serde_json::from_value(pod)?).await.map(drop);
        if expected.is_empty() {
            result?;
        } else {
            let message = refusal(result, field)?;
            ensure!(message.contains(expected), "{field}: {message}");
        }
    }
    Ok(())
}

async fn only_the_deschedulers_annotation(cluster: &Cluster) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.as_controller().await?, NAMESPACE);
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let proper = json!({"metadata": {"annotations": {EVICTION_IN_PROGRESS: "drydock"}}});
    let annotations = "only change the annotation";
    for (pod, patch, expected) in [
        ("like-a-launcher", &proper, ""),
        ("own", &proper, "only change launcher pods"),
        (
            "like-a-launcher",
            &json!({"metadata": {"annotations": {"other": "yes"}}}),
            annotations,
        ),
        (
            "like-a-launcher",
            &json!({"metadata": {"labels": {"other": "yes"}}}),
            "only change annotations",
        ),
        (
            "like-a-launcher",
            &json!({"metadata": {"finalizers": ["example.com/stays"]}}),
            "only change annotations",
        ),
        (
            "like-a-launcher",
            &json!({"spec": {"containers": [{"name": "own", "image": "other"}]}}),
            "only change annotations",
        ),
        (
            "like-a-launcher",
            &json!({"spec": {"activeDeadlineSeconds": 1}}),
            "only change annotations",
        ),
    ] {
        let result = pods.patch(pod, &dry_run, &Patch::Strategic(patch)).await.map(drop);
        if expected.is_empty() {
            result?;
        } else {
            let what = format!("{pod} {patch}");
            let message = refusal(result, &what)?;
            ensure!(message.contains(expected), "{what}: {message}");
        }
    }
    Ok(())
}

async fn only_image_digest_probes(cluster: &Cluster) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.as_controller().await?, NAMESPACE);
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let probe = |name: &str, volume: &str, more: &Value| {
        let mut container = json!({"name": name, "image": "disk", "command": ["/launcher/usr/bin/x"],
            "volumeMounts": [{"name": volume, "mountPath": "/images/disk"}]});
        for (field, value) in more.as_object().into_iter().flatten() {
            container[field] = value.clone();
        }
        container
    };
    let nothing = &json!({});
    let proper = probe("image-digest-probe-0", "disk", nothing);
    for (pod, container, expected) in [
        ("like-a-launcher", &proper, ""),
        ("own", &proper, "in a launcher pod"),
        (
            "like-a-launcher",
            &probe("debugger", "disk", nothing),
            "only run image digest probes",
        ),
        (
            "like-a-launcher",
            &probe("image-digest-probe-0", "password", nothing),
            "only see images",
        ),
        (
            "like-a-launcher",
            &probe("image-digest-probe-0", "disk", &json!({"command": ["/bin/sh"]})),
            "runs the launcher",
        ),
        (
            "like-a-launcher",
            &probe("image-digest-probe-0", "disk", &json!({"command": null})),
            "runs the launcher",
        ),
        (
            "like-a-launcher",
            &probe(
                "image-digest-probe-0",
                "disk",
                &json!({"envFrom": [{"secretRef": {"name": "password"}}]}),
            ),
            "knows nothing of the pod",
        ),
    ] {
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
        let result = pods.patch_ephemeral_containers(pod, &dry_run, &patch).await.map(drop);
        if expected.is_empty() {
            result?;
        } else {
            let what = format!("{pod} {container}");
            let message = refusal(result, &what)?;
            ensure!(message.contains(expected), "{what}: {message}");
        }
    }
    Ok(())
}
