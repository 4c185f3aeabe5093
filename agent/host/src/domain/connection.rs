//! A guest's libvirt through libvirt's own client: one connection, used by one thread.
//!
//! `virt` has no binding for events and for some of the calls, and panics when it closes or copies an object. This
//! module therefore uses `virt-sys` directly. Every call looks the domain up again, because the domain may have been
//! undefined and redefined since the previous call.

#![expect(
    unsafe_code,
    reason = "libvirt is a C library, and virt has no binding for events and some of the calls"
)]

use std::{
    ffi::{CString, c_int},
    fmt, ptr, slice,
    sync::Arc,
};

use virt_sys as sys;

use super::{
    BlockInfo, CpuComparison, DomainState, InitialState, JobInfo, Migration, Parameter, PodVersions, Screenshot,
    ShutdownBy,
    c_values::{read_parameters, text},
    event::EventSource,
    job::WhichJob,
    listener::{self, EventCallback, Listener},
};
use crate::{
    document::{MAX_BYTES, MAX_LIST},
    libvirt::{LibvirtError, Version, c_string, owned_text},
};
use drydock_api::facts::VirtType;

mod migration_calls;

/// Keep-alive settings: idle interval in seconds before libvirtd is probed, and maximum number of probes without a
/// response.
///
/// The total is longer than the deadlines of calls, which are meant to end a connection that is in use.
const KEEP_ALIVE: (c_int, u32) = (30, 3);

/// Timeout in seconds for each response of the guest agent. libvirt's default is to wait forever.
const AGENT_SECONDS: c_int = 5;
/// Timeout in seconds for a freeze by the guest agent. The guest writes its buffers to disk, and its hooks make
/// databases write theirs.
const FREEZE_SECONDS: c_int = 20;
/// Timeout in seconds for a thaw by the guest agent, which runs hooks too.
///
/// A failed freeze and the thaw after it together end before the client's freeze request times out.
const THAW_SECONDS: c_int = 10;

/// Prefix of the URIs of daemons.
const DAEMON: &[u8] = b"qemu+unix:";

/// The calls to a domain's libvirt. Every call may block for as long as libvirt takes to respond.
pub(crate) trait DomainCalls {
    fn define(&self, xml: &str) -> Result<(), LibvirtError>;
    fn create(&self, start: InitialState) -> Result<(), LibvirtError>;
    fn state(&self) -> Result<DomainState, LibvirtError>;
    fn live_xml(&self) -> Result<String, LibvirtError>;
    fn destroy(&self) -> Result<(), LibvirtError>;
    fn shutdown(&self, by: ShutdownBy) -> Result<(), LibvirtError>;
    fn reboot(&self, by: ShutdownBy) -> Result<(), LibvirtError>;
    fn reset(&self) -> Result<(), LibvirtError>;
    fn suspend(&self) -> Result<(), LibvirtError>;
    fn resume(&self) -> Result<(), LibvirtError>;
    fn undefine(&self) -> Result<(), LibvirtError>;
    fn names(&self) -> Result<Vec<String>, LibvirtError>;
    fn guest_info(&self) -> Result<Vec<Parameter>, LibvirtError>;
    /// Sends a JSON command to the guest agent and returns its reply.
    fn agent_command(&self, command: &str) -> Result<String, LibvirtError>;
    fn freeze(&self) -> Result<(), LibvirtError>;
    fn thaw(&self) -> Result<(), LibvirtError>;
    fn screenshot(&self) -> Result<Screenshot, LibvirtError>;
    fn block_info(&self, disk: &str) -> Result<BlockInfo, LibvirtError>;
    fn versions(&self) -> Result<PodVersions, LibvirtError>;
    /// Migrates the domain and returns when the migration has ended.
    ///
    /// The outer error means that this connection broke. The inner error is libvirtd's response, which may be about
    /// libvirtd's own connection to the target.
    fn migrate(&self, migration: &Migration) -> Result<Result<(), LibvirtError>, LibvirtError>;
    fn abort_job(&self) -> Result<(), LibvirtError>;
    fn job(&self, which: WhichJob) -> Result<Option<JobInfo>, LibvirtError>;
    fn max_downtime(&self) -> Result<u64, LibvirtError>;
    fn set_max_downtime(&self, milliseconds: u64) -> Result<(), LibvirtError>;
    fn set_bandwidth(&self, mebibytes: u64) -> Result<(), LibvirtError>;
    fn start_post_copy(&self) -> Result<(), LibvirtError>;
    fn compare_cpu(&self, cpu: &str, virt_type: VirtType) -> Result<CpuComparison, LibvirtError>;
}

/// A call that changes a domain and returns no data.
type DomainCall = unsafe extern "C" fn(sys::virDomainPtr) -> c_int;

/// An open connection to libvirt for one domain.
pub(crate) struct LibvirtConnection {
    raw: sys::virConnectPtr,
    domain: CString,
    /// IDs of the registered event callbacks.
    callbacks: Vec<c_int>,
    has_close_callback: bool,
}

impl LibvirtConnection {
    /// Connects to libvirt and forwards the domain's events to `shared`.
    pub(crate) fn open(uri: &str, domain: &str, shared: &Arc<EventSource>) -> Result<Self, LibvirtError> {
        const CALL: &str = "connecting to libvirt";
        let uri = c_string(CALL, uri)?;
        let domain = c_string(CALL, domain)?;
        // SAFETY: the string ends with a zero byte and outlives the call.
        let raw = unsafe { sys::virConnectOpen(uri.as_ptr()) };
        if raw.is_null() {
            return Err(LibvirtError::last(CALL));
        }
        let mut connection = Self {
            raw,
            domain,
            callbacks: Vec::new(),
            has_close_callback: false,
        };
        let listener = Arc::new(Listener {
            domain: connection.domain.clone(),
            shared: Arc::clone(shared),
        });
        // A driver without a daemon would accept these callbacks and drop them without releasing their references.
        if uri.to_bytes().starts_with(DAEMON) {
            connection.watch_over(&listener);
        }
        connection.listen(&listener)?;
        Ok(connection)
    }

    /// Makes the connection end when the daemon ends, by means of keep-alives and a close callback.
    fn watch_over(&mut self, listener: &Arc<Listener>) {
        // SAFETY: the connection is open.
        if unsafe { sys::virConnectSetKeepAlive(self.raw, KEEP_ALIVE.0, KEEP_ALIVE.1) } < 0 {
            tracing::debug!(error = %LibvirtError::last("enabling keep-alives"), "could not enable keep-alives");
        }
        let opaque = Arc::into_raw(Arc::clone(listener));
        // SAFETY: the connection is open; `opaque` is a counted reference that `release` drops. libvirt calls `release`
        // once if it accepted the callback, and never otherwise.
        let taken = unsafe {
            sys::virConnectRegisterCloseCallback(
                self.raw,
                Some(listener::closed),
                opaque.cast_mut().cast(),
                Some(listener::release),
            )
        };
        if taken < 0 {
            // SAFETY: the reference created above, which libvirt did not accept.
            drop(unsafe { Arc::from_raw(opaque) });
        }
        self.has_close_callback = taken == 0;
    }

    fn listen(&mut self, listener: &Arc<Listener>) -> Result<(), LibvirtError> {
        for (event, callback) in listener::events() {
            self.register(event, callback, listener)?;
        }
        Ok(())
    }

    fn register(&mut self, event: u32, callback: EventCallback, listener: &Arc<Listener>) -> Result<(), LibvirtError> {
        let opaque = Arc::into_raw(Arc::clone(listener));
        // SAFETY: the connection is open; a null domain means all domains; the callback has the type for this event;
        // `opaque` is a counted reference that `release` drops. libvirt calls `release` once if it accepted the
        // callback, and never otherwise.
        let number = unsafe {
            sys::virConnectDomainEventRegisterAny(
                self.raw,
                ptr::null_mut(),
                event.cast_signed(),
                Some(callback),
                opaque.cast_mut().cast(),
                Some(listener::release),
            )
        };
        if number < 0 {
            let error = LibvirtError::last("subscribing to events");
            // SAFETY: the reference created above, which libvirt did not accept.
            drop(unsafe { Arc::from_raw(opaque) });
            return Err(error);
        }
        self.callbacks.push(number);
        Ok(())
    }

    fn found(&self, call: &'static str) -> Result<DomainPointer, LibvirtError> {
        // SAFETY: the connection is open, and the name ends with a zero byte and outlives the call.
        let domain = unsafe { sys::virDomainLookupByName(self.raw, self.domain.as_ptr()) };
        DomainPointer::new(call, domain)
    }

    fn change(&self, call: &'static str, change: DomainCall) -> Result<(), LibvirtError> {
        let domain = self.found(call)?;
        // SAFETY: the domain is one of this open connection.
        succeeded(call, unsafe { change(domain.0) }).map(drop)
    }
}

impl DomainCalls for LibvirtConnection {
    fn define(&self, xml: &str) -> Result<(), LibvirtError> {
        const CALL: &str = "defining the domain";
        let xml = c_string(CALL, xml)?;
        // SAFETY: the connection is open, and the document ends with a zero byte and outlives the call.
        let domain = unsafe { sys::virDomainDefineXMLFlags(self.raw, xml.as_ptr(), sys::VIR_DOMAIN_DEFINE_VALIDATE) };
        DomainPointer::new(CALL, domain).map(drop)
    }

    fn create(&self, start: InitialState) -> Result<(), LibvirtError> {
        const CALL: &str = "starting the guest";
        let flags = match start {
            InitialState::Running => 0,
            InitialState::Paused => sys::VIR_DOMAIN_START_PAUSED,
        };
        let domain = self.found(CALL)?;
        // SAFETY: the domain is one of this open connection.
        succeeded(CALL, unsafe { sys::virDomainCreateWithFlags(domain.0, flags) }).map(drop)
    }

    fn state(&self) -> Result<DomainState, LibvirtError> {
        const CALL: &str = "reading the domain's state";
        let domain = self.found(CALL)?;
        let (mut state, mut reason) = (0, 0);
        // SAFETY: the domain is one of this open connection, and both output variables outlive the call.
        succeeded(CALL, unsafe {
            sys::virDomainGetState(domain.0, &raw mut state, &raw mut reason, 0)
        })?;
        Ok(DomainState::from_raw(state, reason))
    }

    fn live_xml(&self) -> Result<String, LibvirtError> {
        const CALL: &str = "reading the domain's XML";
        let domain = self.found(CALL)?;
        // SAFETY: the domain is one of this open connection; libvirt returns null or a newly allocated string that it
        // does not keep.
        unsafe { owned_text(CALL, sys::virDomainGetXMLDesc(domain.0, 0)) }
    }

    fn destroy(&self) -> Result<(), LibvirtError> {
        self.change("destroying the guest", sys::virDomainDestroy)
    }

    fn shutdown(&self, by: ShutdownBy) -> Result<(), LibvirtError> {
        const CALL: &str = "requesting the guest's shutdown";
        let flags = match by {
            ShutdownBy::PowerButton => sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN,
            ShutdownBy::Agent => sys::VIR_DOMAIN_SHUTDOWN_GUEST_AGENT,
        };
        let domain = self.found(CALL)?;
        if by == ShutdownBy::Agent {
            domain.limit_agent(AGENT_SECONDS);
        }
        // SAFETY: the domain is one of this open connection.
        succeeded(CALL, unsafe { sys::virDomainShutdownFlags(domain.0, flags) }).map(drop)
    }

    fn reboot(&self, by: ShutdownBy) -> Result<(), LibvirtError> {
        const CALL: &str = "requesting a reboot of the guest";
        let flags = match by {
            ShutdownBy::PowerButton => sys::VIR_DOMAIN_REBOOT_ACPI_POWER_BTN,
            ShutdownBy::Agent => sys::VIR_DOMAIN_REBOOT_GUEST_AGENT,
        };
        let domain = self.found(CALL)?;
        if by == ShutdownBy::Agent {
            domain.limit_agent(AGENT_SECONDS);
        }
        // SAFETY: the domain is one of this open connection.
        succeeded(CALL, unsafe { sys::virDomainReboot(domain.0, flags) }).map(drop)
    }

    fn reset(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "resetting the guest";
        let domain = self.found(CALL)?;
        // SAFETY: the domain is one of this open connection; there are no flags.
        succeeded(CALL, unsafe { sys::virDomainReset(domain.0, 0) }).map(drop)
    }

    fn suspend(&self) -> Result<(), LibvirtError> {
        self.change("pausing the guest", sys::virDomainSuspend)
    }

    fn resume(&self) -> Result<(), LibvirtError> {
        self.change("resuming the guest", sys::virDomainResume)
    }

    fn undefine(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "undefining the domain";
        let everything = sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            | sys::VIR_DOMAIN_UNDEFINE_NVRAM
            | sys::VIR_DOMAIN_UNDEFINE_TPM;
        let domain = self.found(CALL)?;
        // SAFETY: the domain is one of this open connection.
        succeeded(CALL, unsafe { sys::virDomainUndefineFlags(domain.0, everything) }).map(drop)
    }

    fn names(&self) -> Result<Vec<String>, LibvirtError> {
        const CALL: &str = "listing the domains";
        let mut domains = ptr::null_mut();
        // SAFETY: the connection is open, and the output variable for the list outlives the call.
        let count = succeeded(CALL, unsafe {
            sys::virConnectListAllDomains(self.raw, &raw mut domains, 0)
        })?;
        // SAFETY: libvirt returned a list of `count` domains; the caller has to free each of them and the list.
        let found: Vec<DomainPointer> = unsafe { taken(domains, count) }
            .into_iter()
            .map(DomainPointer)
            .collect();
        Ok(found.iter().take(MAX_LIST).map(DomainPointer::name).collect())
    }

    fn guest_info(&self) -> Result<Vec<Parameter>, LibvirtError> {
        const CALL: &str = "calling the guest agent";
        let wanted = sys::VIR_DOMAIN_GUEST_INFO_OS | sys::VIR_DOMAIN_GUEST_INFO_INTERFACES;
        let domain = self.found(CALL)?;
        domain.limit_agent(AGENT_SECONDS);
        match domain.guest_info(CALL, wanted) {
            // If the agent does not support one of these types, the whole call fails. If all types are requested,
            // libvirt leaves out the unsupported ones.
            Err(error) if error.code == sys::VIR_ERR_OPERATION_UNSUPPORTED => domain.guest_info(CALL, 0),
            result => result,
        }
    }

    fn agent_command(&self, command: &str) -> Result<String, LibvirtError> {
        const CALL: &str = "sending a command to the guest agent";
        let command = c_string(CALL, command)?;
        let domain = self.found(CALL)?;
        // SAFETY: the domain is one of this open connection, and the command outlives the call; libvirt returns null or
        // a newly allocated string that it does not keep.
        unsafe {
            let reply = sys::virDomainQemuAgentCommand(domain.0, command.as_ptr(), AGENT_SECONDS, 0);
            owned_text(CALL, reply)
        }
    }

    fn freeze(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "freezing the guest's file systems";
        let domain = self.found(CALL)?;
        domain.limit_agent(FREEZE_SECONDS);
        // SAFETY: the domain is one of this open connection; a call without mount points freezes all file systems.
        succeeded(CALL, unsafe { sys::virDomainFSFreeze(domain.0, ptr::null_mut(), 0, 0) }).map(drop)
    }

    fn thaw(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "thawing the guest's file systems";
        let domain = self.found(CALL)?;
        domain.limit_agent(THAW_SECONDS);
        // SAFETY: the domain is one of this open connection; a call without mount points thaws all file systems.
        succeeded(CALL, unsafe { sys::virDomainFSThaw(domain.0, ptr::null_mut(), 0, 0) }).map(drop)
    }

    fn screenshot(&self) -> Result<Screenshot, LibvirtError> {
        const CALL: &str = "taking a screenshot of the guest's display";
        let domain = self.found(CALL)?;
        let stream = LibvirtStream::new(CALL, self.raw)?;
        // SAFETY: the domain and the stream belong to this open connection; libvirt returns null or a newly allocated
        // string that it does not keep.
        let media_type = unsafe { owned_text(CALL, sys::virDomainScreenshot(domain.0, stream.0, 0, 0)) }?;
        let bytes = stream.read_to_end(CALL)?;
        Ok(Screenshot { media_type, bytes })
    }

    fn block_info(&self, disk: &str) -> Result<BlockInfo, LibvirtError> {
        const CALL: &str = "reading a disk's sizes";
        let disk = c_string(CALL, disk)?;
        let domain = self.found(CALL)?;
        let mut info = sys::virDomainBlockInfo {
            capacity: 0,
            allocation: 0,
            physical: 0,
        };
        // SAFETY: the domain is one of this open connection, and the name and the output variable outlive the call.
        succeeded(CALL, unsafe {
            sys::virDomainGetBlockInfo(domain.0, disk.as_ptr(), &raw mut info, 0)
        })?;
        Ok(BlockInfo {
            capacity: info.capacity,
            allocation: info.allocation,
            physical: info.physical,
        })
    }

    fn versions(&self) -> Result<PodVersions, LibvirtError> {
        const CALL: &str = "reading the versions of libvirt and QEMU";
        let (mut libvirt, mut qemu) = (0, 0);
        // SAFETY: the connection is open, and the output variable outlives the call.
        succeeded(CALL, unsafe {
            sys::virConnectGetLibVersion(self.raw, &raw mut libvirt)
        })?;
        // SAFETY: the connection is open, and the output variable outlives the call.
        succeeded(CALL, unsafe { sys::virConnectGetVersion(self.raw, &raw mut qemu) })?;
        let version = |number| Version(u32::try_from(number).unwrap_or(0));
        Ok(PodVersions {
            libvirt: version(libvirt),
            qemu: version(qemu),
        })
    }

    fn migrate(&self, migration: &Migration) -> Result<Result<(), LibvirtError>, LibvirtError> {
        migration_calls::migrate(self, migration)
    }

    fn abort_job(&self) -> Result<(), LibvirtError> {
        self.change("aborting the domain's job", sys::virDomainAbortJob)
    }

    fn job(&self, which: WhichJob) -> Result<Option<JobInfo>, LibvirtError> {
        migration_calls::job(self, which)
    }

    fn max_downtime(&self) -> Result<u64, LibvirtError> {
        migration_calls::max_downtime(self)
    }

    fn set_max_downtime(&self, milliseconds: u64) -> Result<(), LibvirtError> {
        migration_calls::set_max_downtime(self, milliseconds)
    }

    fn set_bandwidth(&self, mebibytes: u64) -> Result<(), LibvirtError> {
        migration_calls::set_bandwidth(self, mebibytes)
    }

    fn start_post_copy(&self) -> Result<(), LibvirtError> {
        migration_calls::start_post_copy(self)
    }

    fn compare_cpu(&self, cpu: &str, virt_type: VirtType) -> Result<CpuComparison, LibvirtError> {
        migration_calls::compare_cpu(self, cpu, virt_type)
    }
}

impl Drop for LibvirtConnection {
    fn drop(&mut self) {
        // Registered callbacks keep the connection from closing. Errors are ignored: the daemon has usually ended by
        // then, and the local resources are freed anyway.
        for number in &self.callbacks {
            // SAFETY: the connection is open, and the callback is registered with it.
            unsafe { sys::virConnectDomainEventDeregisterAny(self.raw, *number) };
        }
        if self.has_close_callback {
            // SAFETY: the connection is open, and the close callback is registered with it.
            unsafe { sys::virConnectUnregisterCloseCallback(self.raw, Some(listener::closed)) };
        }
        // SAFETY: the connection is open and is not used again.
        let left = unsafe { sys::virConnectClose(self.raw) };
        if left > 0 {
            tracing::debug!(left, "a closed connection to libvirt still has references");
        }
    }
}

impl fmt::Debug for LibvirtConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// A domain that libvirt has looked up. The pointer must not outlive the connection.
struct DomainPointer(sys::virDomainPtr);

impl DomainPointer {
    fn new(call: &'static str, domain: sys::virDomainPtr) -> Result<Self, LibvirtError> {
        if domain.is_null() {
            return Err(LibvirtError::last(call));
        }
        Ok(Self(domain))
    }

    fn name(&self) -> String {
        // SAFETY: the domain is valid; its name ends with a zero byte and lives as long as the domain.
        unsafe { text(sys::virDomainGetName(self.0)) }
    }

    /// Limits how long libvirt waits for a response of the guest agent, in this call and all later calls.
    ///
    /// A libvirt without `virDomainAgentSetResponseTimeout` waits until the deadline of the call.
    fn limit_agent(&self, seconds: c_int) {
        // SAFETY: the domain is one of an open connection.
        if unsafe { sys::virDomainAgentSetResponseTimeout(self.0, seconds, 0) } < 0 {
            tracing::debug!(
                error = %LibvirtError::last("limiting the guest agent's response time"),
                "could not limit the response time of the guest agent"
            );
        }
    }

    fn guest_info(&self, call: &'static str, types: u32) -> Result<Vec<Parameter>, LibvirtError> {
        let (mut parameters, mut count) = (ptr::null_mut(), 0);
        // SAFETY: the domain is one of an open connection, and both output variables outlive the call.
        succeeded(call, unsafe {
            sys::virDomainGetGuestInfo(self.0, types, &raw mut parameters, &raw mut count, 0)
        })?;
        // SAFETY: libvirt returned `count` parameters.
        let read = unsafe { read_parameters(parameters, count) };
        // SAFETY: libvirt has returned this list, and the list is not used after this call.
        unsafe { sys::virTypedParamsFree(parameters, count) };
        Ok(read)
    }
}

/// A stream of a connection. A stream that was not read to its end is aborted when dropped.
struct LibvirtStream(sys::virStreamPtr);

impl LibvirtStream {
    fn new(call: &'static str, connection: sys::virConnectPtr) -> Result<Self, LibvirtError> {
        // SAFETY: the connection is open.
        let stream = unsafe { sys::virStreamNew(connection, 0) };
        if stream.is_null() {
            return Err(LibvirtError::last(call));
        }
        Ok(Self(stream))
    }

    /// Returns all data of the stream, at most [`MAX_BYTES`].
    fn read_to_end(self, call: &'static str) -> Result<Vec<u8>, LibvirtError> {
        let mut all = Vec::new();
        let mut buffer = vec![0_u8; 64 << 10];
        loop {
            // SAFETY: the stream is open, and the buffer has `buffer.len()` bytes and outlives the call.
            let length = succeeded(call, unsafe {
                sys::virStreamRecv(self.0, buffer.as_mut_ptr().cast(), buffer.len())
            })?;
            let read = buffer.get(..length);
            let Some(read) = read.filter(|read| !read.is_empty()) else {
                break;
            };
            if all.len() + read.len() > MAX_BYTES {
                return Err(LibvirtError {
                    call,
                    code: sys::VIR_ERR_OVERFLOW,
                    domain: sys::VIR_FROM_STREAMS,
                    message: format!("the stream has more than {MAX_BYTES} bytes"),
                });
            }
            all.extend_from_slice(read);
        }
        // SAFETY: the stream is open and was read to its end.
        succeeded(call, unsafe { sys::virStreamFinish(self.0) })?;
        Ok(all)
    }
}

impl Drop for LibvirtStream {
    fn drop(&mut self) {
        // SAFETY: this value owns the stream and frees it once; aborting a finished stream does nothing.
        unsafe {
            sys::virStreamAbort(self.0);
            sys::virStreamFree(self.0);
        }
    }
}

impl Drop for DomainPointer {
    fn drop(&mut self) {
        // SAFETY: this value owns the domain and frees it once.
        unsafe { sys::virDomainFree(self.0) };
    }
}

/// Converts a call's numeric return value. A negative number is an error.
fn succeeded(call: &'static str, result: c_int) -> Result<usize, LibvirtError> {
    usize::try_from(result).map_err(|_| LibvirtError::last(call))
}

/// Returns the elements of a list that libvirt allocated, and frees the list itself.
///
/// # Safety
/// `list` must be null or a list of `count` elements from libvirt's allocator, with no other users.
unsafe fn taken<T: Copy>(list: *mut T, count: usize) -> Vec<T> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller; the list is copied before it is freed.
    unsafe {
        let elements = slice::from_raw_parts(list, count).to_vec();
        nix::libc::free(list.cast());
        elements
    }
}
