//! The instance's status contains data of the guest agent (Debian's QEMU guest agent), before and after a migration.
//!
//! The subresources of the guest agent respond, and freeze and thaw the guest's file systems.

use std::fs;

use anyhow::{Result, ensure};
use drydock_api::kubevirt::{VirtualMachineInstance, names::conditions as types};
use drydock_tests::{
    Cluster,
    guests::{NAMESPACE, condition, instance, spec},
    migrations::node_of,
    watching::{until, until_some},
};
use kube::{
    ResourceExt,
    api::{LogParams, Patch, PatchParams},
};
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
    cluster
        .apply(&instance(name, "agent: on\ncount: 1s").replace("memory: 96Mi", "memory: 128Mi"))
        .await?;
    cluster.until_console(name, "drydock-guest ready").await?;
    let began = until(
        cluster.instances(),
        name,
        "the data of the guest agent in the status",
        has_agent_data,
    )
    .await?;
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
    // In the guest, the address of its first pod is still configured.
    let there = address(&cluster, name).await?;
    assert_ne!(there, interface.ip_address);
    let elsewhere = |instance: &VirtualMachineInstance| {
        let interfaces = instance.status.as_ref().map(|status| status.interfaces.as_slice());
        has_agent_data(instance) && interfaces.is_some_and(|interfaces| interfaces[0].ip_address == there)
    };
    let moved = until(cluster.instances(), name, "the guest's new address", elsewhere).await?;
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

    /// Waits until the status reports that the file systems are frozen, or not.
    async fn until_reported(&self, frozen: bool) -> Result<()> {
        let is_reported = |instance: &VirtualMachineInstance| {
            let status = instance.status.clone().unwrap_or_default();
            (status.fs_freeze_status.as_deref() == Some("frozen")) == frozen
        };
        until(self.cluster.instances(), self.name, "the freeze status", is_reported)
            .await
            .map(drop)
    }
}

/// A guest whose file systems are frozen and thawed.
struct Freezing<'a> {
    cluster: &'a Cluster,
    name: &'a str,
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_agent_responds_to_virtctl_and_freezes_file_systems() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "frozen";
    cluster.apply(&with_file_system(name)).await?;
    cluster.until_console(name, "mounted").await?;
    until(cluster.instances(), name, "the guest agent's data", has_agent_data).await?;
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

    // A freeze without a time is refused with KubeVirt's message.
    let refused = format!("{:#}", guest.put("freeze", &json!({})).unwrap_err());
    ensure!(
        refused.contains("Unfreeze timeout in freeze request is not set"),
        "{refused}"
    );
    let frozen = [("instances/vm/", &*format!("instances/{name}/")), ("5m0s", "10m0s")];
    cluster.documented("deploy/docs/virtctl.md", "kubectl replace --raw", &frozen)?;
    guest.until_reported(true).await?;
    ensure!(guest.is_frozen()?);
    // The guest moves with frozen file systems, and thaws on its new node.
    let migration = cluster.migrate(name).await?;
    cluster.until_migrated(&migration).await?;
    until(cluster.instances(), name, "the guest agent's new data", has_agent_data).await?;
    guest.until_reported(true).await?;
    ensure!(guest.is_frozen()?, "the migration thawed the guest");
    guest.put("unfreeze", &json!({}))?;
    guest.until_reported(false).await?;
    ensure!(!guest.is_frozen()?);

    // After the time, a new agent thaws the file systems, although its predecessor froze them.
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

/// Returns the manifest of a machine whose guest agent sets the keys and the password of root. The guest prints both.
fn with_credentials(name: &str) -> String {
    let credential = |kind: &str, secret: &str, by: &str| {
        format!(
            "- {kind}:\n    source: {{secret: {{secretName: {secret}}}}}\n    propagationMethod: {{qemuGuestAgent: {{{by}}}}}\n"
        )
    };
    let keys = credential("sshPublicKey", "agent-keys", "users: [root]");
    let passwords = credential("userPassword", "agent-passwords", "");
    let spec = spec("agent: on\ncount: 1s", 0)
        .replace("memory: 96Mi", "memory: 128Mi")
        .replace("\nvolumes:\n", &format!("\naccessCredentials:\n{keys}{passwords}volumes:\n"))
        .replace(
            "      drydock:\n",
            "      runcmd:\n      - while :; do echo keys $(cat /root/.ssh/authorized_keys) of $(sed -n 's/^root:\\([^:]*\\).*/\\1/p' /etc/passwd) end \
             >/dev/console; sleep 2; done &\n      drydock:\n",
        );
    let spec: String = spec.lines().map(|line| format!("      {line}\n")).collect();
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  runStrategy: Always\n  template:\n    spec:\n{spec}"
    )
}

/// Returns the manifests of the machine's Secrets.
fn secrets(key: &str, password: &str) -> String {
    [("agent-keys", "one", key), ("agent-passwords", "root", password)]
        .map(|(name, file, content)| {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nstringData: {{{file}: {content}}}\n"
            )
        })
        .join("---\n")
}

/// Returns whether the guest has the credentials, according to its status.
fn is_synchronized(instance: &VirtualMachineInstance) -> bool {
    condition(instance, types::ACCESS_CREDENTIALS_SYNCHRONIZED).0 == "True"
}

/// Waits until the guest prints this key, and returns the password hash that it prints with the key.
async fn hash_beside(cluster: &Cluster, name: &str, key: &str) -> Result<String> {
    until_some("the guest's credentials", || async {
        let pod = cluster.launcher(name).await?.name_any();
        let parameters = LogParams {
            container: Some("compute".into()),
            ..LogParams::default()
        };
        let log = cluster.pods().logs(&pod, &parameters).await.unwrap_or_default();
        let last = log
            .lines()
            .filter_map(|line| line.split_once("keys ")?.1.strip_suffix(" end"));
        let last = last.filter_map(|line| line.split_once(" of ")).next_back();
        Ok(last.filter(|(keys, _)| *keys == key).map(|(_, hash)| hash.to_owned()))
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn credentials_set_by_the_guest_agent_follow_the_secrets() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let name = "trusted";
    cluster.apply(&secrets("ssh-ed25519 A a", "first")).await?;
    cluster.apply(&with_credentials(name)).await?;
    cluster.until_console(name, "drydock-guest ready").await?;
    until(cluster.instances(), name, "the credentials", is_synchronized).await?;
    let first = hash_beside(&cluster, name, "ssh-ed25519 A a").await?;
    ensure!(!first.is_empty(), "root has no password");

    let migration = cluster.migrate(name).await?;
    cluster.until_migrated(&migration).await?;
    hash_beside(&cluster, name, "ssh-ed25519 A a").await?;
    until(
        cluster.instances(),
        name,
        "the credentials of the guest on the other node",
        is_synchronized,
    )
    .await?;

    // virtctl refuses to change Secrets that are not owned by the machine, unless it is forced.
    let of_root = ["--user", "root", "--force", name];
    let credentials = |arguments: &[&str]| cluster.virtctl(&[&["credentials"], arguments, &of_root].concat());
    credentials(&["add-ssh-key", "--value", "ssh-ed25519 B b"])?;
    credentials(&["remove-ssh-key", "--value", "ssh-ed25519 A a"])?;
    credentials(&["set-password", "--password", "second"])?;
    // The kubelet updates the Secrets in a pod when it synchronizes the pod; a change of the pod triggers that.
    let pod = cluster.launcher(name).await?.name_any();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"drydock.test/secrets": "changed"}}}));
    cluster.pods().patch(&pod, &PatchParams::default(), &patch).await?;
    let second = hash_beside(&cluster, name, "ssh-ed25519 B b").await?;
    assert_ne!(first, second);
    until(cluster.instances(), name, "the new credentials", is_synchronized).await?;
    cluster.kubectl(&["delete", "vm", name])?;
    cluster.no_guests().await
}
