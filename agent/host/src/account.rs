//! The account as which a private libvirtd runs.

use nix::unistd::{Gid, Uid, User, geteuid};

/// The account as which libvirtd runs.
#[derive(Debug)]
pub(crate) struct Account {
    /// Its user.
    pub(crate) uid: Uid,
    /// Its group.
    pub(crate) gid: Gid,
}

impl Account {
    /// The account of guests where there is one, else one that may nothing; `None` if this process
    /// is not root and cannot choose.
    pub(crate) fn find() -> Option<Self> {
        /// The uid of guests in launcher images, whatever its name.
        const GUEST: u32 = 107;
        if !geteuid().is_root() {
            return None;
        }
        let named = |name| User::from_name(name).ok().flatten();
        let user = named("qemu")
            .or_else(|| User::from_uid(Uid::from_raw(GUEST)).ok().flatten())
            .or_else(|| named("libvirt-qemu"))
            .or_else(|| named("nobody"));
        user.filter(|user| !user.uid.is_root()).map(|user| Self {
            uid: user.uid,
            gid: user.gid,
        })
    }
}
