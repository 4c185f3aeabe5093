//! Tests which objects may be created and changed, on a real API server with the controller's webhooks.

use anyhow::{Context, Result, bail, ensure};
use drydock_tests::{Cluster, watching::until_some};
use serde_json::{Value, json};

/// kubectl output that consists of the names of the objects, one in each line.
const NAMES: &str = "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}";
/// Label of the namespaces of these tests.
const NAMESPACES: &str = "example.com/admission-tests";
const NOBODY: &str = "system:serviceaccount:default:nobody";

/// A namespace of its own for each test, so that no test waits until the namespace of an earlier one is deleted. No pod
/// in it ever runs, since its instances fit no node.
struct TestNamespace {
    cluster: Cluster,
    name: String,
}

impl TestNamespace {
    async fn new() -> Result<Self> {
        let cluster = Cluster::connect().await?;
        cluster.delete(&["namespace", "-l", NAMESPACES, "--wait=false"])?;
        let earlier = cluster.kubectl(&["get", "namespace", "-l", NAMESPACES, "-o", NAMES])?;
        for namespace in earlier.lines() {
            // No other component removes the finalizers of migrations whose status a test has set itself.
            let left = cluster.kubectl(&["-n", namespace, "get", "vmim", "-o", "name"])?;
            for migration in left.lines() {
                let free = r#"{"metadata": {"finalizers": null}}"#;
                // The migration may already be deleted.
                let _ = cluster.kubectl(&["-n", namespace, "patch", migration, "--type=merge", "--patch", free]);
            }
        }
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"generateName": "admission-tests-", "labels": {NAMESPACES: ""}},
        });
        let created = cluster.kubectl_with(&["create", "-o", "jsonpath={.metadata.name}"], &namespace.to_string())?;
        let name = created.trim().to_owned();
        Ok(Self { cluster, name })
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", &self.name];
        all.extend(arguments);
        self.cluster.kubectl(&all)
    }

    fn apply(&self, manifest: &Value, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", &self.name, "apply"];
        all.extend(arguments);
        self.cluster.kubectl_with(&all, &manifest.to_string())
    }

    fn get(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = vec!["get", "-o", "json"];
        all.extend(arguments);
        Ok(serde_json::from_str(&self.kubectl(&all)?)?)
    }

    fn merge(&self, what: [&str; 2], arguments: &[&str], patch: &Value) -> Result<String> {
        let patch = patch.to_string();
        let mut all = vec!["patch", what[0], what[1], "--type=merge", "--patch", &patch];
        all.extend(arguments);
        self.kubectl(&all)
    }
}

/// Returns the message of an expected refusal.
fn refusal(result: Result<String>, what: &str) -> Result<String> {
    match result {
        Ok(output) => bail!("{what} was allowed: {output}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

fn instance(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"example.com/nowhere": "true"},
            "domain": {
                "memory": {"guest": "64Mi"},
                "devices": {
                    "disks": [{"name": "a"}, {"name": "b", "cdrom": {}}],
                    "interfaces": [{"name": "default", "masquerade": {}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "a", "emptyDisk": {"capacity": "1Gi"}},
                {"name": "b", "emptyDisk": {"capacity": "1Gi"}},
            ],
        },
    })
}

fn machine(version: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("kubevirt.io/{version}"),
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Halted", "template": {"metadata": {}, "spec": instance(name)["spec"]}},
    })
}

/// Returns the instance in KubeVirt's documentation of node drains.
fn documented() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1alpha3",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "testvmi-nocloud"},
        "spec": {
            "terminationGracePeriodSeconds": 30,
            "evictionStrategy": "LiveMigrate",
            "domain": {
                "resources": {"requests": {"memory": "1024M"}},
                "devices": {"disks": [
                    {"name": "containerdisk", "disk": {"bus": "virtio"}},
                    {"disk": {"bus": "virtio"}, "name": "cloudinitdisk"},
                ]},
            },
            "volumes": [
                {
                    "name": "containerdisk",
                    "containerDisk": {"image": "kubevirt/fedora-cloud-container-disk-demo:latest"},
                },
                {
                    "name": "cloudinitdisk",
                    "cloudInitNoCloud": {"userData": "#cloud-config\npassword: fedora\nchpasswd: { expire: False }"},
                },
            ],
        },
    })
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn kinds_have_kubevirt_names_and_explanations_in_kubectl() -> Result<()> {
    let place = TestNamespace::new().await?;
    let definitions = place.get(&[
        "customresourcedefinitions",
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancereplicasets.kubevirt.io",
        "virtualmachineinstancemigrations.kubevirt.io",
    ])?;
    for definition in definitions["items"].as_array().context("no definitions")? {
        let name = &definition["metadata"]["name"];
        let served: Vec<&Value> = definition["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["served"] == true)
            .map(|version| &version["name"])
            .collect();
        ensure!(served == ["v1", "v1alpha3"], "{name}: {served:?}");
        for condition in definition["status"]["conditions"].as_array().into_iter().flatten() {
            let good = condition["status"] == "True";
            match condition["type"].as_str().unwrap_or_default() {
                "Established" | "NamesAccepted" => ensure!(good, "{name}: {condition}"),
                // The other conditions report a problem: a schema that is not structural, or an API that needs
                // approval.
                other => ensure!(!good, "{name}: {other}: {condition}"),
            }
        }
    }
    for (short, columns) in [
        ("vm", "NAME AGE STATUS READY REASON"),
        ("vms", "NAME AGE STATUS READY REASON"),
        ("vmi", "NAME AGE PHASE IP NODENAME READY REASON"),
        ("vmis", "NAME AGE PHASE IP NODENAME READY REASON"),
        ("vmirs", "NAME DESIRED CURRENT READY AGE REASON"),
        ("vmim", "NAME PHASE VMI REASON AGE"),
    ] {
        let manifest = match short {
            "vm" | "vms" => machine("v1", "x"),
            "vmi" | "vmis" => instance("x"),
            "vmirs" => json!({
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachineInstanceReplicaSet",
                "metadata": {"name": "x"},
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": {"app": "x"}},
                    "template": {"metadata": {"labels": {"app": "x"}}, "spec": instance("x")["spec"]},
                },
            }),
            _ => migration("x", "x"),
        };
        place.apply(&manifest, &[])?;
        let table = place.kubectl(&["get", short])?;
        let head: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
        ensure!(head.join(" ") == columns, "{short}: {head:?}");
    }
    for (field, expected) in [
        ("vmi.spec.domain.cpu", "CPU topology, model and features"),
        ("vmi.spec.volumes.containerDisk.path", "Path of the disk in the image"),
        ("vm.spec.runStrategy", "Run strategy, which decides when"),
        ("vmirs.spec.selector", "Selector of the VirtualMachineInstances"),
        ("vmim.spec.vmiName", "Name of the VirtualMachineInstance to migrate"),
    ] {
        let explained = place.kubectl(&["explain", field])?;
        ensure!(explained.contains(expected), "{field}: {explained}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn documented_manifests_are_admitted_and_filled_in() -> Result<()> {
    let place = TestNamespace::new().await?;
    let output = place.apply(&documented(), &["--dry-run=server", "-o", "json"])?;
    let admitted: Value = serde_json::from_str(&output)?;
    let spec = &admitted["spec"];
    // The fields in the manifest are unchanged.
    for pointer in [
        "/evictionStrategy",
        "/volumes",
        "/domain/resources",
        "/domain/devices/disks",
    ] {
        let written = documented();
        let written = written["spec"].pointer(pointer);
        ensure!(spec.pointer(pointer) == written, "{pointer}: {spec}");
    }
    ensure!(spec["domain"]["memory"]["guest"] == "1024M", "{spec}");
    ensure!(spec["domain"]["cpu"]["model"] == "host-model", "{spec}");
    ensure!(spec["networks"] == json!([{"name": "default", "pod": {}}]), "{spec}");
    for version in ["v1", "v1alpha3"] {
        for (field, value) in [("runStrategy", json!("Always")), ("running", json!(true))] {
            let mut machine = machine(version, "testvm");
            let fields = machine["spec"].as_object_mut().context("no spec")?;
            fields.remove("runStrategy");
            fields.insert(field.into(), value);
            place.apply(&machine, &["--dry-run=server"])?;
        }
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn all_unsupported_fields_are_refused_by_name_at_once() -> Result<()> {
    let place = TestNamespace::new().await?;
    let mut object = machine("v1", "refused");
    object["spec"]["runStrategy"] = json!("Running");
    object["spec"]["instancetype"] = json!({"name": "u1.small"});
    object["spec"]["dataVolumeTemplates"] = json!([{"metadata": {"name": "x"}, "spec": {}}]);
    let domain = &mut object["spec"]["template"]["spec"]["domain"];
    domain["devices"]["gpus"] = json!([{"name": "gpu", "deviceName": "example.com/gpu"}]);
    domain["cpu"] = json!({"core": 2, "features": [{"name": "aes", "polcy": "require"}]});
    object["spec"]["template"]["spec"]["volumes"][0] =
        json!({"name": "a", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": true}});
    object["spec"]["template"]["metadata"]["annotations"] = json!({"hooks.kubevirt.io/hookSidecars": "[{}]"});
    let message = refusal(place.apply(&object, &["--validate=false"]), "a VM with a GPU")?;
    for expected in [
        "spec.instancetype: not supported by Drydock ",
        "spec.dataVolumeTemplates: not supported by Drydock ",
        "spec.template.spec.domain.devices.gpus: not supported by Drydock ",
        "spec.template.spec.domain.cpu.core: not a field of VirtualMachine; did you mean cores?",
        "spec.template.spec.domain.cpu.features[0].polcy: not a field of VirtualMachine; did you mean policy?",
        "spec.template.metadata.annotations[hooks.kubevirt.io/hookSidecars]: not supported by Drydock ",
        "spec.template.spec.volumes[0].persistentVolumeClaim.hotpluggable: not supported by Drydock ",
        "`Running` is not allowed; allowed: Always, RerunOnFailure, Manual, Once, Halted; did you mean Always?",
    ] {
        ensure!(message.contains(expected), "{expected:?} is not in: {message}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn reapply_changes_nothing_and_other_changes_are_refused() -> Result<()> {
    let place = TestNamespace::new().await?;
    place.apply(&instance("vm"), &[])?;
    let generation = |object: &Value| object["metadata"]["generation"].clone();
    let first = place.get(&["vmi", "vm"])?;
    ensure!(
        first["spec"]["domain"]["devices"]["disks"][0]["disk"]["bus"] == "virtio",
        "{first}"
    );
    // The second apply replaces the lists of the manifest, whose defaults are then filled in again.
    place.apply(&instance("vm"), &[])?;
    let again = place.get(&["vmi", "vm"])?;
    ensure!(generation(&first) == generation(&again), "{first} became {again}");
    let vm = ["vmi", "vm"];
    let strategy = json!({"spec": {"evictionStrategy": "LiveMigrate"}});
    let message = refusal(place.merge(vm, &[], &strategy), "a change of an instance")?;
    ensure!(message.contains("update of VMI object is restricted"), "{message}");
    for label in ["kubevirt.io/nodeName", "kubevirt.io/created-by"] {
        let labels = json!({"metadata": {"labels": {label: "elsewhere"}}});
        let message = refusal(place.merge(vm, &[], &labels), "a label of the system")?;
        ensure!(message.contains("reserved") && message.contains(label), "{message}");
        let mut labelled = instance("other");
        labelled["metadata"]["labels"] = json!({label: "elsewhere"});
        let message = refusal(place.apply(&labelled, &[]), "a new instance with a label of the system")?;
        ensure!(message.contains(label), "{message}");
    }
    place.merge(vm, &[], &json!({"metadata": {"labels": {"app": "db"}}}))?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn status_has_several_writers_and_a_final_phase_is_final() -> Result<()> {
    let place = TestNamespace::new().await?;
    place.apply(&instance("vm"), &[])?;
    let vm = ["vmi", "vm"];
    for manager in ["one", "two"] {
        let status = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm"},
            "status": {"conditions": [{"type": format!("example.com/{manager}"), "status": "True"}]},
        });
        place.apply(
            &status,
            &["--server-side", "--subresource=status", "--field-manager", manager],
        )?;
    }
    let conditions = place.get(&["vmi", "vm"])?["status"]["conditions"].clone();
    for manager in ["one", "two"] {
        let found = conditions.as_array().into_iter().flatten();
        let type_ = format!("example.com/{manager}");
        ensure!(
            found.filter(|condition| condition["type"] == type_).count() == 1,
            "{conditions}"
        );
    }
    let elsewhere = json!({"status": {"nodeName": "example-node", "phase": "Failed"}});
    place.merge(vm, &["--subresource=status"], &elsewhere)?;
    let there = place.kubectl(&[
        "get",
        "vmi",
        "--field-selector=status.nodeName=example-node",
        "-o",
        "name",
    ])?;
    ensure!(there.contains("/vm"), "{there}");
    let other = place.kubectl(&["get", "vmi", "--field-selector=status.nodeName=another", "-o", "name"])?;
    ensure!(other.trim().is_empty(), "{other}");
    for phase in ["Running", "Succeeded"] {
        let status = json!({"status": {"phase": phase}});
        let message = refusal(place.merge(vm, &["--subresource=status"], &status), phase)?;
        ensure!(message.contains("a final phase cannot be changed"), "{message}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn machines_and_replica_sets_are_changed_by_the_rules() -> Result<()> {
    let place = TestNamespace::new().await?;
    place.apply(&machine("v1", "vm"), &[])?;
    let vm = ["vm", "vm"];
    let message = refusal(
        place.merge(vm, &[], &json!({"spec": {"running": true}})),
        "running beside runStrategy",
    )?;
    ensure!(
        message.contains("running and runStrategy are mutually exclusive"),
        "{message}"
    );
    let message = refusal(
        place.merge(vm, &[], &json!({"spec": {"runStrategy": "Sometimes"}})),
        "Sometimes",
    )?;
    ensure!(message.contains("allowed: Always, RerunOnFailure"), "{message}");
    place.merge(vm, &[], &json!({"spec": {"runStrategy": "Manual"}}))?;
    // The template is unchanged, and can be read in both versions.
    let path = format!(
        "/apis/kubevirt.io/v1alpha3/namespaces/{}/virtualmachines/vm",
        place.name
    );
    let old: Value = serde_json::from_str(&place.kubectl(&["get", "--raw", &path])?)?;
    ensure!(old["apiVersion"] == "kubevirt.io/v1alpha3", "{old}");
    ensure!(old["spec"]["template"]["spec"] == instance("vm")["spec"], "{old}");

    let set = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"name": "set"},
        "spec": {
            "replicas": 0,
            "paused": true,
            "selector": {"matchLabels": {"app": "set"}},
            "template": {"metadata": {"labels": {"app": "set"}}, "spec": instance("set")["spec"]},
        },
    });
    place.apply(&set, &[])?;
    place.kubectl(&["scale", "vmirs", "set", "--replicas=3"])?;
    ensure!(place.get(&["vmirs", "set"])?["spec"]["replicas"] == 3);
    let mut wrong = set;
    wrong["spec"]["selector"] = json!({"matchLabels": {"app": "other"}});
    let message = refusal(place.apply(&wrong, &[]), "a selector that does not match")?;
    ensure!(message.contains("labels that spec.selector selects"), "{message}");

    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn only_the_controller_fills_in_missing_instance_fields() -> Result<()> {
    let place = TestNamespace::new().await?;
    place.apply(&instance("vm"), &[])?;
    let fill = json!({"spec": {"schedulerName": "default-scheduler"}});
    let vm = ["vmi", "vm"];
    let administrators = "--as-group=system:masters";
    let somebody = format!("--as={NOBODY}");
    let message = refusal(
        place.merge(vm, &[&somebody, administrators], &fill),
        "somebody's change",
    )?;
    ensure!(message.contains("update of VMI object is restricted"), "{message}");
    let controller = "--as=system:serviceaccount:drydock:drydock-controller";
    place.merge(vm, &[controller, administrators], &fill)?;
    ensure!(place.get(&["vmi", "vm"])?["spec"]["schedulerName"] == "default-scheduler");
    Ok(())
}

fn migration(name: &str, of: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name},
        "spec": {"vmiName": of},
    })
}

const EVACUATION_REFUSED: &str = "metadata.annotations[kubevirt.io/evacuationMigration]: can only be set by";

/// Returns a patch that marks a migration as the evacuation of a node.
fn evacuating(node: &str) -> Value {
    json!({"metadata": {"annotations": {"kubevirt.io/evacuationMigration": node}}})
}

/// Returns a patch of the label with the instance's name.
fn labelled(value: &Value) -> Value {
    json!({"metadata": {"labels": {"kubevirt.io/vmi-name": value}}})
}

/// Checks that the instance and the purpose of a migration cannot be changed while it is in progress.
fn check_in_flight(place: &TestNamespace, vmim: [&str; 2]) -> Result<()> {
    let message = refusal(
        place.merge(vmim, &[], &json!({"spec": {"vmiName": "other"}})),
        "a change of a migration",
    )?;
    ensure!(message.contains("cannot be changed"), "{message}");
    let message = refusal(place.merge(vmim, &[], &labelled(&json!("other"))), "another label")?;
    ensure!(
        message.contains("selector label can't be modified on an in-flight migration"),
        "{message}"
    );
    let message = refusal(place.merge(vmim, &[], &labelled(&Value::Null)), "no label")?;
    ensure!(
        message.contains("selector label can't be removed from an in-flight migration"),
        "{message}"
    );
    let message = refusal(place.merge(vmim, &[], &evacuating("node1")), "a mark of evacuations")?;
    ensure!(message.contains(EVACUATION_REFUSED), "{message}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn migration_is_admitted_once_and_for_movable_instances() -> Result<()> {
    let place = TestNamespace::new().await?;
    let message = refusal(place.apply(&migration("early", "vm"), &[]), "a migration without a VMI")?;
    ensure!(
        message.contains("the VMI \"vm\" does not exist under the cluster"),
        "{message}"
    );
    for name in ["vm", "stuck", "ended"] {
        place.apply(&instance(name), &[])?;
    }
    let stuck = json!({"status": {"conditions": [
        {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "no RWX"},
    ]}});
    place.merge(["vmi", "stuck"], &["--subresource=status"], &stuck)?;
    place.merge(
        ["vmi", "ended"],
        &["--subresource=status"],
        &json!({"status": {"phase": "Failed"}}),
    )?;
    // The webhook's cache may lag, so the webhook recognizes the obstacle to the migration only after a while.
    for (of, expected) in [
        (
            "stuck",
            "Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: no RWX",
        ),
        ("ended", "Cannot migrate VMI in finalized state."),
    ] {
        until_some("the refusal", || async {
            let tried = place.apply(&migration("refused", of), &["--dry-run=server"]);
            Ok(tried
                .is_err_and(|error| format!("{error:#}").contains(expected))
                .then_some(()))
        })
        .await?;
    }
    let mut urgent = migration("urgent", "vm");
    urgent["spec"]["priority"] = json!("system-critical");
    let message = refusal(place.apply(&urgent, &[]), "somebody's priority")?;
    ensure!(message.contains("spec.priority: can only be set by"), "{message}");
    let mut marked = migration("marked", "vm");
    marked["metadata"]["annotations"] = evacuating("node1")["metadata"]["annotations"].clone();
    let message = refusal(place.apply(&marked, &[]), "somebody's evacuation")?;
    ensure!(message.contains(EVACUATION_REFUSED), "{message}");

    place.apply(&migration("move", "vm"), &[])?;
    let made = place.get(&["vmim", "move"])?;
    ensure!(made["metadata"]["labels"]["kubevirt.io/vmi-name"] == "vm", "{made}");
    ensure!(
        made["metadata"]["finalizers"] == json!(["kubevirt.io/migrationJobFinalize"]),
        "{made}"
    );
    until_some("the second migration to be denied", || async {
        let tried = place.apply(&migration("again", "vm"), &["--dry-run=server"]);
        let expected = "in-flight migration detected. Active migration job (move)";
        Ok(tried
            .is_err_and(|error| format!("{error:#}").contains(expected))
            .then_some(()))
    })
    .await?;
    let vmim = ["vmim", "move"];
    check_in_flight(&place, vmim)?;
    // A migration that has ended does not block a new one.
    place.merge(vmim, &["--subresource=status"], &json!({"status": {"phase": "Failed"}}))?;
    place.apply(&migration("again", "vm"), &["--dry-run=server"])?;
    place.merge(vmim, &[], &labelled(&Value::Null))?;
    Ok(())
}
