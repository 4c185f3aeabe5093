//! A launcher's security context: the privileges that the restricted Pod Security Standard allows, and no more.

use drydock_api::launcher::{SECCOMP_PROFILE, UID};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, PodSecurityContext, SeccompProfile, SecurityContext, Sysctl,
};

/// Annotation of an instance: AppArmor profile on its node that confines its pod.
///
/// passt cannot start under the default profile of container runtimes.
pub const APP_ARMOR_PROFILE: &str = "drydock.dev/app-armor-profile";

/// Returns the security context of the whole pod.
pub(super) fn pod(app_armor: Option<&str>) -> PodSecurityContext {
    PodSecurityContext {
        app_armor_profile: app_armor.map(|profile| AppArmorProfile {
            type_: "Localhost".into(),
            localhost_profile: Some(profile.into()),
        }),
        run_as_user: Some(UID),
        run_as_group: Some(UID),
        run_as_non_root: Some(true),
        fs_group: Some(UID),
        // With another policy, the kubelet would walk volumes with many files at each start.
        fs_group_change_policy: Some("OnRootMismatch".into()),
        // passt, which is not root, listens on a guest's well-known ports. The sysctl is namespaced, safe, and set by
        // container runtimes by default anyway.
        sysctls: Some(vec![Sysctl {
            name: "net.ipv4.ip_unprivileged_port_start".into(),
            value: "0".into(),
        }]),
        seccomp_profile: Some(SeccompProfile {
            type_: "Localhost".into(),
            localhost_profile: Some(SECCOMP_PROFILE.into()),
        }),
        ..PodSecurityContext::default()
    }
}

/// Returns the security context of the launcher's container.
pub(super) fn container() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".into()]),
        }),
        ..SecurityContext::default()
    }
}
