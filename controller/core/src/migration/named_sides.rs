//! The pods that are the sides of a migration, and the data that both sides need.

use std::sync::Arc;

use drydock_api::kubevirt::{
    VirtualMachineInstance, VirtualMachineInstanceMigration,
    migration::{MigratedGuest, MigrationConfiguration, MigrationSource, MigrationTarget},
};
use k8s_openapi::api::core::v1::Pod;

use super::target_pods::pod_of;
use crate::{
    configuration::MigrationSettings, default_cpu::has_hosts_own, instance::ending::ended,
    launcher_pod::image_identity, migratable, placement::NodeView, processor,
};

/// Both sides of a migration, named once.
#[derive(Clone, Debug, PartialEq)]
pub struct Sides {
    /// Node, pod name and pod UID of the source.
    pub source: [String; 3],
    /// Node, pod name and pod UID of the target.
    pub target: [String; 3],
    /// Requirements of the guest on the target.
    pub guest: MigratedGuest,
    /// Limits and permissions of the migration.
    pub configuration: MigrationConfiguration,
}

impl Sides {
    /// Returns both sides of a migration: the pod that was created for it, and the pod of the VMI on the node where the
    /// guest runs. `source` is that node, if known, `settings` the configuration in force.
    ///
    /// `None` if a side is unknown: the VMI names no node, a pod is missing or has no node, or the guest's pod has ended.
    pub fn of(
        migration: &VirtualMachineInstanceMigration,
        instance: &VirtualMachineInstance,
        pods: &[Arc<Pod>],
        source: Option<&NodeView<'_>>,
        settings: &MigrationSettings,
    ) -> Option<Self> {
        let here = instance.status.as_ref()?.node_name.as_deref()?;
        let node = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
        let side = |pod: &Pod| Some([node(pod)?, pod.metadata.name.clone()?, pod.metadata.uid.clone()?]);
        let arrives = pod_of(migration, pods)?;
        let leaves = pods.iter().find(|pod| {
            pod.metadata.uid != arrives.metadata.uid && node(pod).as_deref() == Some(here) && ended(pod).is_none()
        })?;
        Some(Self {
            source: side(leaves)?,
            target: side(arrives)?,
            guest: guest(instance, arrives, source),
            configuration: configuration(settings),
        })
    }

    pub(super) fn named_source(&self) -> MigrationSource {
        let [node, pod, pod_uid] = self.source.clone().map(Some);
        MigrationSource {
            node,
            pod,
            pod_uid,
            ..MigrationSource::default()
        }
    }

    pub(super) fn named_target(&self) -> MigrationTarget {
        let [node, pod, pod_uid] = self.target.clone().map(Some);
        MigrationTarget {
            node,
            pod,
            pod_uid,
            ..MigrationTarget::default()
        }
    }
}

/// Returns the requirements of a VMI's guest on the `target` pod. `source` is the node on which it runs, if known.
pub fn guest(instance: &VirtualMachineInstance, target: &Pod, source: Option<&NodeView<'_>>) -> MigratedGuest {
    let record = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    MigratedGuest {
        instance_uid: instance.metadata.uid.clone(),
        cpu: record.and_then(|record| record.guest_cpu.clone()),
        processor: has_hosts_own(instance)
            .then(|| source.and_then(|source| source.facts).and_then(processor::identity))
            .flatten(),
        masked_features: source.map(|source| source.masked.to_vec()).unwrap_or_default(),
        virt_type: record.and_then(|record| record.virt_type.clone()),
        copied_disks: migratable::copied_disks(&instance.spec),
        layers_only: image_identity::layers_only(instance, target),
    }
}

/// Returns the limits and permissions of a migration from the configuration in force.
pub fn configuration(migrations: &MigrationSettings) -> MigrationConfiguration {
    let seconds = |duration: Option<std::time::Duration>| {
        Some(duration.map_or(0, |duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)))
    };
    MigrationConfiguration {
        bandwidth_per_migration: migrations.bandwidth.map(|bytes| bytes.to_string()),
        completion_timeout_per_gib: seconds(migrations.completion_timeout_per_gib),
        progress_timeout: seconds(migrations.progress_timeout),
        max_downtime_ms: Some(u64::try_from(migrations.max_downtime.as_millis()).unwrap_or(u64::MAX)),
        allow_auto_converge: Some(migrations.auto_converge),
        allow_post_copy: Some(migrations.post_copy),
        allow_workload_disruption: Some(migrations.workload_disruption),
    }
}

#[cfg(test)]
mod tests;
