//! Migration of a guest to another libvirt.
//!
//! ```text
//!  migrate() ── a connection of its own ──▶ source's libvirtd ═══ target's libvirtd   (destination)
//!                                               │    QEMU ═══════════ QEMU            (memory)
//!  job(), abort_job(), ... ── the other one ────┘    QEMU ═══════════ NBD server      (disks)
//! ```
//!
//! The migration is peer to peer: the source's libvirtd performs the migration and needs no client for it. The result
//! of the call therefore has a limited meaning:
//!
//! - `Ok`: the guest is complete and paused on the target; on the source it is shut off (migrated).
//! - [`CallError::Refused`](super::CallError::Refused), `NoDomain`: the source's libvirtd has responded. The
//!   libvirtd has not begun the migration, or has aborted it. In most cases the guest continues at the source; the
//!   domain's state shows whether the guest does. Do not base decisions on the message: a migration that was cancelled
//!   on request may report "canceled by client" or any error that QEMU got from its socket.
//! - `Lost`, `TimedOut`, `Folder`, `NotStarted`: the state of the migration is unknown. The state is also unknown if
//!   the future is dropped, which only closes the connection. A migration that had begun continues. A new connection
//!   finds the migration with [`job`](super::DomainHandle::job) and the domain's state. Only a libvirtd that exits
//!   cancels its own migration, when that libvirtd is started again.
//!
//! Observed behaviour (libvirt 9.0 and 11.3; states in parentheses):
//!
//! | | events of the source | events of the target |
//! |---|---|---|
//! | in progress | none (running); a `MigrationIteration` for each pass | `Started Migrated` (paused, migrating) |
//! | succeeded | `Suspended Migrated` (paused, migrating), perhaps `Shutdown`, `Stopped Migrated` (shut off, migrated), `JobCompleted` | `Defined Added`, `Suspended Paused` (paused, user) |
//! | cancelled before the guest was paused | **none** | `Stopped Failed`; no domain |
//! | cancelled after that | `Resumed Migrated` (running, migration canceled); if QEMU itself resumes, `Resumed Unpaused` (running, unpaused) | `Stopped Destroyed` or `Failed`; no domain |
//! | connection between the libvirtds lost | as in the two rows above | `Stopped Destroyed`; no domain |
//! | post-copy | `Suspended Migrated`, `Suspended Post-copy` (paused, post-copy), then as when succeeded | `Defined Added`, `Resumed Post-copy` (running, post-copy), `Resumed Migrated` (running, migrated) |
//!
//! - A guest that is suspended during its migration is (paused, migrating), with the event `Suspended Migrated`, as at
//!   the switch-over. If the migration fails, libvirt resumes the guest.
//! - The target's libvirt reports only that an incoming migration exists. When the migration has ended, both sides have
//!   a [`completed_job`](super::DomainHandle::completed_job). After post-copy, and after a failure, the target has no
//!   completed job.
//! - A client that was not connected when a migration was cancelled receives no event of the cancellation: only the
//!   missing job shows it.
//! - A target that already had the domain defined keeps that definition, with or without the guest.
//! - **libvirt refuses `VIR_MIGRATE_POSTCOPY` together with `VIR_MIGRATE_PAUSED`.** A migration with post-copy
//!   enabled therefore resumes the guest on the target as soon as the guest is complete, even if the migration was
//!   never switched to post-copy. The exception is a tunnel that sets `VIR_MIGRATE_PAUSED` in the last call that the
//!   tunnel forwards: the target obeys this flag.
//! - After the switch to post-copy the source is never resumed: libvirt refuses to resume the source, does not resume
//!   it by itself, and the job cannot be aborted. If the last reply is lost, or a libvirtd dies, libvirt still follows
//!   both QEMUs to the end (11.3). If the memory connection breaks, the result is final: (paused, post-copy failed) at
//!   the source, (running, post-copy failed) at the target.

use std::ffi::CStr;

use virt_sys as sys;

/// Maximum bandwidth in MiB/s that libvirt accepts, which is 2^63 - 1 bytes. libvirt uses it for "no limit".
pub(super) const BANDWIDTH_AT_MOST: u64 = (i64::MAX as u64) >> 20;

/// Parameters of a migration, including its destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// URI of the target's libvirt, as seen by the source's libvirtd.
    pub destination: String,
    /// URI (`unix:///...`) on which the target's QEMU receives the memory, and to which the source's QEMU connects.
    pub memory: String,
    /// Disks to copy. All other disks must be shared by both sides.
    pub disks: Option<DiskCopy>,
    /// Bandwidth limit in MiB/s, for memory and for each disk; `None` for no limit.
    ///
    /// The limit also applies after a switch to post-copy, except to pages that the guest waits for.
    pub bandwidth: Option<u64>,
    /// Allow throttling of the guest until the guest changes less memory than can be sent.
    pub auto_converge: bool,
    /// Allow the switch to the target before all memory has arrived, with
    /// [`start_post_copy`](super::DomainHandle::start_post_copy).
    ///
    /// Such a migration does not leave the guest paused at its target, whether or not it was switched: libvirt cannot
    /// do both. If the target's last response is lost before the switch, the guest runs on both sides, unless the last
    /// call is intercepted to prevent that. libvirt refuses post-copy for a guest that is paused.
    pub post_copy: bool,
    /// Treat shared disks as safe although libvirt detects an unsafe cache mode or file system.
    pub allow_unsafe: bool,
}

/// Disks to copy to the target, where files or devices of the same size must exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCopy {
    /// URI (`unix:///...`) on which the target's QEMU receives the disks.
    pub uri: String,
    /// Target names of the disks in the guest, such as `vda`. At least one.
    pub targets: Vec<String>,
    /// Part of each disk that is copied.
    pub content: CopiedContent,
}

/// Part of a disk that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiedContent {
    /// The whole disk.
    Whole,
    /// The top layer. The layers below must be the same on both sides.
    TopLayer,
}

impl Migration {
    /// Returns libvirt's flags for this migration.
    pub(super) fn flags(&self) -> u32 {
        // The guest runs during the transfer, and libvirtd performs the migration without its client.
        let mut flags = sys::VIR_MIGRATE_LIVE | sys::VIR_MIGRATE_PEER2PEER;
        // The target defines the domain, so that the domain's state still exists when the guest has ended. The source
        // keeps its definition (no VIR_MIGRATE_UNDEFINE_SOURCE) for the same reason: a launcher or an agent that was
        // restarted must find "shut off (migrated)".
        flags |= sys::VIR_MIGRATE_PERSIST_DEST;
        // The target does not resume the guest. Otherwise two guests would run if the target's last response were lost,
        // because libvirt then resumes the source. libvirt refuses this flag together with post-copy.
        if !self.post_copy {
            flags |= sys::VIR_MIGRATE_PAUSED;
        }
        // A guest with a failed disk is paused and must stay on the node where the error occurred.
        flags |= sys::VIR_MIGRATE_ABORT_ON_ERROR;
        flags |= match self.disks.as_ref().map(|disks| disks.content) {
            None => 0,
            Some(CopiedContent::Whole) => sys::VIR_MIGRATE_NON_SHARED_DISK,
            Some(CopiedContent::TopLayer) => sys::VIR_MIGRATE_NON_SHARED_INC,
        };
        for (wanted, flag) in [
            (self.auto_converge, sys::VIR_MIGRATE_AUTO_CONVERGE),
            (self.post_copy, sys::VIR_MIGRATE_POSTCOPY),
            // Without this flag libvirt refuses disks that both sides may have cached.
            (self.allow_unsafe, sys::VIR_MIGRATE_UNSAFE),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        flags
    }

    /// Returns libvirt's parameters for this migration, in the order in which they are passed.
    pub(super) fn parameters(&self) -> Vec<(&'static CStr, MigrationParameter<'_>)> {
        use MigrationParameter::{Number, Text};
        let mut parameters = vec![(sys::VIR_MIGRATE_PARAM_URI, Text(&self.memory))];
        if let Some(bandwidth) = self.bandwidth {
            let bandwidth = Number(bandwidth.min(BANDWIDTH_AT_MOST));
            parameters.push((sys::VIR_MIGRATE_PARAM_BANDWIDTH, bandwidth));
            if self.post_copy {
                parameters.push((sys::VIR_MIGRATE_PARAM_BANDWIDTH_POSTCOPY, bandwidth));
            }
        }
        if let Some(disks) = &self.disks {
            parameters.push((sys::VIR_MIGRATE_PARAM_DISKS_URI, Text(&disks.uri)));
            let targets = disks.targets.iter();
            parameters.extend(targets.map(|target| (sys::VIR_MIGRATE_PARAM_MIGRATE_DISKS, Text(target.as_str()))));
        }
        parameters
    }
}

/// Value of a migration parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MigrationParameter<'a> {
    /// An unsigned 64-bit number.
    Number(u64),
    /// A string.
    Text(&'a str),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(migration: &Migration) -> Vec<(String, String)> {
        let parameters = migration.parameters();
        parameters
            .iter()
            .map(|(name, value)| {
                let value = match value {
                    MigrationParameter::Number(number) => number.to_string(),
                    MigrationParameter::Text(text) => (*text).to_owned(),
                };
                (name.to_str().unwrap().to_owned(), value)
            })
            .collect()
    }

    #[test]
    fn guest_is_paused_at_target_unless_post_copy_is_allowed() {
        for bits in 0..16 {
            let migration = Migration {
                auto_converge: bits & 1 != 0,
                post_copy: bits & 2 != 0,
                allow_unsafe: bits & 4 != 0,
                bandwidth: (bits & 8 != 0).then_some(7),
                ..Migration::default()
            };
            let flags = migration.flags();
            for flag in [
                sys::VIR_MIGRATE_LIVE,
                sys::VIR_MIGRATE_PEER2PEER,
                sys::VIR_MIGRATE_PERSIST_DEST,
                sys::VIR_MIGRATE_ABORT_ON_ERROR,
            ] {
                assert_ne!(flags & flag, 0, "{flag} in {flags:x}");
            }
            assert_eq!(flags & sys::VIR_MIGRATE_PAUSED == 0, migration.post_copy);
            assert_eq!(flags & sys::VIR_MIGRATE_UNDEFINE_SOURCE, 0);
            assert_eq!(flags & sys::VIR_MIGRATE_AUTO_CONVERGE != 0, migration.auto_converge);
            assert_eq!(flags & sys::VIR_MIGRATE_POSTCOPY != 0, migration.post_copy);
            assert_eq!(flags & sys::VIR_MIGRATE_UNSAFE != 0, migration.allow_unsafe);
        }
    }

    #[test]
    fn copied_disks_are_named_in_separate_parameters() {
        let mut migration = Migration {
            memory: "unix:///m".into(),
            disks: Some(DiskCopy {
                uri: "unix:///d".into(),
                targets: vec!["vda".into(), "vdb".into()],
                content: CopiedContent::TopLayer,
            }),
            bandwidth: Some(u64::MAX),
            ..Migration::default()
        };
        let expected = [
            ("migrate_uri", "unix:///m"),
            ("bandwidth", "8796093022207"),
            ("disks_uri", "unix:///d"),
            ("migrate_disks", "vda"),
            ("migrate_disks", "vdb"),
        ];
        assert_eq!(
            names(&migration),
            expected.map(|(name, value)| (name.into(), value.into()))
        );
        let copied = sys::VIR_MIGRATE_NON_SHARED_DISK | sys::VIR_MIGRATE_NON_SHARED_INC;
        assert_eq!(migration.flags() & copied, sys::VIR_MIGRATE_NON_SHARED_INC);
        if let Some(disks) = &mut migration.disks {
            disks.content = CopiedContent::Whole;
        }
        assert_eq!(migration.flags() & copied, sys::VIR_MIGRATE_NON_SHARED_DISK);
        migration.disks = None;
        assert_eq!(migration.flags() & copied, 0);
    }
}
