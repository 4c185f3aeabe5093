//! What libvirt says to a guest's CPU: whether a guest could have it here.

use virt_sys as sys;

use crate::libvirt::LibvirtError;

/// What precedes the features in libvirt's message (`src/cpu/cpu_x86.c`).
const MISSING: &str = "Host CPU does not provide required features: ";

/// Whether a guest can have a CPU here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuComparison {
    /// It can.
    Fits,
    /// It cannot.
    Incompatible {
        /// Why not, in libvirt's words.
        message: String,
        /// Features that are missing here, as far as the message names them.
        features: Vec<String>,
    },
}

impl CpuComparison {
    /// What libvirt's error means, if it says that the CPU cannot be had.
    ///
    /// # Errors
    /// Any other error, as it is.
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

/// The features that a message names; none if it is about something else, or in words that are not
/// known here.
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
