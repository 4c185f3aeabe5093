//! Determines whether KVM can be used on this machine, and the reason if it cannot.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::Path,
};

use drydock_api::facts::KvmState;
use nix::errno::Errno;

/// KVM's API version, which has not changed since 2007.
const API_VERSION: i32 = 12;

nix::ioctl_write_int_bad!(
    /// `KVM_GET_API_VERSION`. KVM refuses any argument but 0.
    kvm_get_api_version,
    nix::request_code_none!(0xae, 0x00)
);

/// Result of probing KVM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kvm {
    /// Whether KVM can be used. Never `NoUsableModel`, which only libvirt can determine.
    pub state: KvmState,
    /// Human-readable form of the state, with the system's error.
    pub message: String,
    /// Hyper-V enlightenments. Empty if KVM cannot be used, and on other architectures than x86.
    pub hyperv: Vec<String>,
}

/// Opens KVM's device node and queries it.
pub fn probe(path: &Path) -> Kvm {
    // Guests need write access too, so a node that only opens for reading is useless.
    let device = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(device) => device,
        Err(error) => return refused(path, &error),
    };
    match api_version(&device) {
        Ok(API_VERSION) => {}
        Ok(version) => {
            let message = format!("{} has API version {version} instead of {API_VERSION}", path.display());
            return Kvm {
                state: KvmState::OpenFailed,
                message,
                hyperv: Vec::new(),
            };
        }
        Err(error) => {
            let message = format!("{} does not respond to KVM requests: {}", path.display(), error.desc());
            return Kvm {
                state: KvmState::OpenFailed,
                message,
                hyperv: Vec::new(),
            };
        }
    }
    Kvm {
        state: KvmState::Usable,
        message: format!("{} can be opened", path.display()),
        hyperv: hyperv(path),
    }
}

/// Converts an error of opening the device node.
fn refused(path: &Path, error: &io::Error) -> Kvm {
    let state = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => KvmState::NoDevice,
        Some(Errno::EACCES | Errno::EPERM) => KvmState::NotPermitted,
        _ => KvmState::OpenFailed,
    };
    let message = match state {
        KvmState::NoDevice => format!("there is no {}", path.display()),
        _ => format!("{} cannot be opened for reading and writing: {error}", path.display()),
    };
    Kvm {
        state,
        message,
        hyperv: Vec::new(),
    }
}

/// Queries the device's API version, which also shows that the device is KVM.
#[expect(unsafe_code, reason = "an ioctl has no safe form; kvm-ioctls has none for s390x")]
fn api_version(device: &File) -> nix::Result<i32> {
    // SAFETY: the descriptor is open for the whole call, and the request takes an integer and writes no memory, on
    // KVM as on any other device.
    unsafe { kvm_get_api_version(device.as_raw_fd(), 0) }
}

/// Returns the Hyper-V enlightenments, using KVM's ioctls.
///
/// Opens a second descriptor, because kvm-ioctls must own its descriptor.
#[cfg(target_arch = "x86_64")]
fn hyperv(path: &Path) -> Vec<String> {
    use std::{collections::BTreeSet, ffi::CString, os::unix::ffi::OsStrExt};

    use crate::hyperv::{enlightenments, extensions};

    let opened = CString::new(path.as_os_str().as_bytes())
        .ok()
        .and_then(|path| kvm_ioctls::Kvm::new_with_path(path).ok());
    let Some(kvm) = opened else { return Vec::new() };
    let extensions = extensions()
        .filter(|number| kvm.check_extension_raw((*number).into()) > 0)
        .collect();
    let registers: BTreeSet<u32> = kvm
        .get_msr_index_list()
        .map(|list| list.as_slice().iter().copied().collect())
        .unwrap_or_default();
    enlightenments(&extensions, &registers)
}

#[cfg(not(target_arch = "x86_64"))]
fn hyperv(_: &Path) -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_open() {
        for (errno, state) in [
            (Errno::ENOENT, KvmState::NoDevice),
            (Errno::EPERM, KvmState::NotPermitted),
            (Errno::EACCES, KvmState::NotPermitted),
            (Errno::ENXIO, KvmState::OpenFailed),
            (Errno::ENODEV, KvmState::OpenFailed),
            (Errno::EBUSY, KvmState::OpenFailed),
        ] {
            let kvm = refused(Path::new("/dev/kvm"), &io::Error::from(errno));
            assert_eq!(kvm.state, state, "{errno}");
            assert!(kvm.message.contains("/dev/kvm"), "{}", kvm.message);
        }
    }

    #[test]
    fn path_that_is_no_kvm_device_is_unusable() {
        for (path, state) in [
            ("/nowhere/kvm", KvmState::NoDevice),
            // /dev/null can be opened, but its first ioctl fails.
            ("/dev/null", KvmState::OpenFailed),
            // A folder cannot be opened for writing.
            ("/proc", KvmState::OpenFailed),
        ] {
            let kvm = probe(Path::new(path));
            assert_eq!(kvm.state, state, "{path}: {}", kvm.message);
            assert!(kvm.hyperv.is_empty());
        }
    }
}
