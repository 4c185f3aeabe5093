//! Whether guests of a node can have a network.
//!
//! passt, which carries a guest's network without any privilege, shuts itself into a user
//! namespace. That takes three things of a node:
//!
//! ```text
//!  seccomp profile    the runtime's default one refuses new user namespaces
//!  user namespaces    the kernel may have them switched off
//!  AppArmor profile   where AppArmor is on: the runtime's default one refuses mounts
//! ```

/// A profile that launcher pods are run under, as found on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Not looked for yet.
    #[default]
    Unknown,
    /// The kernel or the kubelet has it.
    Installed,
    /// This node does without.
    NotNeeded,
    /// It is not there; says why.
    Missing(String),
}

/// What the kernel allows of user namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNamespaces {
    /// `user.max_user_namespaces`: how many each user may have. `None` if the kernel has no such
    /// setting, which is one without user namespaces.
    pub limit: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, which some distributions' kernels have: whether users
    /// other than root may make one.
    pub for_everybody: Option<bool>,
}

/// What an agent sees of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The seccomp profile, in the kubelet's folder.
    pub seccomp: Profile,
    /// What the kernel allows.
    pub user_namespaces: UserNamespaces,
    /// The AppArmor profile, in the kernel. It lets passt make user namespaces also where
    /// `kernel.apparmor_restrict_unprivileged_userns` refuses them to others.
    pub app_armor: Profile,
}

/// Whether guests can have a network, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestNetwork {
    /// They can.
    Available,
    /// They can, under the node's AppArmor profile: a pod that does not name it has no network.
    AvailableWithAppArmor,
    /// Not looked at yet.
    Unknown,
    /// The kubelet has no seccomp profile for launchers.
    SeccompProfileMissing,
    /// The kernel has none, or lets each user have none.
    UserNamespacesOff,
    /// The kernel keeps them for root.
    UserNamespacesForRootOnly,
    /// AppArmor is on and the kernel has no profile for launchers.
    AppArmorProfileMissing,
}

impl GuestNetwork {
    /// Judges what is seen.
    pub fn of(seen: &Seen) -> Self {
        let namespaces = seen.user_namespaces;
        match (&seen.seccomp, &seen.app_armor) {
            // What cannot be mended by an agent comes first.
            _ if namespaces.limit.unwrap_or(0) == 0 => Self::UserNamespacesOff,
            _ if namespaces.for_everybody == Some(false) => Self::UserNamespacesForRootOnly,
            (Profile::Missing(_), _) => Self::SeccompProfileMissing,
            (_, Profile::Missing(_)) => Self::AppArmorProfileMissing,
            (Profile::Unknown, _) | (_, Profile::Unknown) => Self::Unknown,
            (_, Profile::Installed) => Self::AvailableWithAppArmor,
            (_, Profile::NotNeeded) => Self::Available,
        }
    }

    /// Whether guests can have a network; `None` if that is not known.
    pub fn holds(self) -> Option<bool> {
        match self {
            Self::Available | Self::AvailableWithAppArmor => Some(true),
            Self::Unknown => None,
            _ => Some(false),
        }
    }

    /// Reason of the condition `GuestNetwork`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::AvailableWithAppArmor => "AvailableWithAppArmor",
            Self::Unknown => "NotInspected",
            Self::SeccompProfileMissing => "SeccompProfileMissing",
            Self::UserNamespacesOff => "UserNamespacesOff",
            Self::UserNamespacesForRootOnly => "UserNamespacesForRootOnly",
            Self::AppArmorProfileMissing => "AppArmorProfileMissing",
        }
    }

    /// The same for people, with what is known of the cause.
    pub fn sentence(self, seen: &Seen) -> String {
        let because = |profile: &Profile| match profile {
            Profile::Missing(why) => format!(": {why}"),
            _ => String::new(),
        };
        match self {
            Self::Available => "guests can be reached by the address of their pod".into(),
            Self::AvailableWithAppArmor => {
                "guests can be reached by the address of their pod, which runs under the AppArmor profile drydock-launcher"
                    .into()
            }
            Self::Unknown => "the node is being looked at".into(),
            Self::SeccompProfileMissing => format!(
                "the kubelet has no seccomp profile drydock/launcher.json{}",
                because(&seen.seccomp)
            ),
            Self::UserNamespacesOff => {
                "the kernel gives nobody a user namespace (user.max_user_namespaces is 0), which a guest's network needs"
                    .into()
            }
            Self::UserNamespacesForRootOnly => {
                "the kernel gives user namespaces to root only (kernel.unprivileged_userns_clone is 0), and a guest's \
                 network runs without privilege"
                    .into()
            }
            Self::AppArmorProfileMissing => format!(
                "AppArmor is on and has no profile drydock-launcher{}",
                because(&seen.app_armor)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: UserNamespaces = UserNamespaces {
        limit: Some(1000),
        for_everybody: None,
    };

    fn missing() -> Profile {
        Profile::Missing("no space left".into())
    }

    #[test]
    fn the_table_of_guest_networks() {
        use GuestNetwork as G;
        use Profile::{Installed, NotNeeded, Unknown};
        let namespaces = |limit, for_everybody| UserNamespaces { limit, for_everybody };
        for (seccomp, user_namespaces, app_armor, expected, holds) in [
            (Installed, ON, NotNeeded, G::Available, Some(true)),
            (Installed, ON, Installed, G::AvailableWithAppArmor, Some(true)),
            (
                Installed,
                namespaces(Some(1), Some(true)),
                NotNeeded,
                G::Available,
                Some(true),
            ),
            (Unknown, ON, Unknown, G::Unknown, None),
            (Installed, ON, Unknown, G::Unknown, None),
            (Unknown, ON, NotNeeded, G::Unknown, None),
            (missing(), ON, NotNeeded, G::SeccompProfileMissing, Some(false)),
            (missing(), ON, missing(), G::SeccompProfileMissing, Some(false)),
            (Installed, ON, missing(), G::AppArmorProfileMissing, Some(false)),
            (Unknown, ON, missing(), G::AppArmorProfileMissing, Some(false)),
            (
                Installed,
                namespaces(Some(0), None),
                NotNeeded,
                G::UserNamespacesOff,
                Some(false),
            ),
            (
                Installed,
                namespaces(None, None),
                NotNeeded,
                G::UserNamespacesOff,
                Some(false),
            ),
            (
                missing(),
                namespaces(Some(0), Some(false)),
                missing(),
                G::UserNamespacesOff,
                Some(false),
            ),
            (
                Installed,
                namespaces(Some(9), Some(false)),
                NotNeeded,
                G::UserNamespacesForRootOnly,
                Some(false),
            ),
        ] {
            let seen = Seen {
                seccomp,
                user_namespaces,
                app_armor,
            };
            let found = GuestNetwork::of(&seen);
            assert_eq!((found, found.holds()), (expected, holds), "{seen:?}");
        }
    }

    #[test]
    fn a_missing_profile_says_why() {
        let seen = Seen {
            seccomp: missing(),
            user_namespaces: ON,
            app_armor: Profile::NotNeeded,
        };
        let found = GuestNetwork::of(&seen);
        assert_eq!(found.reason(), "SeccompProfileMissing");
        assert_eq!(
            found.sentence(&seen),
            "the kubelet has no seccomp profile drydock/launcher.json: no space left"
        );
    }
}
