//! Limits of the kernel on user namespaces, in which a guest's network sandboxes itself.

use crate::roots::Roots;

/// Returns the maximum number of user namespaces per user; `None` if the kernel has no such setting.
pub fn limit(roots: &Roots) -> Option<u64> {
    roots.proc_text("sys/user/max_user_namespaces")?.parse().ok()
}

/// Returns whether users other than root may create a user namespace.
///
/// `None` means that the kernel has no such setting and allows it. The kernels of Debian and Ubuntu have the setting.
pub fn for_everybody(roots: &Roots) -> Option<bool> {
    Some(roots.proc_text("sys/kernel/unprivileged_userns_clone")? != "0")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_settings_are_read_and_may_be_missing() {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-userns-XXXXXX")).unwrap();
        let roots = Roots {
            proc: folder.clone(),
            ..Roots::default()
        };
        assert_eq!((limit(&roots), for_everybody(&roots)), (None, None));
        for part in ["sys/user", "sys/kernel"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        fs::write(folder.join("sys/user/max_user_namespaces"), "96365\n").unwrap();
        fs::write(folder.join("sys/kernel/unprivileged_userns_clone"), "0\n").unwrap();
        assert_eq!((limit(&roots), for_everybody(&roots)), (Some(96365), Some(false)));
        fs::remove_dir_all(folder).unwrap();
    }
}
