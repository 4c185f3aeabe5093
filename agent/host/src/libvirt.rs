//! A connection to libvirt for queries about the host.
//!
//! Besides `domain::connection`, this is the only file that uses more of libvirt's bindings than their constants.
//! `virt` panics if closing or copying a connection fails, and lacks some calls (for example, the hypervisor CPU
//! baseline). Therefore its `Connect` is held in a `ManuallyDrop` and closed by this module, and missing calls use
//! `virt-sys`.
//!
//! Every call blocks until the daemon responds or the connection breaks. A caller that must not block uses the
//! connection on a separate thread and stops the daemon when the deadline passes.

use std::{
    ffi::{CStr, CString, c_char},
    fmt,
    mem::ManuallyDrop,
    ptr,
    sync::Once,
};

use thiserror::Error;
use virt::{connect::Connect, error::clear_error_callback};
use virt_sys as sys;

use drydock_api::facts::VirtType;

/// Maximum number of characters of an error message. A pod's libvirtd may respond with up to 4 MiB, and messages are
/// written to logs, to objects and to the socket between tunnel and agent.
const MAX_MESSAGE: usize = 1000;

/// libvirt's error for a failed call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{call}: {message}")]
pub struct LibvirtError {
    /// Human-readable name of the call.
    pub call: &'static str,
    /// libvirt's error number (`VIR_ERR_...`).
    pub code: u32,
    /// The libvirt component that failed (`VIR_FROM_...`).
    pub domain: u32,
    /// The first 1,000 characters of libvirt's message.
    pub message: String,
}

impl LibvirtError {
    fn new(call: &'static str, error: &virt::error::Error) -> Self {
        Self {
            call,
            code: error.code().to_raw(),
            domain: error.domain().to_raw(),
            message: error.message().chars().take(MAX_MESSAGE).collect(),
        }
    }

    /// Returns libvirt's error of this thread's last call.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::new(call, &virt::error::Error::last_error())
    }

    /// Returns whether the connection broke or was never open. The daemon has exited or no longer responds.
    pub fn is_broken_connection(&self) -> bool {
        self.domain == sys::VIR_FROM_RPC
            || [sys::VIR_ERR_RPC, sys::VIR_ERR_NO_CONNECT, sys::VIR_ERR_INVALID_CONN].contains(&self.code)
    }
}

/// Converts a string for C. `virt` panics on a string with a zero byte, so every string is checked first.
pub(crate) fn c_string(call: &'static str, text: &str) -> Result<CString, LibvirtError> {
    CString::new(text).map_err(|error| LibvirtError::new(call, &error.into()))
}

/// A version in libvirt's encoding: major * 1,000,000 + minor * 1,000 + release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 1_000_000, self.0 / 1000 % 1000, self.0 % 1000)
    }
}

/// Machine that a query is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueriedMachine<'a> {
    /// libvirt's name of the architecture.
    pub architecture: &'a str,
    /// Machine type.
    pub machine: &'a str,
    /// Whether guests run with KVM or are emulated.
    pub virt_type: VirtType,
}

/// An open connection to libvirt. Only one thread may use it at a time.
pub struct Libvirt {
    connect: ManuallyDrop<Connect>,
}

impl Libvirt {
    /// Connects to a libvirt URI. Disables libvirt's own error output, because errors are returned as values.
    ///
    /// # Errors
    /// If no daemon is listening, or the daemon refuses the connection.
    pub fn open(uri: &str) -> Result<Self, LibvirtError> {
        static ERROR_OUTPUT_DISABLED: Once = Once::new();
        ERROR_OUTPUT_DISABLED.call_once(clear_error_callback);
        const CALL: &str = "connecting to libvirt";
        c_string(CALL, uri)?;
        let connect = Connect::open(Some(uri)).map_err(|error| LibvirtError::new(CALL, &error))?;
        Ok(Self {
            connect: ManuallyDrop::new(connect),
        })
    }

    /// Returns the version of the daemon.
    ///
    /// # Errors
    /// If the daemon does not respond.
    pub fn version(&self) -> Result<Version, LibvirtError> {
        let version = self.connect.lib_version();
        version
            .map(Version)
            .map_err(|error| LibvirtError::new("reading libvirt's version", &error))
    }

    /// Returns the version of QEMU for the native architecture.
    ///
    /// # Errors
    /// If the daemon does not respond or finds no QEMU.
    pub fn qemu_version(&self) -> Result<Version, LibvirtError> {
        let version = self.connect.hyp_version();
        version
            .map(Version)
            .map_err(|error| LibvirtError::new("reading QEMU's version", &error))
    }

    /// Returns the capabilities of the host.
    ///
    /// # Errors
    /// If the daemon does not respond.
    pub fn capabilities(&self) -> Result<String, LibvirtError> {
        self.connect
            .capabilities()
            .map_err(|error| LibvirtError::new("reading the capabilities", &error))
    }

    /// Returns the domain capabilities of a machine.
    ///
    /// # Errors
    /// If the daemon does not respond, or the emulator, machine type or accelerator does not exist.
    pub fn domain_capabilities(&self, machine: &QueriedMachine<'_>, detail: Detail) -> Result<String, LibvirtError> {
        const CALL: &str = "reading the domain capabilities";
        let QueriedMachine {
            architecture,
            machine,
            virt_type,
        } = *machine;
        c_string(CALL, architecture)?;
        c_string(CALL, machine)?;
        self.connect
            .domain_capabilities(
                None,
                Some(architecture),
                Some(machine),
                Some(virt_type.as_str()),
                detail.flags(),
            )
            .map_err(|error| LibvirtError::new(CALL, &error))
    }

    /// Returns the CPU that this host can provide, with every feature listed, given a `<cpu>` element.
    ///
    /// The result is the same as of `virsh hypervisor-cpu-baseline --features`.
    ///
    /// # Errors
    /// If the daemon does not respond, or the architecture has no baseline.
    #[expect(
        unsafe_code,
        reason = "the virt crate has no binding for virConnectBaselineHypervisorCPU"
    )]
    pub fn baseline(&self, machine: &QueriedMachine<'_>, cpu: &str) -> Result<String, LibvirtError> {
        const CALL: &str = "computing the hypervisor CPU baseline";
        let architecture = c_string(CALL, machine.architecture)?;
        let name = c_string(CALL, machine.machine)?;
        let virt_type = c_string(CALL, machine.virt_type.as_str())?;
        let cpu = c_string(CALL, cpu)?;
        let mut cpus = [cpu.as_ptr()];
        // SAFETY: the connection is open as long as `self` lives, all strings end with a zero byte and outlive the
        // call, `cpus` has as many elements as passed, and libvirt keeps none of the pointers. A null emulator means
        // the default emulator.
        let raw_text = unsafe {
            sys::virConnectBaselineHypervisorCPU(
                self.connect.as_ptr(),
                ptr::null(),
                architecture.as_ptr(),
                name.as_ptr(),
                virt_type.as_ptr(),
                cpus.as_mut_ptr(),
                1,
                sys::VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES,
            )
        };
        // SAFETY: libvirt returned null or a newly allocated string that it does not keep.
        unsafe { owned_text(CALL, raw_text) }
    }
}

/// Copies a string that libvirt has returned, and frees it. A null pointer is an error.
///
/// # Safety
/// `raw_text` must be null, or a string that ends with a zero byte, was allocated by libvirt (malloc), and has no other
/// users.
#[expect(unsafe_code, reason = "libvirt gives strings that the caller has to free")]
pub(crate) unsafe fn owned_text(call: &'static str, raw_text: *mut c_char) -> Result<String, LibvirtError> {
    if raw_text.is_null() {
        return Err(LibvirtError::last(call));
    }
    // SAFETY: guaranteed by the caller; the string is copied before it is freed, and freed once.
    unsafe {
        let text = CStr::from_ptr(raw_text).to_string_lossy().into_owned();
        nix::libc::free(raw_text.cast());
        Ok(text)
    }
}

impl Drop for Libvirt {
    #[expect(unsafe_code, reason = "virt's own Drop panics if closing fails")]
    fn drop(&mut self) {
        // SAFETY: the connection is open and is not used again: `connect` is never dropped. An error of closing is
        // ignored, because the daemon has usually exited in this case.
        unsafe {
            sys::virConnectClose(self.connect.as_ptr());
        }
    }
}

impl fmt::Debug for Libvirt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Libvirt").finish_non_exhaustive()
    }
}

/// Part of the host's CPU that the domain capabilities contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The host model, as a named model and its additional features.
    HostModel,
    /// Everything that the host can provide, including features that host-model omits by default (libvirt 12.5).
    Everything,
}

impl Detail {
    /// First version of libvirt that supports `Everything`.
    pub const EVERYTHING_SINCE: Version = Version(12_005_000);

    fn flags(self) -> u32 {
        match self {
            Self::HostModel => 0,
            Self::Everything => {
                sys::VIR_CONNECT_GET_DOMAIN_CAPABILITIES_EXPAND_CPU_FEATURES
                    | sys::VIR_CONNECT_GET_DOMAIN_CAPABILITIES_SUPPORTED_CPU_FEATURES
            }
        }
    }
}

/// Returns the URI of a session daemon behind a socket. With a socket in the URI, the client never starts a daemon.
pub fn session_uri(socket: &std::path::Path) -> String {
    use std::{fmt::Write, os::unix::ffi::OsStrExt};
    let mut uri = String::from("qemu+unix:///session?socket=");
    for byte in socket.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(Version(11_003_000).to_string(), "11.3.0");
        assert_eq!(Version(10_000_013).to_string(), "10.0.13");
        assert!(Version(11_003_000) < Detail::EVERYTHING_SINCE);
    }

    #[test]
    fn sockets_are_escaped() {
        let uri = session_uri(std::path::Path::new("/tmp/a b&c?%/s"));
        assert_eq!(uri, "qemu+unix:///session?socket=/tmp/a%20b%26c%3F%25/s");
    }

    #[test]
    fn errors_are_values() {
        let error = Libvirt::open(&session_uri(std::path::Path::new("/nowhere/socket"))).unwrap_err();
        assert!(
            error.is_broken_connection() || error.code == sys::VIR_ERR_SYSTEM_ERROR,
            "{error:?}"
        );
        assert!(error.message.contains("/nowhere/socket"), "{error}");
        for uri in ["qemu:///\0", "nonsense"] {
            assert!(Libvirt::open(uri).is_err(), "{uri:?}");
        }
    }

    /// Checks calls that libvirt's test driver supports or refuses. No call panics.
    #[test]
    fn the_test_driver() {
        let libvirt = Libvirt::open("test:///default").unwrap();
        assert!(libvirt.version().unwrap() >= Version(6_000_000));
        assert!(libvirt.capabilities().unwrap().contains("<capabilities>"));
        let machine = QueriedMachine {
            architecture: "x86_64",
            machine: "q35",
            virt_type: VirtType::Qemu,
        };
        let error = libvirt.domain_capabilities(&machine, Detail::HostModel).unwrap_err();
        assert_eq!(error.code, sys::VIR_ERR_NO_SUPPORT, "{error:?}");
        let error = libvirt.baseline(&machine, "<cpu/>").unwrap_err();
        assert_eq!(error.call, "computing the hypervisor CPU baseline");
        assert!(!error.is_broken_connection());
    }
}
