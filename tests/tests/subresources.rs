//! The commands of KubeVirt's users: virtctl with the aggregated API.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{
    Phase, RunStrategy, VirtualMachine, VirtualMachineInstance, instance::StartStrategy, migration::MigrationPhase,
    names,
};
use drydock_core::subresources::KUBEVIRT_VERSION;
use drydock_tests::{
    Cluster,
    guests::{NAMESPACE, bare_spec},
    migrations::{migrations_of, node_of},
    watching::{until, until_some},
};
use kube::{Api, ResourceExt};
use serde_json::Value;

/// Name of the user whose rights the test changes.
const USER: &str = "ann";

fn machine(name: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  runStrategy: Halted\n  template:\n    spec:\n{}",
        bare_spec(6)
    )
}

fn machines(cluster: &Cluster) -> Api<VirtualMachine> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

async fn until_strategy(cluster: &Cluster, name: &str, strategy: RunStrategy) -> Result<()> {
    let what = format!("run strategy {}", strategy.as_str());
    let wanted = |machine: &VirtualMachine| {
        let status = machine.status.as_ref();
        machine.spec.run_strategy == Some(strategy)
            && status.is_some_and(|status| status.run_strategy == Some(strategy))
            && status.is_some_and(|status| status.state_change_requests.is_empty())
    };
    until(machines(cluster), name, &what, wanted).await.map(drop)
}

/// Migrates the machine `vm` with virtctl, and checks that the guest has moved.
async fn check_move(cluster: &Cluster, started: &VirtualMachineInstance) -> Result<()> {
    cluster
        .until_vm_condition("vm", names::conditions::LIVE_MIGRATABLE, "True")
        .await?;
    let source = node_of(started)?;
    ensure!(
        cluster
            .virtctl(&["migrate", "vm"])?
            .contains("VM vm was scheduled to migrate")
    );
    let migration = until_some("the migration", || async {
        Ok(migrations_of(cluster, "vm").await?.into_iter().next())
    })
    .await?;
    ensure!(
        migration.name_any().starts_with("kubevirt-migrate-vm-"),
        "{}",
        migration.name_any()
    );
    cluster
        .until_migration(&migration.name_any(), MigrationPhase::Succeeded)
        .await?;
    let moved = cluster.instances().get("vm").await?;
    ensure!(node_of(&moved)? != source && moved.uid() == started.uid());
    cluster.virtctl(&["evacuate-cancel", "vm", "vm"])?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn virtctl_starts_moves_restarts_and_stops_a_machine() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.apply(&machine("vm")).await?;
    ensure!(
        cluster
            .virtctl(&["start", "vm", "--dry-run"])?
            .contains("Dry Run execution")
    );
    let halted = machines(&cluster).get("vm").await?;
    ensure!(
        halted.spec.run_strategy == Some(RunStrategy::Halted),
        "a dry run has started the machine"
    );

    // A halted machine can be started with a paused guest.
    cluster.virtctl(&["start", "vm", "--paused"])?;
    until_strategy(&cluster, "vm", RunStrategy::Always).await?;
    let paused = until(
        cluster.instances(),
        "vm",
        "an instance that starts paused",
        |instance| instance.spec.start_strategy == Some(StartStrategy::Paused),
    )
    .await?;
    cluster.virtctl(&["stop", "vm", "--force", "--grace-period=0"])?;
    until_strategy(&cluster, "vm", RunStrategy::Halted).await?;
    cluster.until_gone("vm").await?;

    ensure!(
        cluster
            .virtctl(&["start", "vm"])?
            .contains("VM vm was scheduled to start")
    );
    until_strategy(&cluster, "vm", RunStrategy::Always).await?;
    let started = cluster.until_phase("vm", Phase::Running).await?;
    ensure!(started.uid() != paused.uid() && started.spec.start_strategy.is_none());
    let pod = cluster.launcher("vm").await?;
    ensure!(
        pod.labels().get(names::INSTANCE_ID).is_some_and(|id| id == "vm"),
        "virtctl expose selects no pod"
    );
    let refused = cluster.virtctl_refused(&["start", "vm"])?;
    ensure!(
        refused
            == [
                "Error starting VirtualMachine Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": VM is already running"
            ],
        "{refused:?}"
    );

    check_move(&cluster, &started).await?;

    cluster.virtctl(&["restart", "vm", "--force", "--grace-period=0"])?;
    let again = |instance: &VirtualMachineInstance| {
        instance.uid() != started.uid()
            && instance
                .status
                .as_ref()
                .is_some_and(|status| status.phase == Some(Phase::Running))
    };
    until(cluster.instances(), "vm", "another instance", again).await?;
    until_strategy(&cluster, "vm", RunStrategy::Always).await?;

    cluster.virtctl(&["stop", "vm"])?;
    cluster.until_gone("vm").await?;
    until_strategy(&cluster, "vm", RunStrategy::Halted).await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn virtctl_prints_refusals_like_kubevirt() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let version = cluster.virtctl(&["version"])?;
    ensure!(
        version.contains(&format!(
            "Server Version: version.Info{{GitVersion:\"{KUBEVIRT_VERSION}+drydock."
        )),
        "{version}"
    );
    let absent = "virtualmachine.kubevirt.io \"absent\" not found";
    for (arguments, expected) in [
        (&["start", "absent"][..], format!("Error starting VirtualMachine {absent}")),
        (&["stop", "absent"], format!("error stopping VirtualMachine {absent}")),
        (&["restart", "absent"], format!("error restarting VirtualMachine: {absent}")),
        (&["migrate", "absent"], format!("Error migrating VirtualMachine {absent}")),
        (
            &["evacuate-cancel", "vmi", "absent"],
            "error canceling evacuation for VMI default/absent: virtualmachineinstance.kubevirt.io \"absent\" not found".into(),
        ),
    ] {
        let refused = cluster.virtctl_refused(arguments)?;
        ensure!(refused == [expected.as_str()], "{arguments:?}: {refused:?}");
    }
    cluster.apply(&machine("vm")).await?;
    let why = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\"";
    for (arguments, expected) in [
        (
            &["stop", "vm"][..],
            format!("error stopping VirtualMachine {why}: VM is not running"),
        ),
        (
            &["restart", "vm"],
            format!(
                "error restarting VirtualMachine: {why}: RunStategy Halted does not support manual restart requests"
            ),
        ),
        (
            &["objectgraph", "vm"],
            "error listing object graph of VirtualMachine vm: Drydock does not support object graphs.".into(),
        ),
    ] {
        let refused = cluster.virtctl_refused(arguments)?;
        ensure!(refused == [expected.as_str()], "{arguments:?}: {refused:?}");
    }
    ensure!(
        cluster
            .virtctl(&["expand", "--vm", "vm"])?
            .contains("runStrategy: Halted")
    );

    // A user with the role `edit` in a namespace may start its machines, but not migrate them.
    let refused = cluster.virtctl_refused(&["start", "vm", "--as", USER])?;
    ensure!(
        refused[0].contains(&format!("User \"{USER}\" cannot update resource")),
        "{refused:?}"
    );
    let binding = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: {USER}, namespace: {NAMESPACE}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}}\n\
         subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {USER}}}]\n"
    );
    cluster.apply(&binding).await?;
    until_some("the right to start machines", || async {
        Ok(cluster.virtctl(&["start", "vm", "--dry-run", "--as", USER]).ok())
    })
    .await?;
    let cancel = ["evacuate-cancel", "vm", "vm", "--as", USER];
    let refused = cluster.virtctl_refused(&cancel)?;
    ensure!(refused[0].ends_with("VMI is not started"), "{refused:?}");
    let refused = cluster.virtctl_refused(&["migrate", "vm", "--as", USER])?;
    ensure!(refused[0].contains("virtualmachines/migrate"), "{refused:?}");
    cluster.kubectl(&["-n", NAMESPACE, "delete", "rolebinding", USER])?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn api_is_discovered_and_available() -> Result<()> {
    let cluster = Cluster::connect().await?;
    for version in ["v1", "v1alpha3"] {
        let name = format!("apiservice/{version}.subresources.kubevirt.io");
        cluster.kubectl(&["wait", "--for=condition=Available", &name, "--timeout=60s"])?;
        let text = cluster.kubectl(&["get", "--raw", &format!("/apis/subresources.kubevirt.io/{version}")])?;
        let list: Value = serde_json::from_str(&text)?;
        let resources = list["resources"].as_array().context("no resources")?;
        ensure!(
            resources
                .iter()
                .any(|resource| resource["name"] == "virtualmachines/start"),
            "{text}"
        );
        let health = cluster.kubectl(&[
            "get",
            "--raw",
            &format!("/apis/subresources.kubevirt.io/{version}/healthz"),
        ])?;
        ensure!(health.contains("\"connectivity\":\"ok\""), "{health}");
    }
    until_some("the paths in the merged OpenAPI document", || async {
        let text = cluster.kubectl(&["get", "--raw", "/openapi/v2"])?;
        Ok(text
            .contains("subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/start")
            .then_some(()))
    })
    .await
}
