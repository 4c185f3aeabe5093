//! Storage of guests, and data for them: persistent volumes, temporary disks, and cloud-init data from Secrets.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::Phase;
use drydock_tests::{
    Cluster,
    guests::{IMAGE, NAMESPACE},
    watching::until_some,
};

/// Directory of the volumes on the nodes.
const FOLDER: &str = "/var/lib/drydock/test-volumes";
/// Size of the tests' file systems and devices, in MiB.
const SIZE: u32 = 32;
/// The loop device; nodes share the loop devices of the host.
const LOOP: &str = "/dev/loop77";

/// Returns the manifest of a guest whose third disk is `volume`, and which runs `commands` once it has booted.
fn with_disk(name: &str, node: &str, volume: &str, commands: &[&str]) -> String {
    let commands: String = commands
        .iter()
        .map(|command| format!("        - {command}\n"))
        .collect();
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  terminationGracePeriodSeconds: 30\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n  \
         domain:\n    resources: {{requests: {{memory: 96Mi}}}}\n    devices:\n      disks:\n      \
         - {{name: containerdisk, disk: {{bus: virtio}}}}\n      - {{name: cloudinitdisk, disk: {{bus: virtio}}}}\n      \
         - {{name: data, disk: {{bus: virtio}}}}\n  \
         volumes:\n  - name: containerdisk\n    containerDisk: {{image: {IMAGE}, imagePullPolicy: IfNotPresent}}\n  \
         - name: cloudinitdisk\n    cloudInitNoCloud:\n      userData: |\n        #cloud-config\n        runcmd:\n{commands}  \
         - name: data\n    {volume}\n"
    )
}

/// Returns the manifests of a volume on one node and of a claim with the same name that is bound to it.
fn volume(name: &str, node: &str, path: &str, mode: &str) -> String {
    let source = if mode == "Block" { "local" } else { "hostPath" };
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: {SIZE}Mi}}\n  \
         accessModes: [ReadWriteOnce]\n  volumeMode: {mode}\n  storageClassName: \"\"\n  {source}: {{path: {path}}}\n  \
         claimRef: {{namespace: {NAMESPACE}, name: {name}}}\n  nodeAffinity:\n    required:\n      nodeSelectorTerms:\n      \
         - matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]\n\
         ---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  volumeMode: {mode}\n  storageClassName: \"\"\n  volumeName: {name}\n  \
         resources: {{requests: {{storage: {SIZE}Mi}}}}\n"
    )
}

/// Commands with which a guest prints the content of its third disk, writes a marker to it, and prints the content
/// again.
const REMEMBER: [&str; 3] = [
    "echo \"disk holds [$(head -c 8 /dev/vdc | tr -d '\\0')] of $(cat /sys/block/vdc/size) sectors\" >/dev/console",
    "printf REMEMBER | dd of=/dev/vdc conv=notrunc 2>/dev/null && sync",
    "echo \"disk now holds [$(head -c 8 /dev/vdc)]\" >/dev/console",
];

/// Starts the guest twice, deletes it each time, and returns the initial contents of the disk.
async fn twice(cluster: &Cluster, name: &str, manifest: &str) -> Result<[String; 2]> {
    let mut found = [String::new(), String::new()];
    for content in &mut found {
        cluster.apply(manifest).await?;
        let console = cluster.until_console(name, "disk now holds [REMEMBER]").await?;
        let line = console
            .lines()
            .find(|line| line.contains("disk holds"))
            .context("no line of the guest")?;
        *content = line.trim().to_owned();
        cluster.until_phase(name, Phase::Running).await?;
        cluster.delete(&["vmi", name])?;
        cluster.until_gone(name).await?;
        until_some("no pod", || async {
            Ok(cluster.launcher(name).await.is_err().then_some(()))
        })
        .await?;
    }
    Ok(found)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn claim_keeps_written_data_and_empty_disk_does_not() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = cluster.first().to_owned();
    // The volume is a separate file system, as mounted by a storage provider, and not a directory of the node.
    let mount = format!(
        "mkdir -p {FOLDER}/fs && \
         mount -t tmpfs -o size={SIZE}m,uid=107,gid=107 tmpfs {FOLDER}/fs"
    );
    let unmount = format!("umount {FOLDER}/fs; rm -rf {FOLDER}");
    let _ = cluster.on_node(&node, &unmount);
    cluster.on_node(&node, &mount)?;
    cluster
        .apply(&volume("test-files", &node, &format!("{FOLDER}/fs"), "Filesystem"))
        .await?;
    let claim = "persistentVolumeClaim: {claimName: test-files}";
    let kept = twice(&cluster, "keeping", &with_disk("keeping", &node, claim, &REMEMBER)).await;
    let files = cluster.on_node(&node, &format!("ls -ln {FOLDER}/fs; head -c 8 {FOLDER}/fs/disk.img"));
    cluster.delete(&["vmi", "keeping"])?;
    cluster.delete(&["pvc", "test-files", "--namespace", NAMESPACE])?;
    cluster.delete(&["pv", "test-files"])?;
    cluster.on_node(&node, &unmount)?;
    let [first, second] = kept?;
    ensure!(
        first.contains("holds []") && second.contains("holds [REMEMBER]"),
        "{first} / {second}"
    );
    // The disk is as large as the free space permits, and has the same size the second time.
    let sectors = |line: &str| line.rsplit("of ").next().map(str::to_owned);
    assert_eq!(sectors(&first), sectors(&second));
    ensure!(files?.ends_with("REMEMBER"), "the volume lacks the written text");

    let empty = format!("emptyDisk: {{capacity: {SIZE}Mi}}");
    let [first, second] = twice(
        &cluster,
        "forgetting",
        &with_disk("forgetting", &node, &empty, &REMEMBER),
    )
    .await?;
    for line in [first, second] {
        ensure!(
            line.contains("holds []") && line.contains(&format!("{} sectors", SIZE * 2048)),
            "{line}"
        );
    }
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_block_device_is_a_disk() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = cluster.first().to_owned();
    let attach = format!(
        "mkdir -p {FOLDER} && dd if=/dev/zero of={FOLDER}/block.img bs=1M count=0 seek={SIZE} 2>/dev/null && \
         {{ [ -b {LOOP} ] || mknod {LOOP} b 7 77; }} && chown 107:107 {LOOP} && \
         losetup {LOOP} {FOLDER}/block.img"
    );
    let detach = format!("losetup -d {LOOP}; rm -rf {FOLDER} {LOOP}");
    let _ = cluster.on_node(&node, &detach);
    // Containers see a device with its owner on the node, unless containerd is configured otherwise
    // (device_ownership_from_security_context).
    if let Err(error) = cluster.on_node(&node, &attach) {
        println!("SKIPPED the machine has no loop devices: {error:#}");
        return cluster.on_node(&node, &format!("rm -rf {FOLDER} {LOOP}")).map(drop);
    }
    cluster.apply(&volume("test-block", &node, LOOP, "Block")).await?;
    let claim = "persistentVolumeClaim: {claimName: test-block}";
    let kept = twice(&cluster, "blocks", &with_disk("blocks", &node, claim, &REMEMBER)).await;
    cluster.delete(&["vmi", "blocks"])?;
    cluster.delete(&["pvc", "test-block", "--namespace", NAMESPACE])?;
    cluster.delete(&["pv", "test-block"])?;
    let held = cluster.on_node(&node, &format!("head -c 8 {LOOP}"));
    cluster.on_node(&node, &detach)?;
    let [first, second] = kept?;
    ensure!(
        first.contains("holds []") && second.contains("holds [REMEMBER]"),
        "{first} / {second}"
    );
    ensure!(first.contains(&format!("{} sectors", SIZE * 2048)), "{first}");
    assert_eq!(held?, "REMEMBER");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_gets_secrets_and_hostname_by_cloud_init() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: of-user, namespace: {NAMESPACE}}}\nstringData:\n  userdata: |\n    \
         #cloud-config\n    runcmd:\n    - echo 'the secret is out' >/dev/console\n    - ip -4 addr show eth0 >/dev/console\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: of-network, namespace: {NAMESPACE}}}\nstringData:\n  networkdata: |\n    \
         version: 2\n    ethernets:\n      eth0:\n        addresses: [10.0.2.77/24]\n        gateway4: 10.0.2.2\n"
    )).await?;
    let manifest = with_disk("labelled", cluster.first(), "emptyDisk: {capacity: 1Mi}", &["true"]);
    let (before, rest) = manifest.split_once("      userData: |").context("no user data")?;
    let (_, after) = rest.split_once("  - name: data").context("no data")?;
    let manifest = format!(
        "{before}      secretRef: {{name: of-user}}\n      networkDataSecretRef: {{name: of-network}}\n  - name: data{after}"
    )
    .replace("spec:\n", "spec:\n  hostname: itself\n  subdomain: family\n");
    cluster.apply(&manifest).await?;
    let console = cluster.until_console("labelled", "drydock-guest ready").await?;
    for expected in ["hostname=itself", "the secret is out", "10.0.2.77/24"] {
        ensure!(console.contains(expected), "{expected:?} is not in\n{console}");
    }
    // Users without the right to read Secrets cannot see the content of the Secrets.
    let shown = cluster.kubectl(&["get", "vmi,pod", "--namespace", NAMESPACE, "-o", "yaml"])?;
    ensure!(
        !shown.contains("the secret is out"),
        "a Secret's content is in an object"
    );
    cluster.no_guests().await?;
    cluster.delete(&["secret", "of-user", "of-network", "--namespace", NAMESPACE])
}
