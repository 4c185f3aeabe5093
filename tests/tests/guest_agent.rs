//! Data of the guest agent (Debian's QEMU guest agent) is in the instance's status, on the node where the guest
//! started and on the node to which it has moved.

use anyhow::{Result, ensure};
use drydock_api::kubevirt::{VirtualMachineInstance, names::conditions as types};
use drydock_tests::{
    Cluster,
    guests::{condition, instance},
    watching::until,
};

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
