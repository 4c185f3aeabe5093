//! A guest has the devices and the firmware of its manifest, and keeps them after a migration.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::Phase;
use drydock_tests::{
    Cluster,
    guests::{IMAGE, NAMESPACE},
    watching::until_some,
};
use kube::{ResourceExt, api::LogParams};
use serde_json::{Value, json};

/// Vendor and device of each PCI device of the manifest: 6300ESB, ICH9 HDA, xHCI, virtio input.
const PRESENT: [&str; 4] = ["8086:25ab", "8086:293e", "1b36:000d", "1af4:1052"];
/// Vendor and device of the balloon, which the manifest disables.
const ABSENT: &str = "1af4:1045";
/// The Secret with the public SSH key of the guest's users.
const KEYS: &str = "equipped-keys";
/// The service account whose token the guest has.
const ACCOUNT: &str = "equipped";

fn manifest(name: &str) -> String {
    let list =
        "cd /sys/bus/pci/devices; for d in *; do printf \"%s:%s \" $(cut -c3- $d/vendor) $(cut -c3- $d/device); done";
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         terminationGracePeriodSeconds: 30\n  domain:\n    resources: {{requests: {{memory: 96Mi}}}}\n    devices:\n      \
         disks:\n      - {{name: containerdisk, disk: {{bus: virtio}}}}\n      - {{name: cloudinitdisk, disk: {{bus: virtio}}}}\n      \
         - {{name: files, disk: {{bus: virtio}}}}\n      - {{name: drive, cdrom: {{}}}}\n      \
         - {{name: token, disk: {{bus: virtio}}}}\n      - {{name: facts, disk: {{bus: virtio}}}}\n      \
         interfaces: [{{name: default, bridge: {{}}}}]\n      \
         inputs: [{{name: a, type: tablet, bus: usb}}, {{name: b, type: tablet, bus: virtio}}]\n      \
         watchdog: {{name: dog, i6300esb: {{action: poweroff}}}}\n      sound: {{name: card, model: ich9}}\n      \
         autoattachMemBalloon: false\n  \
         accessCredentials:\n  - sshPublicKey:\n      source: {{secret: {{secretName: {KEYS}}}}}\n      \
         propagationMethod: {{configDrive: {{}}}}\n  networks: [{{name: default, pod: {{}}}}]\n  volumes:\n  \
         - name: containerdisk\n    containerDisk: {{image: {IMAGE}, imagePullPolicy: IfNotPresent}}\n  \
         - name: files\n    secret: {{secretName: {KEYS}, volumeLabel: FILES}}\n  \
         - name: token\n    serviceAccount: {{serviceAccountName: {ACCOUNT}}}\n  \
         - name: facts\n    downwardAPI:\n      fields:\n      \
         - {{path: namespace, fieldRef: {{fieldPath: metadata.namespace}}}}\n      \
         - {{path: label, fieldRef: {{fieldPath: \"metadata.labels['kubevirt.io']\"}}}}\n  \
         - name: cloudinitdisk\n    cloudInitConfigDrive:\n      userData: |\n        #cloud-config\n        runcmd:\n        \
         - mount -r -t vfat /dev/vdb /mnt\n        \
         - mkdir /tmp/files /tmp/token /tmp/facts; mount -r -t iso9660 /dev/vdc /tmp/files\n        \
         - mount -r -t iso9660 /dev/vde /tmp/facts\n        \
         - while :; do echo devices $({list}; cat /mnt/openstack/latest/meta_data.json; ls -d /sys/block/sr0; cat /tmp/files/one /tmp/facts/namespace /tmp/facts/label) end >/dev/console; \
         mount -r -t iso9660 /dev/vdd /tmp/token && echo token $(cat /tmp/token/token) end >/dev/console; umount /tmp/token; \
         sleep 2; done &\n"
    )
}

/// Waits until the guest has listed its devices in its current pod, and returns the list.
async fn devices(cluster: &Cluster, name: &str) -> Result<String> {
    printed(cluster, name, "devices ").await
}

/// Waits until the guest has printed a line with this prefix in its current pod. Returns the rest of the line.
async fn printed(cluster: &Cluster, name: &str, prefix: &str) -> Result<String> {
    until_some("the guest's lines", || async {
        let pod = cluster.launcher(name).await?.name_any();
        let parameters = LogParams {
            container: Some("compute".into()),
            ..LogParams::default()
        };
        let log = cluster.pods().logs(&pod, &parameters).await.unwrap_or_default();
        // The login prompt may be on the same line.
        let mut lists = log
            .lines()
            .filter_map(|line| line.split_once(prefix)?.1.strip_suffix(" end"));
        Ok(lists.next_back().map(str::to_owned))
    })
    .await
}

/// Returns the name of the pod to which the guest's token is bound, according to the API server.
async fn pod_of_token(cluster: &Cluster, name: &str) -> Result<Option<String>> {
    let token = printed(cluster, name, "token ").await?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let reviewed = cluster.kubectl_with(&["create", "-o", "json"], &review.to_string())?;
    let reviewed: Value = serde_json::from_str(&reviewed)?;
    let user = &reviewed["status"]["user"];
    ensure!(
        user["username"] == format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
        "{}",
        reviewed["status"]
    );
    let pod = &user["extra"]["authentication.kubernetes.io/pod-name"][0];
    Ok(pod.as_str().map(str::to_owned))
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_has_requested_devices_also_after_a_migration() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "equipped";
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {KEYS}, namespace: {NAMESPACE}}}\nstringData: {{one: ssh-ed25519 A a}}\n\
         ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {ACCOUNT}, namespace: {NAMESPACE}}}\n"
    )).await?;
    cluster.apply(&manifest(name)).await?;
    cluster.until_phase(name, Phase::Running).await?;
    let console = cluster.until_console(name, "drydock-guest ready").await?;
    ensure!(console.contains("data=configdrive"), "{console}");
    // The guest has the address of its pod, like a guest of KubeVirt with a bridge.
    let address = cluster
        .until_one_pod(name)
        .await?
        .status
        .and_then(|status| status.pod_ip);
    let address = address.context("the pod has no address")?;
    ensure!(console.contains(&format!("address eth0 {address}/")), "{console}");
    let before = devices(&cluster, name).await?;
    for device in PRESENT {
        ensure!(before.contains(device), "{device} is not among {before}");
    }
    ensure!(!before.contains(ABSENT), "{before}");
    // The disks contain the files of the Secret and those about the pod, and a drive has no medium.
    let expected = format!("/sys/block/sr0 ssh-ed25519 A a{NAMESPACE}virt-launcher");
    ensure!(before.ends_with(&expected), "{before}");
    assert_eq!(
        pod_of_token(&cluster, name).await?,
        Some(cluster.launcher(name).await?.name_any())
    );
    ensure!(before.contains(r#""public_keys":{"0":"ssh-ed25519 A a"}"#), "{before}");

    let migration = cluster.migrate(name).await?;
    cluster.until_migrated(&migration).await?;
    assert_eq!(devices(&cluster, name).await?, before);
    // The guest has the token of its new pod; the token of its first pod is no longer valid.
    assert_eq!(
        pod_of_token(&cluster, name).await?,
        Some(cluster.launcher(name).await?.name_any())
    );
    cluster.no_guests().await
}

/// Returns the manifest of a guest that boots by EFI, and repeatedly prints whether secure boot is enabled.
fn by_efi(name: &str, secure: bool) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         terminationGracePeriodSeconds: 30\n  domain:\n    resources: {{requests: {{memory: 224Mi}}}}\n    \
         firmware: {{bootloader: {{efi: {{secureBoot: {secure}}}}}}}\n    \
         features: {{hyperv: {{relaxed: {{}}, synictimer: {{}}}}}}\n    devices:\n      \
         disks:\n      - {{name: containerdisk, disk: {{bus: virtio}}}}\n      - {{name: cloudinitdisk, disk: {{bus: virtio}}}}\n  volumes:\n  \
         - name: containerdisk\n    containerDisk: {{image: {IMAGE}, imagePullPolicy: IfNotPresent}}\n  \
         - name: cloudinitdisk\n    cloudInitNoCloud:\n      userData: |\n        #cloud-config\n        runcmd:\n        \
         - while :; do echo \"devices $(dmesg | grep -o 'Secure boot [a-z]*$') end\" >/dev/console; sleep 2; done &\n"
    )
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_boots_by_efi_and_keeps_firmware_after_a_migration() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // The disk's boot loader and kernel are signed by Debian, whose key is certified by Microsoft's.
    let guests = [
        ("by-efi", false, "Secure boot disabled"),
        ("signed", true, "Secure boot enabled"),
    ];
    for (name, secure, _) in guests {
        cluster.apply(&by_efi(name, secure)).await?;
    }
    for (name, _, state) in guests {
        cluster.until_phase(name, Phase::Running).await?;
        assert_eq!(devices(&cluster, name).await?, state, "{name}");
        let migration = cluster.migrate(name).await?;
        cluster.until_migrated(&migration).await?;
        assert_eq!(devices(&cluster, name).await?, state, "{name}");
    }
    cluster.no_guests().await
}
