//! What a launcher may do: as little as the restricted Pod Security Standard asks for.

use drydock_api::launcher::{SECCOMP_PROFILE, UID};
use k8s_openapi::api::core::v1::{Capabilities, PodSecurityContext, SeccompProfile, SecurityContext};

/// Of the whole pod.
pub(super) fn pod() -> PodSecurityContext {
    PodSecurityContext {
        run_as_user: Some(UID),
        run_as_group: Some(UID),
        run_as_non_root: Some(true),
        fs_group: Some(UID),
        // Volumes with many files would be walked at each start otherwise.
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile {
            type_: "Localhost".into(),
            localhost_profile: Some(SECCOMP_PROFILE.into()),
        }),
        ..PodSecurityContext::default()
    }
}

/// Of its container.
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
