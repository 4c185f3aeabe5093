//! CPU architectures that are supported for guests, with the names that Kubernetes, the kernel and libvirt use.
//!
//! The rules follow KubeVirt's node-labeller: amd64 and s390x have CPU models, host-model and features. arm64 has only
//! machine types. On any other architecture, only the kernel is inspected.

use serde::{Deserialize, Serialize};

/// The CPU architecture of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Architecture {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM.
    Arm64,
    /// IBM Z.
    S390x,
    /// Any other architecture, with the kernel's name.
    Other(String),
}

impl Architecture {
    /// Returns the architecture for which this program was built, which is the architecture of the machine.
    pub fn native() -> Self {
        Self::from_kernel(std::env::consts::ARCH)
    }

    /// Converts from the kernel's name (`uname -m`).
    pub fn from_kernel(name: &str) -> Self {
        match name {
            "x86_64" => Self::Amd64,
            "aarch64" => Self::Arm64,
            "s390x" => Self::S390x,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the Kubernetes name.
    pub fn kubernetes(&self) -> &str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
            Self::S390x => "s390x",
            Self::Other(name) => name,
        }
    }

    /// Returns the libvirt name.
    pub fn libvirt(&self) -> &str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
            Self::S390x => "s390x",
            Self::Other(name) => name,
        }
    }

    /// Returns the machine type with which libvirt is queried; `None` if libvirt is not queried.
    pub fn machine(&self) -> Option<&'static str> {
        match self {
            Self::Amd64 => Some("q35"),
            Self::Arm64 => Some("virt"),
            Self::S390x => Some("s390-ccw-virtio"),
            Self::Other(_) => None,
        }
    }

    /// Returns whether `host-model`, and with it the baseline of features, exists on this architecture.
    pub fn has_host_model(&self) -> bool {
        matches!(self, Self::Amd64 | Self::S390x)
    }

    /// Returns the vendor that is used if libvirt reports none.
    pub fn default_vendor(&self) -> &'static str {
        if matches!(self, Self::S390x) { "IBM" } else { "" }
    }

    /// Returns whether a feature element with this policy means that guests have the feature.
    ///
    /// On s390x, libvirt writes no policy, and every listed feature is required.
    pub fn feature_is_required(&self, policy: Option<&str>) -> bool {
        match policy {
            Some(policy) => policy == "require",
            None => matches!(self, Self::S390x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_machines() {
        for (kernel, kubernetes, machine) in [
            ("x86_64", "amd64", Some("q35")),
            ("aarch64", "arm64", Some("virt")),
            ("s390x", "s390x", Some("s390-ccw-virtio")),
            ("riscv64", "riscv64", None),
        ] {
            let architecture = Architecture::from_kernel(kernel);
            assert_eq!(architecture.kubernetes(), kubernetes);
            assert_eq!(architecture.libvirt(), kernel);
            assert_eq!(architecture.machine(), machine);
        }
    }

    #[test]
    fn policy_rules() {
        for (architecture, policy, required) in [
            (Architecture::Amd64, Some("require"), true),
            (Architecture::Amd64, Some("disable"), false),
            (Architecture::Amd64, Some("optional"), false),
            (Architecture::Amd64, None, false),
            (Architecture::S390x, Some("require"), true),
            (Architecture::S390x, Some("disable"), false),
            (Architecture::S390x, None, true),
            (Architecture::Arm64, None, false),
        ] {
            assert_eq!(
                architecture.feature_is_required(policy),
                required,
                "{architecture:?} {policy:?}"
            );
        }
    }
}
