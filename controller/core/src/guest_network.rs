//! Whether a node's guests can have a network.
//!
//! passt, which provides a guest's network without privileges, isolates itself in a user namespace. The node has to
//! meet three conditions:
//!
//! ```text
//!  seccomp profile    the runtime's default one refuses new user namespaces
//!  user namespaces    the kernel may have them switched off
//!  AppArmor profile   where AppArmor is on: the runtime's default one refuses mounts
//! ```

/// A profile for launcher pods, as found on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Not checked yet.
    #[default]
    Unknown,
    /// Installed in the kernel or for the kubelet.
    Installed,
    /// Not needed on this node.
    NotNeeded,
    /// Missing, with the reason.
    Missing(String),
}

/// The kernel's settings for user namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNamespaces {
    /// `user.max_user_namespaces`: limit per user. `None` if the setting does not exist, as in a kernel without user
    /// namespaces.
    pub limit: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, a setting of some distributions' kernels: whether users other than root may
    /// create user namespaces.
    pub for_everybody: Option<bool>,
}

/// The agent's observations of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNetwork {
    /// The seccomp profile in the kubelet's folder.
    pub seccomp: Profile,
    /// The kernel's settings.
    pub user_namespaces: UserNamespaces,
    /// The AppArmor profile in the kernel. It lets passt create user namespaces even where
    /// `kernel.apparmor_restrict_unprivileged_userns` forbids that to others.
    pub app_armor: Profile,
}

/// Whether guests can have a network, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestNetwork {
    /// Guests can use the pod network.
    Available,
    /// Guests can use the pod network under the node's AppArmor profile; a pod that does not name the profile has no
    /// network.
    AvailableWithAppArmor,
    /// The node has not been inspected yet.
    Unknown,
    /// The kubelet has no seccomp profile for launcher pods.
    SeccompProfileMissing,
    /// The kernel has no user namespaces, or allows each user none (`user.max_user_namespaces` is 0).
    UserNamespacesOff,
    /// Only root may create user namespaces (`kernel.unprivileged_userns_clone` is 0).
    UserNamespacesForRootOnly,
    /// AppArmor is enabled, and the kernel has no AppArmor profile for launcher pods.
    AppArmorProfileMissing,
}

impl GuestNetwork {
    /// Returns the verdict on the observations.
    pub fn of(seen: &ObservedNetwork) -> Self {
        let namespaces = seen.user_namespaces;
        match (&seen.seccomp, &seen.app_armor) {
            // Causes that an agent cannot fix come first.
            _ if namespaces.limit.unwrap_or(0) == 0 => Self::UserNamespacesOff,
            _ if namespaces.for_everybody == Some(false) => Self::UserNamespacesForRootOnly,
            (Profile::Missing(_), _) => Self::SeccompProfileMissing,
            (_, Profile::Missing(_)) => Self::AppArmorProfileMissing,
            (Profile::Unknown, _) | (_, Profile::Unknown) => Self::Unknown,
            (_, Profile::Installed) => Self::AvailableWithAppArmor,
            (_, Profile::NotNeeded) => Self::Available,
        }
    }

    /// Returns whether guests can have a network; `None` if unknown.
    pub fn holds(self) -> Option<bool> {
        match self {
            Self::Available | Self::AvailableWithAppArmor => Some(true),
            Self::Unknown => None,
            _ => Some(false),
        }
    }

    /// Returns the reason of the condition `GuestNetwork`.
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

    /// Returns the condition's message, with the cause if it is known.
    pub fn sentence(self, seen: &ObservedNetwork) -> String {
        let because = |profile: &Profile| match profile {
            Profile::Missing(why) => format!(": {why}"),
            _ => String::new(),
        };
        match self {
            Self::Available => "guests can be reached at the address of their pod".into(),
            Self::AvailableWithAppArmor => {
                "guests can be reached at the address of their pod, which runs under the AppArmor profile \
                 drydock-launcher"
                    .into()
            }
            Self::Unknown => "the node is being inspected".into(),
            Self::SeccompProfileMissing => format!(
                "the kubelet has no seccomp profile drydock/launcher.json{}",
                because(&seen.seccomp)
            ),
            Self::UserNamespacesOff => {
                "the kernel allows no user namespaces (user.max_user_namespaces is 0), but a guest's network needs one"
                    .into()
            }
            Self::UserNamespacesForRootOnly => {
                "the kernel allows user namespaces only for root (kernel.unprivileged_userns_clone is 0), but a \
                 guest's network runs without privileges"
                    .into()
            }
            Self::AppArmorProfileMissing => format!(
                "AppArmor is enabled, and the profile drydock-launcher is not loaded{}",
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
            let seen = ObservedNetwork {
                seccomp,
                user_namespaces,
                app_armor,
            };
            let found = GuestNetwork::of(&seen);
            assert_eq!((found, found.holds()), (expected, holds), "{seen:?}");
        }
    }

    #[test]
    fn missing_profile_is_explained() {
        let seen = ObservedNetwork {
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
