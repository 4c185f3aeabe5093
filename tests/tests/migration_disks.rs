//! Live migrations of real guests and their disks.
//!
//! A shared claim is used in place. A disk on top of an image stays intact even if the image's tag refers to another
//! image by then.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{names::conditions as types, status::MigrationMethod};
use drydock_tests::{
    Cluster,
    cluster::now,
    guests::{Collector, IMAGE, NAMESPACE, instance, only, ticks, without_a_gap},
    migrations::node_of,
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// A directory that nodes share, like an export of a file server.
const SHARED: &str = "/var/lib/drydock-shared/test-migration";

/// Returns the manifest of a pod that writes the guest's image to the shared directory, as a disk.
fn filling_pod(launcher: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: fill, namespace: {NAMESPACE}}}\nspec:\n  restartPolicy: Never\n  \
         containers:\n  - name: fill\n    image: {launcher}\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, 'qemu-img convert -O raw /image/disk/* /shared/disk.img && ls -l /shared']\n    \
         volumeMounts: [{{name: image, mountPath: /image, readOnly: true}}, {{name: shared, mountPath: /shared}}]\n  \
         volumes:\n  - name: image\n    image: {{reference: {IMAGE}, pullPolicy: IfNotPresent}}\n  \
         - name: shared\n    hostPath: {{path: {SHARED}}}\n"
    )
}

/// Returns the manifest of a guest that boots from a shared claim, and has a second, read-only disk.
fn sharing(name: &str, control: &str) -> String {
    let control: String = control.lines().map(|line| format!("          {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: test-shared}}\nspec:\n  capacity: {{storage: 64Mi}}\n  \
         accessModes: [ReadWriteMany]\n  storageClassName: \"\"\n  hostPath: {{path: {SHARED}}}\n  \
         claimRef: {{namespace: {NAMESPACE}, name: test-shared}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: test-shared, namespace: {NAMESPACE}}}\nspec:\n  \
         accessModes: [ReadWriteMany]\n  storageClassName: \"\"\n  volumeName: test-shared\n  \
         resources: {{requests: {{storage: 64Mi}}}}\n---\n\
         apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  terminationGracePeriodSeconds: 30\n  \
         domain:\n    resources: {{requests: {{memory: 96Mi}}}}\n    devices:\n      disks:\n      \
         - {{name: root, disk: {{bus: virtio}}}}\n      - {{name: cloudinitdisk, disk: {{bus: virtio, readonly: true}}}}\n  \
         volumes:\n  - name: root\n    persistentVolumeClaim: {{claimName: test-shared}}\n  \
         - name: cloudinitdisk\n    cloudInitNoCloud:\n      userData: |\n        #cloud-config\n        drydock:\n{control}"
    )
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn shared_claim_is_used_in_place() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let collector = Collector::start(&cluster).await?;
    let node = cluster.first().to_owned();
    let name = "sharing";
    let outcome = async {
        cluster.on_node(&node, &format!("rm -rf {SHARED}; mkdir -m 0777 {SHARED}"))?;
        let deployment =
            cluster.kubectl(&["-n", "drydock", "get", "deployment", "drydock-controller", "-o", "json"])?;
        let deployment: serde_json::Value = serde_json::from_str(&deployment)?;
        let settings = deployment["spec"]["template"]["spec"]["containers"][0].to_string();
        let launcher = settings
            .split('"')
            .find(|part| part.contains("/drydock/launcher"))
            .map(|part| part.rsplit_once('=').map_or(part, |(_, image)| image).to_owned())
            .with_context(|| format!("no launcher image in {settings}"))?;
        cluster.kubectl_with(&["create"], &filling_pod(&launcher))?;
        let filled = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
        until(cluster.pods(), "fill", "a disk in the shared folder", filled).await?;
        cluster
            .apply(&sharing(name, &format!("{}\nwrite: 200ms", collector.ticking("50ms"))))
            .await?;
        let boot = collector.first_boot().await?;
        let before = cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
        let method = before.status.as_ref().and_then(|status| status.migration_method);
        assert_eq!(method, Some(MigrationMethod::LiveMigration));
        let migration = cluster.migrate(name).await?;
        let (migration, after) = cluster.until_migrated(&migration).await?;
        ensure!(node_of(&before)? != node_of(&after)?, "the guest has not moved");
        let guest = migration.status.unwrap_or_default().guest.unwrap_or_default();
        ensure!(guest.copied_disks.is_empty(), "{:?} was copied", guest.copied_disks);
        // The guest still writes to the same file.
        let written = || cluster.on_node(&node, &format!("grep -aoE 'tick [0-9]+ boot={boot}' {SHARED}/disk.img"));
        let lines = written()?.lines().count();
        collector.until_more(&boot, 100).await?;
        let all = written()?;
        ensure!(all.lines().count() > lines, "the guest wrote nothing after it moved");
        without_a_gap(&ticks(&all))?;
        without_a_gap(&ticks(&cluster.consoles(name).await?))?;
        without_a_gap(&only(collector.stop().await)?)
    };
    let outcome = outcome.await;
    cluster.no_guests().await?;
    cluster.delete(&["pod", "fill", "--namespace", NAMESPACE, "--force"])?;
    cluster.delete(&["pvc", "test-shared", "--namespace", NAMESPACE])?;
    cluster.delete(&["pv", "test-shared"])?;
    cluster.on_node(&node, &format!("rm -rf {SHARED}"))?;
    outcome
}

/// Prints a checksum of the first disk, bypassing the guest's page cache, in a loop.
const PRINT_SUM: &str = "while :; do echo 3 >/proc/sys/vm/drop_caches; \
     echo \"vda [$(md5sum </dev/vda | head -c 32)] seen\" >/dev/console; sleep 1; done &";

/// Returns the checksums that [`PRINT_SUM`] has printed.
fn sums(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.split_once("vda ["));
    lines.filter_map(|(_, line)| line.strip_suffix("] seen")).collect()
}

/// Starts a guest that prints the checksum of its disk, and returns the first checksum. The disk's image has this name.
async fn start_printing_sum(cluster: &Cluster, name: &str, image: &str) -> Result<String> {
    let control = "drydock:\n";
    let manifest = instance(name, "count: 200ms")
        .replace(IMAGE, image)
        .replace(control, &format!("runcmd:\n        - '{PRINT_SUM}'\n        {control}"));
    cluster.apply(&manifest).await?;
    cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?;
    cluster
        .until_output(name, "the content of its disk", |text| {
            Some(sums(text))
                .filter(|sums| !sums.is_empty())
                .map(|sums| sums[0].to_owned())
        })
        .await
}

/// Waits until the ID of the disk's image is recorded for a guest, and returns it.
async fn recorded_image(cluster: &Cluster, name: &str) -> Result<String> {
    until_some("the image's ID", || async {
        let status = cluster.instances().get(name).await?.status.unwrap_or_default();
        let images = status.drydock.unwrap_or_default().images;
        Ok(images.into_iter().find_map(|record| record.image_id))
    })
    .await
}

/// Returns the last byte of the image in a guest's pod, in hexadecimal.
async fn last_of_image(cluster: &Cluster, name: &str) -> Result<String> {
    let pod = cluster.launcher(name).await?.name_any();
    let script = "tail -c 1 /images/*/disk/* | od -An -tx1";
    let output = cluster.kubectl(&["-n", NAMESPACE, "exec", &pod, "--", "sh", "-c", script])?;
    Ok(output.trim().to_owned())
}

/// Checks that the guest still prints the same checksum of its disk, and that no tick is missing.
async fn disk_is_still(cluster: &Cluster, name: &str, before: &str) -> Result<()> {
    let printed = sums(&cluster.consoles(name).await?).len();
    let after = cluster
        .until_output(name, "the disk's new content", |text| {
            let sums: Vec<_> = sums(text).into_iter().map(str::to_owned).collect();
            (sums.len() > printed + 1).then_some(sums)
        })
        .await?;
    ensure!(after.iter().all(|sum| sum == before), "{after:?} instead of {before}");
    without_a_gap(&ticks(&cluster.consoles(name).await?))
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_moves_with_the_image_digest_of_the_start() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "pinned";
    let (image, _) = IMAGE.rsplit_once(':').context("an image without a tag")?;
    let tag = format!("pinned-{}", now().as_second());
    cluster.retag(image, &["like", "latest", &tag])?;
    let before = start_printing_sum(&cluster, name, &format!("{image}:{tag}")).await?;
    let known = recorded_image(&cluster, name).await?;
    let (repository, digest) = known.split_once('@').context("an ID without a digest")?;
    ensure!(repository.ends_with(image), "{known}");
    let last = last_of_image(&cluster, name).await?;
    cluster.retag(image, &["garbage", &tag])?;

    let migration = cluster.migrate(name).await?;
    let (migration, _) = cluster.until_migrated(&migration).await?;
    let guest = migration.status.unwrap_or_default().guest.unwrap_or_default();
    ensure!(guest.layers_only, "the image was also copied: {guest:?}");
    let volumes = cluster.launcher(name).await?.spec.and_then(|spec| spec.volumes);
    let mut images = volumes.iter().flatten().filter_map(|volume| volume.image.as_ref());
    let reference = images.find_map(|image| image.reference.clone());
    assert_eq!(reference, Some(format!("{image}@{digest}")), "the target's image");
    assert_eq!(
        last_of_image(&cluster, name).await?,
        last,
        "the target has another image"
    );
    disk_is_still(&cluster, name, &before).await?;
    assert_eq!(recorded_image(&cluster, name).await?, known);
    cluster.no_guests().await
}

/// A policy that forbids ephemeral containers in pods, so that no component can determine to which image a tag
/// referred.
const NOTHING_BESIDE: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: nothing-beside}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/ephemeralcontainers]}
  validations: [{expression: "false", message: nothing runs beside}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: nothing-beside}
spec: {policyName: nothing-beside, validationActions: [Deny]}
"#;

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn disk_is_whole_though_the_image_was_replaced() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.apply(NOTHING_BESIDE).await?;
    let outcome = moves_whole(&cluster).await;
    let both = "validatingadmissionpolicies,validatingadmissionpolicybindings";
    cluster.kubectl(&["delete", both, "nothing-beside"])?;
    outcome
}

async fn moves_whole(cluster: &Cluster) -> Result<()> {
    let name = "retagged";
    let agents = cluster.kubectl(&["-n", "drydock", "get", "pods", "-o", "name"])?;
    let some_pod = agents.lines().next().context("no pod of Drydock")?;
    let beside = r#"{"spec":{"ephemeralContainers":[{"name":"beside","image":"beside"}]}}"#;
    until_some("the policy in force", || async {
        let try_it = [
            "-n",
            "drydock",
            "patch",
            some_pod,
            "--subresource=ephemeralcontainers",
            "--dry-run=server",
            "-p",
            beside,
        ];
        let refused = cluster.kubectl(&try_it).err();
        Ok(refused.filter(|error| format!("{error:#}").contains("nothing runs beside")))
    })
    .await?;
    let (image, _) = IMAGE.rsplit_once(':').context("an image without a tag")?;
    // The tag is unique, so no node has an image with this tag from an earlier test.
    let tag = format!("retagged-{}", now().as_second());
    cluster.retag(image, &["like", "latest", &tag])?;
    let before = start_printing_sum(cluster, name, &format!("{image}:{tag}")).await?;
    cluster.retag(image, &["garbage", &tag])?;

    let migration = cluster.migrate(name).await?;
    let (migration, _) = cluster.until_migrated(&migration).await?;
    let guest = migration.status.unwrap_or_default().guest.unwrap_or_default();
    ensure!(
        guest.copied_disks.contains(&"vda".to_owned()) && !guest.layers_only,
        "{guest:?}"
    );
    assert_eq!(
        last_of_image(cluster, name).await?,
        "ff",
        "the target has the same image"
    );
    disk_is_still(cluster, name, &before).await?;
    cluster.no_guests().await
}
