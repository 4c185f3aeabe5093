//! Tests which fields of migrations an agent's token may write, with real tokens of the agents on two nodes.
//!
//! The nodes are fake, since real agents would also write. The controller is stopped in the meantime, since it would
//! continue or abort the migrations.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_tests::{Cluster, own_parts::CONTROLLERS, watching::until_some};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

const NAMESPACE: &str = "migration-policy-tests";
/// Names of the nodes, and of the agents' pods on them.
const SOURCE: &str = "zz-source";
const TARGET: &str = "zz-target";
const BYSTANDER: &str = "zz-bystander";
const NODES: [&str; 3] = [SOURCE, TARGET, BYSTANDER];
/// Names of the migrations, each of an instance with the same name.
const UNDER_WAY: &str = "under-way";
const OVER: &str = "over";
/// Name of a role with all rights on migrations, so that only the policy restricts agents.
const ROLE: &str = "migration-policy-tests";

/// Clients with the agents' tokens on the source, the target and an uninvolved node.
struct Sides {
    source: Client,
    target: Client,
    bystander: Client,
}

fn migrations(client: &Client) -> Api<VirtualMachineInstanceMigration> {
    Api::namespaced(client.clone(), NAMESPACE)
}

async fn report(agent: &Client, migration: &str, status: Value) -> kube::Result<()> {
    migrations(agent)
        .patch_status(
            migration,
            &PatchParams::default(),
            &Patch::Merge(json!({ "status": status })),
        )
        .await
        .map(drop)
}

/// Applies a status as the agents do.
async fn apply(agent: &Client, manager: &str, migration: &str, status: Value) -> kube::Result<()> {
    let whole = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": migration},
        "status": status,
    });
    migrations(agent)
        .patch_status(migration, &PatchParams::apply(manager).force(), &Patch::Apply(whole))
        .await
        .map(drop)
}

fn refused(result: kube::Result<()>, what: &str, expected: &str) -> Result<()> {
    match result {
        Ok(()) => anyhow::bail!("{what} was allowed"),
        Err(kube::Error::Api(status)) => {
            ensure!(status.code == 403 || status.code == 422, "{what}: {status:?}");
            ensure!(status.message.contains(expected), "{what}: {}", status.message);
            Ok(())
        }
        Err(other) => Err(other.into()),
    }
}

/// Returns the manifests of fake nodes, each with a pod that looks like that of its agent.
fn invented() -> String {
    let pair = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{unschedulable: true}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: drydock}}\n\
             spec:\n  nodeName: {name}\n  serviceAccountName: drydock-agent\n  \
             tolerations: [{{operator: Exists}}]\n  containers: [{{name: agent, image: nothing}}]\n"
        )
    };
    NODES.map(pair).concat()
}

/// Returns the manifests of an instance that fits no node, and of a migration of it.
fn moved(name: &str) -> String {
    format!(
        "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  nodeSelector: {{example.com/no: where}}\n  domain: {{memory: {{guest: 64Mi}}, devices: {{}}}}\n\
         ---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceMigration\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec: {{vmiName: {name}}}\n"
    )
}

fn more_rights() -> String {
    format!(
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {ROLE}}}\nrules:\n\
         - apiGroups: [kubevirt.io]\n  resources: [virtualmachineinstancemigrations]\n  verbs: [create, patch, delete]\n\
         ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {ROLE}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {ROLE}}}\n\
         subjects: [{{kind: ServiceAccount, name: drydock-agent, namespace: drydock}}]\n"
    )
}

fn controllers(cluster: &Cluster, replicas: u8) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    cluster.kubectl(&["-n", "drydock", "scale", "deployment/drydock-controller", &replicas])?;
    Ok(())
}

async fn prepare(cluster: &Cluster) -> Result<Sides> {
    cluster.kubectl(&["create", "namespace", NAMESPACE])?;
    for name in [UNDER_WAY, OVER] {
        cluster.kubectl_with(&["apply"], &moved(name))?;
    }
    controllers(cluster, 0)?;
    let label = "--selector=app.kubernetes.io/name=drydock-controller";
    cluster.kubectl(&["-n", "drydock", "wait", "--for=delete", "pod", label, "--timeout=180s"])?;
    for (name, phase) in [(UNDER_WAY, "PreparingTarget"), (OVER, "Failed")] {
        let status = json!({
            "phase": phase,
            "guest": {"virtType": "qemu"},
            "source": {"node": SOURCE, "pod": "p1", "podUID": "1"},
            "target": {"node": TARGET, "pod": "p2", "podUID": "2"},
        });
        report(&cluster.client, name, status).await?;
    }
    let started = json!({"source": {"state": "Migrating", "mode": "PreCopy"}, "target": {"state": "Prepared", "address": "192.0.2.1:9445"}});
    report(&cluster.client, OVER, started).await?;
    cluster.kubectl_with(&["apply"], &(invented() + &more_rights()))?;
    let agent = "--as=system:serviceaccount:drydock:drydock-agent";
    until_some("the rights of the test", || async {
        let allowed = cluster.kubectl(&["auth", "can-i", "delete", "vmim", "--namespace", NAMESPACE, agent]);
        Ok(allowed.is_ok().then_some(()))
    })
    .await?;
    Ok(Sides {
        source: cluster.as_agent_in(SOURCE).await?,
        target: cluster.as_agent_in(TARGET).await?,
        bystander: cluster.as_agent_in(BYSTANDER).await?,
    })
}

/// Deletes the objects that the test has created so far.
fn clear(cluster: &Cluster) -> Result<()> {
    cluster.delete(&["clusterrolebinding", ROLE])?;
    cluster.delete(&["clusterrole", ROLE])?;
    for name in NODES {
        cluster.delete(&["pod", name, "--namespace=drydock", "--grace-period=0", "--force"])?;
        cluster.delete(&["node", name])?;
    }
    // No other component removes the finalizers of these objects.
    for (kind, name) in [("vmim", UNDER_WAY), ("vmim", OVER), ("vmi", UNDER_WAY), ("vmi", OVER)] {
        cluster.delete(&[kind, name, "--namespace", NAMESPACE, "--wait=false"])?;
        let free = r#"{"metadata": {"finalizers": null}}"#;
        // The object may already be deleted.
        let _ = cluster.kubectl(&["-n", NAMESPACE, "patch", kind, name, "--type=merge", "--patch", free]);
    }
    cluster.delete(&["namespace", NAMESPACE])
}

async fn try_what_is_the_controllers(sides: &Sides) -> Result<()> {
    let controllers = "all of a migration's status but source and target is the controller's to write";
    for (what, status) in [
        ("the phase", json!({"phase": "Running"})),
        ("no phase", json!({"phase": null})),
        ("the reason", json!({"reason": "Forged"})),
        ("a condition", json!({"conditions": [{"type": "x", "status": "True"}]})),
        (
            "when it was where",
            json!({"phaseTransitionTimestamps": [{"phase": "Pending", "phaseTransitionTimestamp": "2026-01-01T00:00:00Z"}]}),
        ),
        ("what KubeVirt reports", json!({"migrationState": {"completed": true}})),
        ("the guest", json!({"guest": {"virtType": "kvm"}})),
        ("no guest", json!({"guest": null})),
        ("that it is given up", json!({"abort": {"reason": "a", "message": "b"}})),
        ("that the source is gone", json!({"sourceGone": true})),
    ] {
        for agent in [&sides.source, &sides.target] {
            refused(report(agent, UNDER_WAY, status.clone()).await, what, controllers)?;
        }
    }
    let guest_location = "node, pod and podUID of a migration's sides are the controller's to write";
    for (what, side) in [
        ("another pod", json!({"pod": "other"})),
        ("no pod", json!({"pod": null})),
        ("another UID", json!({"podUID": "9"})),
    ] {
        let written = report(&sides.source, UNDER_WAY, json!({ "source": side })).await;
        refused(written, what, guest_location)?;
        let written = report(&sides.target, UNDER_WAY, json!({ "target": side })).await;
        refused(written, what, guest_location)?;
    }
    // The schema forbids this change for every client.
    let elsewhere = json!({"source": {"node": BYSTANDER}});
    let written = report(&sides.source, UNDER_WAY, elsewhere).await;
    refused(
        written,
        "another node",
        "the source node of a migration cannot be changed",
    )
}

async fn try_the_other_side(sides: &Sides) -> Result<()> {
    let not_source = "only write the source of a migration that leaves the node it runs on";
    let not_target = "only write the target of a migration that comes to the node it runs on";
    let side = |state: &str| {
        [
            json!({"state": state}),
            json!({"fingerprint": "aa"}),
            json!({"message": "x"}),
        ]
    };
    for target in side("Prepared") {
        let written = report(&sides.source, UNDER_WAY, json!({ "target": target })).await;
        refused(written, "the target by the source's agent", not_target)?;
    }
    for source in side("Migrating") {
        let written = report(&sides.target, UNDER_WAY, json!({ "source": source })).await;
        refused(written, "the source by the target's agent", not_source)?;
    }
    let nobodys = "only report of migrations from or to the node it runs on, zz-bystander";
    for status in [
        json!({"source": {"state": "Migrating"}}),
        json!({"target": {"state": "Prepared"}}),
        // Even writing the current value is refused.
        json!({"phase": "PreparingTarget"}),
    ] {
        let written = report(&sides.bystander, UNDER_WAY, status).await;
        refused(written, "another node's migration", nobodys)?;
    }
    Ok(())
}

async fn try_the_object(sides: &Sides) -> Result<()> {
    let status_only = "only report the status of a VirtualMachineInstanceMigration";
    let api = migrations(&sides.source);
    let labels = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}, "finalizers": null}}));
    let patched = api.patch(UNDER_WAY, &PatchParams::default(), &labels).await;
    refused(patched.map(drop), "metadata", status_only)?;
    let deleted = api.delete(UNDER_WAY, &kube::api::DeleteParams::default()).await;
    refused(deleted.map(drop), "deleting it", status_only)
}

async fn try_its_own_side(sides: &Sides) -> Result<()> {
    let begins = json!({"source": {
        "state": "Migrating", "fingerprint": "aa", "startTimestamp": "2026-01-01T00:00:00Z", "mode": "PreCopy",
    }});
    apply(&sides.source, "source-agent", UNDER_WAY, begins).await?;
    let prepared = json!({"target": {"state": "Prepared", "fingerprint": "bb", "address": "192.0.2.1:9445"}});
    apply(&sides.target, "target-agent", UNDER_WAY, prepared).await?;
    for (agent, side, field, other) in [
        (&sides.source, "source", "fingerprint", json!("cc")),
        (&sides.source, "source", "fingerprint", Value::Null),
        (&sides.target, "target", "fingerprint", json!("cc")),
        (&sides.target, "target", "address", json!("192.0.2.9:9445")),
    ] {
        let written = report(agent, UNDER_WAY, json!({side: {field: other}})).await;
        refused(written, field, "cannot be changed")?;
    }
    let stands = json!({"source": {
        "state": "Halted",
        "progress": {"summary": "10 %", "dataTotal": 10, "dataProcessed": 1, "dataRemaining": 9},
    }});
    report(&sides.source, UNDER_WAY, stands).await?;
    for state in [json!("Migrating"), Value::Null] {
        let written = report(&sides.source, UNDER_WAY, json!({"source": {"state": state}})).await;
        refused(written, "taking it back", "cannot be withdrawn")?;
    }
    let gone = json!({"target": {"state": "Gone", "reason": "Tried", "message": "by a test"}});
    report(&sides.target, UNDER_WAY, gone).await?;
    let written = report(&sides.target, UNDER_WAY, json!({"target": {"state": "Running"}})).await;
    refused(written, "taking it back", "cannot be withdrawn")
}

async fn try_after_the_end(sides: &Sides) -> Result<()> {
    let over = "of a migration that is over an agent may only write state, reason, message and progress of its side";
    for (agent, what, status) in [
        (&sides.source, "another mode", json!({"source": {"mode": "Paused"}})),
        (&sides.source, "no mode", json!({"source": {"mode": null}})),
        (&sides.source, "a fingerprint", json!({"source": {"fingerprint": "aa"}})),
        (&sides.target, "a fingerprint", json!({"target": {"fingerprint": "aa"}})),
    ] {
        refused(report(agent, OVER, status).await, what, over)?;
    }
    let settled = json!({"state": "Stayed", "reason": "Tried", "message": "by a test"});
    report(&sides.source, OVER, json!({ "source": settled })).await?;
    let settled = json!({"state": "Gone", "reason": "Tried", "message": "by a test"});
    report(&sides.target, OVER, json!({ "target": settled })).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn agent_reports_own_side_of_a_migration_and_decides_nothing() -> Result<()> {
    let cluster = Cluster::connect().await?;
    clear(&cluster)?;
    let tried = async {
        let sides = prepare(&cluster).await?;
        try_what_is_the_controllers(&sides).await?;
        try_the_other_side(&sides).await?;
        try_the_object(&sides).await?;
        try_its_own_side(&sides).await?;
        try_after_the_end(&sides).await
    };
    let tried = tried.await;
    // Other tests need the controller, whatever the result of this test is.
    controllers(&cluster, 2)?;
    cluster.rolled_out(CONTROLLERS)?;
    let cleared = clear(&cluster);
    tried.context("what was tried")?;
    cleared
}
