//! A guest has the devices and the firmware of its manifest, and keeps them when it moves.

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::Phase;
use drydock_tests::{
    Cluster,
    guests::{IMAGE, NAMESPACE},
    watching::until_some,
};
use kube::{ResourceExt, api::LogParams};

/// Vendor and device of each PCI device of the manifest: 6300ESB, ICH9 HDA, xHCI, virtio input.
const PRESENT: [&str; 4] = ["8086:25ab", "8086:293e", "1b36:000d", "1af4:1052"];
/// The balloon, which the manifest leaves out.
const ABSENT: &str = "1af4:1045";
/// The Secret with the public key of the guest's users.
const KEYS: &str = "equipped-keys";

fn manifest(name: &str) -> String {
    let list =
        "cd /sys/bus/pci/devices; for d in *; do printf \"%s:%s \" $(cut -c3- $d/vendor) $(cut -c3- $d/device); done";
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         terminationGracePeriodSeconds: 30\n  domain:\n    resources: {{requests: {{memory: 96Mi}}}}\n    devices:\n      \
         disks:\n      - {{name: containerdisk, disk: {{bus: virtio}}}}\n      - {{name: cloudinitdisk, disk: {{bus: virtio}}}}\n      \
         - {{name: files, disk: {{bus: virtio}}}}\n      - {{name: drive, cdrom: {{}}}}\n      \
         interfaces: [{{name: default, bridge: {{}}}}]\n      \
         inputs: [{{name: a, type: tablet, bus: usb}}, {{name: b, type: tablet, bus: virtio}}]\n      \
         watchdog: {{name: dog, i6300esb: {{action: poweroff}}}}\n      sound: {{name: card, model: ich9}}\n      \
         autoattachMemBalloon: false\n  \
         accessCredentials:\n  - sshPublicKey:\n      source: {{secret: {{secretName: {KEYS}}}}}\n      \
         propagationMethod: {{configDrive: {{}}}}\n  networks: [{{name: default, pod: {{}}}}]\n  volumes:\n  \
         - name: containerdisk\n    containerDisk: {{image: {IMAGE}, imagePullPolicy: IfNotPresent}}\n  \
         - name: files\n    secret: {{secretName: {KEYS}, volumeLabel: FILES}}\n  \
         - name: cloudinitdisk\n    cloudInitConfigDrive:\n      userData: |\n        #cloud-config\n        runcmd:\n        \
         - mount -r -t vfat /dev/vdb /mnt\n        \
         - mkdir /tmp/files; mount -r -t iso9660 /dev/vdc /tmp/files\n        \
         - while :; do echo devices $({list}; cat /mnt/openstack/latest/meta_data.json; ls -d /sys/block/sr0; cat /tmp/files/one) end >/dev/console; sleep 2; done &\n"
    )
}

/// Waits until the guest has listed its devices in its present pod.
async fn devices(cluster: &Cluster, name: &str) -> Result<String> {
    until_some("the guest's list of devices", || async {
        let pod = cluster.launcher(name).await?.name_any();
        let parameters = LogParams {
            container: Some("compute".into()),
            ..LogParams::default()
        };
        let log = cluster.pods().logs(&pod, &parameters).await.unwrap_or_default();
        // The login prompt may be on the same line.
        let mut lists = log
            .lines()
            .filter_map(|line| line.split_once("devices ")?.1.strip_suffix(" end"));
        Ok(lists.next_back().map(str::to_owned))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_has_its_devices_and_keeps_them_when_it_moves() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "equipped";
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {KEYS}, namespace: {NAMESPACE}}}\nstringData: {{one: ssh-ed25519 A a}}\n"
    ))?;
    cluster.apply(&manifest(name))?;
    cluster.until_phase(name, Phase::Running).await?;
    let console = cluster.until_console(name, "drydock-guest ready").await?;
    ensure!(console.contains("data=configdrive"), "{console}");
    // It has the address of its pod, as a bridged guest of KubeVirt has.
    let address = cluster
        .until_one_pod(name)
        .await?
        .status
        .and_then(|status| status.pod_ip);
    let address = address.context("its pod has no address")?;
    ensure!(console.contains(&format!("address eth0 {address}/")), "{console}");
    let before = devices(&cluster, name).await?;
    for device in PRESENT {
        ensure!(before.contains(device), "{device} is not among {before}");
    }
    ensure!(!before.contains(ABSENT), "{before}");
    // The files of the Secret are on a disk, and there is a drive without a medium.
    ensure!(before.ends_with("/sys/block/sr0 ssh-ed25519 A a"), "{before}");
    ensure!(before.contains(r#""public_keys":{"0":"ssh-ed25519 A a"}"#), "{before}");

    let migration = cluster.migrate(name).await?;
    cluster.until_migrated(&migration).await?;
    assert_eq!(devices(&cluster, name).await?, before);
    cluster.no_guests().await
}

/// Returns the manifest of a guest that boots by EFI and prints repeatedly whether it did so securely.
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
async fn guest_boots_by_efi_and_keeps_its_firmware_when_it_moves() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    // The disk's boot loader and kernel are signed by Debian, whose key Microsoft vouches for.
    let guests = [
        ("by-efi", false, "Secure boot disabled"),
        ("signed", true, "Secure boot enabled"),
    ];
    for (name, secure, _) in guests {
        cluster.apply(&by_efi(name, secure))?;
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
