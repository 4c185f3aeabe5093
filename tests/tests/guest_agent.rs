//! Data of the guest agent (Debian's QEMU guest agent) is in the instance's status, on the node where the guest
//! started and on the node to which it has moved. The subresources about it respond, and its file systems freeze and thaw.

use std::fs;

use anyhow::{Result, ensure};
use drydock_api::kubevirt::{VirtualMachineInstance, names::conditions as types};
use drydock_tests::{
    Cluster,
    guests::{NAMESPACE, condition, instance},
    migrations::node_of,
    watching::until,
};
use kube::ResourceExt;
use serde_json::{Value, json};

/// Returns whether the status contains the guest agent's data.
fn has_agent_data(instance: &VirtualMachineInstance) -> bool {
    let interface = |instance: &VirtualMachineInstance| instance.status.clone()?.interfaces.first().cloned();
    condition(instance, types::AGENT_CONNECTED).0 == "True"
        && interface(instance).is_some_and(|interface| interface.interface_name.as_deref() == Some("eth0"))
}

/// Returns the address of the guest's current pod.
async fn address(cluster: &Cluster, name: &str) -> Result<Option<String>> {
    let pod = cluster.until_one_pod(name).await?;
    Ok(pod.status.and_then(|status| status.pod_ip))
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_agent_data_is_reported_before_and_after_migration() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "talkative";
    cluster.apply(&instance(name, "agent: on\ncount: 1s").replace("memory: 96Mi", "memory: 128Mi"))?;
    cluster.until_console(name, "drydock-guest ready").await?;
    let began = until(cluster.instances(), name, "to be told of by its agent", has_agent_data).await?;
    let status = began.status.clone().unwrap_or_default();
    let os = &status.guest_os_info;
    assert_eq!(
        (
            os.id.as_deref(),
            os.name.as_deref(),
            os.version_id.as_deref(),
            os.pretty_name.as_deref()
        ),
        (
            Some("drydock-guest"),
            Some("Drydock guest"),
            Some("1"),
            Some("Drydock guest 1")
        )
    );
    ensure!(
        os.kernel_release
            .as_deref()
            .is_some_and(|release| release.contains("cloud")),
        "{os:?}"
    );
    assert_eq!(os.machine.as_deref(), Some("x86_64"));
    let interface = &status.interfaces[0];
    assert_eq!(interface.info_source.as_deref(), Some("domain, guest-agent"));
    assert_eq!(interface.ip_address, address(&cluster, name).await?);

    let migration = cluster.migrate(name).await?;
    cluster.until_migrated(&migration).await?;
    // The guest still has the address of its first pod configured.
    let there = address(&cluster, name).await?;
    assert_ne!(there, interface.ip_address);
    let elsewhere = |instance: &VirtualMachineInstance| {
        let interfaces = instance.status.as_ref().map(|status| status.interfaces.as_slice());
        has_agent_data(instance) && interfaces.is_some_and(|interfaces| interfaces[0].ip_address == there)
    };
    let moved = until(cluster.instances(), name, "to be told of where it is", elsewhere).await?;
    let after = moved.status.unwrap_or_default();
    assert_eq!(&after.guest_os_info, os);
    assert_eq!(after.interfaces[0].info_source, interface.info_source);
    cluster.no_guests().await
}

/// Returns the manifest of a guest with a guest agent and a file system that can be frozen.
fn with_file_system(name: &str) -> String {
    instance(name, "agent: on\ncount: 1s")
        .replace("memory: 96Mi", "memory: 160Mi")
        .replace(
            "  volumes:\n",
            "      - {name: data, disk: {bus: virtio}, serial: freezable}\n  volumes:\n  - {name: data, emptyDisk: {capacity: 16Mi}}\n",
        )
        .replace(
            "        drydock:\n",
            "        runcmd:\n        - mke2fs /dev/vdc && mount -t ext4 /dev/vdc /mnt && echo mounted >/dev/console\n        drydock:\n",
        )
}

impl Freezing<'_> {
    fn path(&self, subresource: &str) -> String {
        let name = self.name;
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/{name}/{subresource}")
    }

    fn get(&self, subresource: &str) -> Result<Value> {
        let document = self.cluster.kubectl(&["get", "--raw", &self.path(subresource)])?;
        Ok(serde_json::from_str(&document)?)
    }

    fn put(&self, subresource: &str, body: &Value) -> Result<String> {
        let path = self.path(subresource);
        self.cluster
            .kubectl_with(&["replace", "--raw", &path], &body.to_string())
    }

    /// Returns whether the file systems are frozen, according to the guest agent itself.
    fn is_frozen(&self) -> Result<bool> {
        Ok(self.get("guestosinfo")?["fsFreezeStatus"] == "frozen")
    }

    /// Waits for the status to report the file systems as frozen, or not.
    async fn until_reported(&self, frozen: bool) -> Result<()> {
        let is_reported = |instance: &VirtualMachineInstance| {
            let status = instance.status.clone().unwrap_or_default();
            (status.fs_freeze_status.as_deref() == Some("frozen")) == frozen
        };
        until(self.cluster.instances(), self.name, "its file systems", is_reported)
            .await
            .map(drop)
    }
}

/// A guest whose file systems are frozen.
struct Freezing<'a> {
    cluster: &'a Cluster,
    name: &'a str,
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_agent_responds_to_virtctl_and_freezes_file_systems() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "frozen";
    cluster.apply(&with_file_system(name))?;
    cluster.until_console(name, "mounted").await?;
    until(cluster.instances(), name, "the data of its agent", has_agent_data).await?;
    let guest = Freezing {
        cluster: &cluster,
        name,
    };

    let info: Value = serde_json::from_str(&cluster.virtctl(&["guestosinfo", name])?)?;
    assert_eq!(info["os"]["id"], "drydock-guest");
    assert_eq!(info["fsFreezeStatus"], "thawed");
    let commands = info["supportedCommands"].as_array().cloned().unwrap_or_default();
    ensure!(
        commands.contains(&json!({"name": "guest-fsfreeze-freeze", "enabled": true})),
        "{info}"
    );
    let list: Value = serde_json::from_str(&cluster.virtctl(&["fslist", name])?)?;
    let systems = list["items"].as_array().cloned().unwrap_or_default();
    let mounted = systems.iter().find(|system| system["mountPoint"] == "/mnt");
    ensure!(
        mounted.is_some_and(|system| system["fileSystemType"] == "ext4" && system["disk"][0]["busType"] == "virtio"),
        "{list}"
    );
    let users: Value = serde_json::from_str(&cluster.virtctl(&["userlist", name])?)?;
    ensure!(users["items"].is_array(), "{users}");
    let picture = std::env::temp_dir().join(format!("drydock-screen-{}.png", std::process::id()));
    cluster.virtctl(&["vnc", "screenshot", name, "--file", &picture.display().to_string()])?;
    let bytes = fs::read(&picture)?;
    fs::remove_file(&picture)?;
    ensure!(bytes.starts_with(b"\x89PNG\r\n"), "{:?}", &bytes[..bytes.len().min(16)]);

    // A freeze without a time is refused, in KubeVirt's words.
    let refused = format!("{:#}", guest.put("freeze", &json!({})).unwrap_err());
    ensure!(
        refused.contains("Unfreeze timeout in freeze request is not set"),
        "{refused}"
    );
    guest.put("freeze", &json!({"unfreezeTimeout": "10m0s"}))?;
    guest.until_reported(true).await?;
    ensure!(guest.is_frozen()?);
    // It moves frozen, and thaws on its new node.
    let migration = cluster.migrate(name).await?;
    cluster.until_migrated(&migration).await?;
    until(cluster.instances(), name, "the data of its agent there", has_agent_data).await?;
    guest.until_reported(true).await?;
    ensure!(guest.is_frozen()?, "it was thawed by its migration");
    guest.put("unfreeze", &json!({}))?;
    guest.until_reported(false).await?;
    ensure!(!guest.is_frozen()?);

    // The agent that acts when the time is over thaws it, although another one was asked to freeze it.
    guest.put("freeze", &json!({"unfreezeTimeout": "20s"}))?;
    guest.until_reported(true).await?;
    let node = node_of(&cluster.instances().get(name).await?)?;
    let agent = cluster.agent_pod(&node).await?.name_any();
    cluster.delete_pod_now("drydock", &agent).await?;
    guest.until_reported(false).await?;
    ensure!(!guest.is_frozen()?);
    cluster
        .until_events("VirtualMachineInstance", name, &["Frozen", "Thawed"])
        .await?;
    cluster.no_guests().await
}
