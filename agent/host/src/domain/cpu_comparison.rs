//! libvirt's comparison of a guest's CPU with this host.

use virt_sys as sys;

use crate::libvirt::LibvirtError;

/// The text before the feature list in libvirt's message (`src/cpu/cpu_x86.c`).
const MISSING: &str = "Host CPU does not provide required features: ";

/// Result of the comparison of a guest's CPU with this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuComparison {
    /// The host can run a guest with the CPU.
    Fits,
    /// The host cannot run a guest with the CPU.
    Incompatible {
        /// libvirt's message with the reason.
        message: String,
        /// Features of the CPU that this host lacks, as far as the message lists them.
        features: Vec<String>,
    },
}

impl CpuComparison {
    /// Converts libvirt's error if it means that the CPU is incompatible.
    ///
    /// # Errors
    /// Returns any other error unchanged.
    pub(super) fn from_error(error: LibvirtError) -> Result<Self, LibvirtError> {
        if error.code != sys::VIR_ERR_CPU_INCOMPATIBLE {
            return Err(error);
        }
        let features = missing(&error.message);
        Ok(Self::Incompatible {
            message: error.message,
            features,
        })
    }
}

/// Returns the features listed in a message, or an empty list if the message has another subject or an unknown form.
fn missing(message: &str) -> Vec<String> {
    let Some((_, features)) = message.split_once(MISSING) else {
        return Vec::new();
    };
    features
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.contains(char::is_whitespace))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u32, message: &str) -> LibvirtError {
        LibvirtError {
            call: "comparing a guest's CPU",
            code,
            domain: sys::VIR_FROM_CPU,
            message: message.into(),
        }
    }

    #[test]
    fn features_are_those_that_libvirt_names() {
        let prefix = "the CPU is incompatible with host CPU: ";
        for (reason, expected) in [
            ("Host CPU does not provide required features: avx512f", vec!["avx512f"]),
            (
                "Host CPU does not provide required features: avx512f, vmx-ept,  la57",
                vec!["avx512f", "vmx-ept", "la57"],
            ),
            ("Host CPU does not provide required features: ", vec![]),
            ("host CPU vendor does not match required CPU vendor Intel", vec![]),
            ("", vec![]),
        ] {
            let message = format!("{prefix}{reason}");
            let comparison = CpuComparison::from_error(error(sys::VIR_ERR_CPU_INCOMPATIBLE, &message));
            let features = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(comparison, Ok(CpuComparison::Incompatible { message, features }));
        }
    }

    #[test]
    fn other_errors_are_not_about_the_cpu() {
        let unknown = error(sys::VIR_ERR_CONFIG_UNSUPPORTED, "Unknown CPU model Foo");
        assert_eq!(CpuComparison::from_error(unknown.clone()), Err(unknown));
    }
}
