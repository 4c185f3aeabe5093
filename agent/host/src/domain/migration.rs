//! How a guest is sent to another libvirt.
//!
//! ```text
//!  migrate() ── a connection of its own ──▶ source's libvirtd ═══ target's libvirtd   (destination)
//!                                               │    QEMU ═══════════ QEMU            (memory)
//!  job(), abort_job(), ... ── the other one ────┘    QEMU ═══════════ NBD server      (disks)
//! ```
//!
//! The migration is peer to peer: the source's libvirtd carries it out, and needs no client for that.
//! So the end of the call says less than it seems to:
//!
//! - `Ok`: the guest stands still on the target, complete; on the source it is shut off (migrated).
//! - [`CallError::Refused`](super::CallError::Refused), `NoDomain`: the source's libvirtd has answered. It
//!   has not begun, or has given up. In most cases the guest goes on at the source; the domain's state says
//!   whether it does. The message is not a reason to decide by: a migration that was given up as it was asked
//!   to may say "canceled by client" or whatever QEMU saw of its socket.
//! - `Lost`, `TimedOut`, `Folder`, `NotStarted`: nothing is known. Also if the call is dropped: that only
//!   hangs up. If the migration had begun it goes on, and a new connection finds it by
//!   [`job`](super::DomainHandle::job) and the domain's state. Only a libvirtd that ends gives up its own
//!   migration, when it begins anew.
//!
//! What is seen (libvirt 9.0 and 11.3; states in brackets):
//!
//! | | events of the source | events of the target |
//! |---|---|---|
//! | on its way | none (running); a `MigrationIteration` for each pass | `Started Migrated` (paused, migrating) |
//! | moved | `Suspended Migrated` (paused, migrating), perhaps `Shutdown`, `Stopped Migrated` (shut off, migrated), `JobCompleted` | `Defined Added`, `Suspended Paused` (paused, user) |
//! | given up before it stood still | **none** | `Stopped Failed`; no domain |
//! | given up after that | `Resumed Migrated` (running, migration canceled); if QEMU itself goes on, `Resumed Unpaused` (running, unpaused) | `Stopped Destroyed` or `Failed`; no domain |
//! | the way between the libvirtds is cut | as the two above | `Stopped Destroyed`; no domain |
//! | by post-copy | `Suspended Migrated`, `Suspended Post-copy` (paused, post-copy), then as when moved | `Defined Added`, `Resumed Post-copy` (running, post-copy), `Resumed Migrated` (running, migrated) |
//!
//! - The target's libvirt says of an incoming migration only that there is one. When it has ended, both have
//!   a [`completed_job`](super::DomainHandle::completed_job); after post-copy, and after a failure, the target
//!   has none.
//! - Whoever was not there when a migration was given up hears nothing of it: only the missing job tells.
//! - A target that had the domain defined before keeps that definition, with or without the guest.
//! - **libvirt refuses `VIR_MIGRATE_POSTCOPY` together with `VIR_MIGRATE_PAUSED`.** So a migration that may be
//!   switched lets the guest run on the target as soon as all of it is there, also if it was not switched, unless
//!   whoever carries the last call puts `VIR_MIGRATE_PAUSED` into it: the target does as that says.
//! - A source that was switched is never resumed: libvirt refuses when it is asked, nothing does it by itself, and
//!   the job cannot be aborted. If the last reply is lost, or a libvirtd dies, libvirt follows both QEMUs to the
//!   end all the same (11.3). If the memory's connection breaks: (paused, post-copy failed) here, (running,
//!   post-copy failed) there, for good.

use std::ffi::CStr;

use virt_sys as sys;

/// Most MiB/s that libvirt takes: as many as are 2^63 - 1 bytes. It stands for "no limit".
pub(super) const BANDWIDTH_AT_MOST: u64 = (i64::MAX as u64) >> 20;

/// How a guest is to be sent, and where to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// URI of the target's libvirt, as the source's libvirtd reaches it.
    pub destination: String,
    /// URI (`unix:///...`) at which the target's QEMU takes the memory, and the source's connects.
    pub memory: String,
    /// Disks that are copied. All others must be the same disks on both sides.
    pub disks: Option<DiskCopy>,
    /// MiB/s at most, for memory and for each disk, also after a switch to post-copy but for what the guest waits
    /// for; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// The guest may be slowed down until it changes less memory than can be sent.
    pub auto_converge: bool,
    /// The guest may be switched to the target before all of it is there, by
    /// [`start_post_copy`](super::DomainHandle::start_post_copy). Such a migration does not leave the guest
    /// paused at its target, whether or not it is switched: libvirt cannot do both. If the target's last
    /// answer is lost before the switch, the guest runs on both sides, unless the last call was held for that.
    pub post_copy: bool,
    /// Shared disks are taken to be safe though libvirt sees a cache or a file system that is not.
    pub allow_unsafe: bool,
}

/// Disks that are copied to the target, where files or devices of the same size must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCopy {
    /// URI (`unix:///...`) at which the target's QEMU takes the disks.
    pub uri: String,
    /// Their targets in the guest, such as `vda`. At least one.
    pub targets: Vec<String>,
    /// What of them is copied.
    pub content: CopiedContent,
}

/// What of a disk is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiedContent {
    /// All of it.
    Whole,
    /// The top layer: what is below must be the same on both sides.
    TopLayer,
}

impl Migration {
    /// libvirt's flags for it.
    pub(super) fn flags(&self) -> u32 {
        // The guest runs while it is sent, and libvirtd carries it out without its client.
        let mut flags = sys::VIR_MIGRATE_LIVE | sys::VIR_MIGRATE_PEER2PEER;
        // The target defines the domain, so that its state is still there when the guest has ended.
        // The source keeps its definition (no VIR_MIGRATE_UNDEFINE_SOURCE) for the same reason: "shut off
        // (migrated)" is what a launcher or an agent that was away must find.
        flags |= sys::VIR_MIGRATE_PERSIST_DEST;
        // The target does not let the guest run: if its last answer is lost, libvirt resumes the source,
        // and there would be two guests. libvirt refuses that together with post-copy.
        if !self.post_copy {
            flags |= sys::VIR_MIGRATE_PAUSED;
        }
        // A guest whose disk fails stands still. Whoever is to look at that must find it where it happened.
        flags |= sys::VIR_MIGRATE_ABORT_ON_ERROR;
        flags |= match self.disks.as_ref().map(|disks| disks.content) {
            None => 0,
            Some(CopiedContent::Whole) => sys::VIR_MIGRATE_NON_SHARED_DISK,
            Some(CopiedContent::TopLayer) => sys::VIR_MIGRATE_NON_SHARED_INC,
        };
        for (wanted, flag) in [
            (self.auto_converge, sys::VIR_MIGRATE_AUTO_CONVERGE),
            (self.post_copy, sys::VIR_MIGRATE_POSTCOPY),
            // Without it libvirt refuses disks that both sides may have cached.
            (self.allow_unsafe, sys::VIR_MIGRATE_UNSAFE),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        flags
    }

    /// libvirt's parameters for it, in the order in which they are given.
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

/// Value of a parameter of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MigrationParameter<'a> {
    /// An unsigned number of 64 bits.
    Number(u64),
    /// A text.
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
    fn a_guest_is_paused_at_its_target_unless_it_may_be_switched() {
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
    fn each_copied_disk_is_named_by_itself() {
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
