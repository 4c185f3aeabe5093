//! Starts the libvirt call that migrates the guest.

use drydock_api::{
    kubevirt::VirtualMachineInstanceMigration,
    launcher::{MIGRATION_DISKS_SOCKET, MIGRATION_LIBVIRT_SOCKET, MIGRATION_MEMORY_SOCKET, RUN_FOLDER},
};
use drydock_core::migration::{
    convergence::{ConvergenceLimits, Monitor},
    source::MigrateCall,
};
use drydock_host::domain::{CopiedContent, DiskCopy, DomainHandle, DomainState, Migration};
use drydock_runtime::{Key, Severity};
use kube::ResourceExt;
use tracing::info;

use super::{SourceTask, configuration, monitor::limit_downtime, status_patch};

impl SourceTask {
    /// Starts the libvirt call that migrates the guest. The call lasts as long as the migration.
    pub(super) async fn start(&mut self, migration: &VirtualMachineInstanceMigration, handle: DomainHandle) {
        let status = migration.status.clone().unwrap_or_default();
        let guest = status.guest.unwrap_or_default();
        let configuration = configuration(status.migration_state.as_ref());
        let bandwidth = ConvergenceLimits::new(&configuration, 0)
            .ok()
            .and_then(|limits| limits.bandwidth);
        // libvirt refuses to migrate a paused guest in a migration that may be switched to post-copy.
        let stands = matches!(handle.state().await, Ok(DomainState::Paused(_)));
        let socket = |name: &str| format!("unix://{RUN_FOLDER}/{name}");
        let how = Migration {
            destination: format!("qemu+unix:///session?socket={RUN_FOLDER}/{MIGRATION_LIBVIRT_SOCKET}"),
            memory: socket(MIGRATION_MEMORY_SOCKET),
            disks: (!guest.copied_disks.is_empty()).then(|| DiskCopy {
                uri: socket(MIGRATION_DISKS_SOCKET),
                targets: guest.copied_disks.clone(),
                content: if guest.layers_only {
                    CopiedContent::TopLayer
                } else {
                    CopiedContent::Whole
                },
            }),
            // libvirt's unit is MiB/s. Smaller values are rounded up to 1.
            bandwidth: bandwidth.map(|bytes| (bytes >> 20).max(1)),
            auto_converge: configuration.allow_auto_converge.unwrap_or(false),
            post_copy: self.may_be_switched(migration) && !stands,
            allow_unsafe: false,
        };
        if let Ok(limits) = ConvergenceLimits::new(&configuration, 0) {
            limit_downtime(&handle, Monitor::new(limits).initial_downtime()).await;
        }
        info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, "migration job started");
        status_patch::record_event(
            &self.side.shared.events,
            migration,
            Severity::Normal,
            "Migrating",
            "VirtualMachineInstance is migrating.".into(),
        );
        self.call = MigrateCall::Pending;
        self.moving.spawn(async move { handle.migrate(how).await });
    }

    /// Returns whether the guest may be switched to post-copy.
    ///
    /// The configuration must allow the switch, the target must support it, and the tunnel must ensure that a guest
    /// that was not switched arrives paused.
    pub(super) fn may_be_switched(&self, migration: &VirtualMachineInstanceMigration) -> bool {
        let status = migration.status.clone().unwrap_or_default();
        let configuration = configuration(status.migration_state.as_ref());
        let allowed = ConvergenceLimits::new(&configuration, 0)
            .is_ok_and(|limits| limits.post_copy && limits.workload_disruption);
        let target = status.target.is_some_and(|target| target.post_copy);
        let session = self.side.tunnels.session(&migration.uid().unwrap_or_default());
        allowed && target && session.is_some_and(|session| session.state.holds_last_call)
    }
}
