//! The account under which a private libvirtd runs.

use nix::unistd::{Gid, Uid, User, geteuid};

/// The account under which libvirtd runs.
#[derive(Debug)]
pub(crate) struct Account {
    /// User ID.
    pub(crate) uid: Uid,
    /// Group ID.
    pub(crate) gid: Gid,
}

impl Account {
    /// Returns the account of guests if the system has one, otherwise an unprivileged account.
    ///
    /// Returns `None` if this process is not root and therefore cannot switch accounts, or if no account is found.
    pub(crate) fn find() -> Option<Self> {
        /// UID of guests in launcher images. The user name may vary.
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
