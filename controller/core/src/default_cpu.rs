//! The default CPU of a virtual machine whose manifest sets no model, and the special names that are not CPU models.

use drydock_api::kubevirt::VirtualMachineInstance;

use crate::configuration::Configuration;

/// The host's CPU, which libvirt expands into a model and features when the guest starts.
pub const HOST_MODEL: &str = "host-model";
/// The host's CPU, passed through unchanged.
pub const HOST_PASSTHROUGH: &str = "host-passthrough";
/// All features that the emulator, or the host with KVM, supports: QEMU's `max`.
pub const MAXIMUM: &str = "max";

/// Returns the CPU model of guests of this architecture (Kubernetes' name) whose manifest sets none.
///
/// | architecture | configured | with KVM | by emulation |
/// |---|---|---|---|
/// | amd64 | the configured one | host-model | host-model |
/// | s390x | the configured one | host-model | max |
/// | arm64 | only host-passthrough or max | host-passthrough | max |
///
/// libvirt has neither host-model nor named models that KVM could provide on arm64, and no host-model for emulated
/// s390x. `use_emulation` of the configuration decides, since the node is not known yet.
pub fn default_model<'a>(architecture: &str, configuration: &'a Configuration) -> &'a str {
    let configured = configuration.default_cpu_model.as_deref();
    let exists = |model: &&str| architecture != "arm64" || is_hosts_own(model);
    let own = match (architecture, configuration.use_emulation) {
        ("arm64" | "s390x", true) => MAXIMUM,
        ("arm64", false) => HOST_PASSTHROUGH,
        _ => HOST_MODEL,
    };
    configured.filter(exists).unwrap_or(own)
}

/// Returns whether the model means the host's own CPU, which libvirt never expands into a model and features.
pub fn is_hosts_own(model: &str) -> bool {
    [HOST_PASSTHROUGH, MAXIMUM].contains(&model)
}

/// Returns whether the guest of a running instance has its host's own CPU: its manifest requests that, and libvirt
/// has not expanded it (which it does in emulation, where `host-passthrough` is `host-model`).
pub fn has_hosts_own(instance: &VirtualMachineInstance) -> bool {
    let model = instance.spec.domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref());
    let record = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    model.is_some_and(is_hosts_own) && record.is_some_and(|record| record.guest_cpu.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_model_depends_on_architecture_and_emulation() {
        for (architecture, configured, by_kvm, by_emulation) in [
            ("amd64", None, "host-model", "host-model"),
            ("s390x", None, "host-model", "max"),
            ("arm64", None, "host-passthrough", "max"),
            ("amd64", Some("Haswell"), "Haswell", "Haswell"),
            ("s390x", Some("z14"), "z14", "z14"),
            ("arm64", Some("Haswell"), "host-passthrough", "max"),
            ("arm64", Some("host-model"), "host-passthrough", "max"),
            ("arm64", Some("max"), "max", "max"),
        ] {
            for (use_emulation, expected) in [(false, by_kvm), (true, by_emulation)] {
                let configuration = Configuration {
                    default_cpu_model: configured.map(Into::into),
                    use_emulation,
                    ..Configuration::default()
                };
                assert_eq!(
                    default_model(architecture, &configuration),
                    expected,
                    "{architecture} {configured:?} {use_emulation}"
                );
            }
        }
    }
}
