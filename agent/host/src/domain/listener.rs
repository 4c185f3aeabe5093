//! What libvirt's event loop calls when something happens to a domain or its connection.
//!
//! It runs for all connections of the process, so these come back at once, and call libvirt for
//! nothing but the name of the domain at hand.

#![expect(unsafe_code, reason = "libvirt calls C functions, with pointers")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem,
    sync::Arc,
};

use virt_sys as sys;

use super::{
    JobInfo, JobType,
    connection::{read_parameters, text},
    event::{AgentChannel, CloseReason, DomainEvent, IoErrorAction, Shared},
    lifecycle::Lifecycle,
};

/// What libvirt's event loop knows of a connection.
pub(super) struct Listener {
    pub(super) domain: CString,
    pub(super) shared: Arc<Shared>,
}

/// A callback of any event: libvirt casts it to that of the event it was registered for.
pub(super) type EventCallback = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void);
type LifecycleCallback =
    unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, c_int, c_int, *mut c_void) -> c_int;
type IoErrorCallback = unsafe extern "C" fn(
    sys::virConnectPtr,
    sys::virDomainPtr,
    *const c_char,
    *const c_char,
    c_int,
    *const c_char,
    *mut c_void,
);
type AgentCallback = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, c_int, c_int, *mut c_void);
type JobCallback =
    unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, sys::virTypedParameterPtr, c_int, *mut c_void);
type IterationCallback = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, c_int, *mut c_void);

/// The events that are asked for, and what is called for each.
pub(super) fn events() -> [(u32, EventCallback); 6] {
    // SAFETY: libvirt calls each with the arguments of its own event, whatever the type says here.
    unsafe {
        [
            (
                sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE,
                mem::transmute::<LifecycleCallback, EventCallback>(lifecycle),
            ),
            (sys::VIR_DOMAIN_EVENT_ID_REBOOT, reboot as EventCallback),
            (
                sys::VIR_DOMAIN_EVENT_ID_IO_ERROR_REASON,
                mem::transmute::<IoErrorCallback, EventCallback>(io_error),
            ),
            (
                sys::VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE,
                mem::transmute::<AgentCallback, EventCallback>(agent_lifecycle),
            ),
            (
                sys::VIR_DOMAIN_EVENT_ID_JOB_COMPLETED,
                mem::transmute::<JobCallback, EventCallback>(job_completed),
            ),
            (
                sys::VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION,
                mem::transmute::<IterationCallback, EventCallback>(iteration),
            ),
        ]
    }
}

/// The listener of a connection, if the event is about its domain.
///
/// # Safety
/// `domain` must be a domain, and `opaque` what was registered, as libvirt gives them to callbacks.
unsafe fn listener<'a>(domain: sys::virDomainPtr, opaque: *mut c_void) -> Option<&'a Listener> {
    // SAFETY: `opaque` is a reference to a listener that is held until `release`, which libvirt calls
    // when no callback runs any more; the name ends with a zero byte and lives as long as the domain.
    unsafe {
        let listener: &Listener = &*opaque.cast::<Listener>();
        let name = sys::virDomainGetName(domain);
        (!name.is_null() && CStr::from_ptr(name) == listener.domain.as_c_str()).then_some(listener)
    }
}

unsafe extern "C" fn lifecycle(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    event: c_int,
    detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: libvirt calls this with what was registered.
    if let Some(listener) = unsafe { listener(domain, opaque) } {
        let event = Lifecycle::from_raw(event, detail);
        listener.shared.forward(DomainEvent::Lifecycle(event));
    }
    0
}

unsafe extern "C" fn reboot(_: sys::virConnectPtr, domain: sys::virDomainPtr, opaque: *mut c_void) {
    // SAFETY: libvirt calls this with what was registered.
    if let Some(listener) = unsafe { listener(domain, opaque) } {
        listener.shared.forward(DomainEvent::Reboot);
    }
}

unsafe extern "C" fn io_error(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _path: *const c_char,
    alias: *const c_char,
    action: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt calls this with what was registered, and with texts that are null or end with a
    // zero byte.
    unsafe {
        if let Some(listener) = listener(domain, opaque) {
            listener.shared.forward(DomainEvent::IoError {
                disk: text(alias),
                action: IoErrorAction::from_raw(action),
                reason: text(reason),
            });
        }
    }
}

unsafe extern "C" fn agent_lifecycle(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    state: c_int,
    _reason: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt calls this with what was registered.
    if let Some(listener) = unsafe { listener(domain, opaque) } {
        listener
            .shared
            .forward(DomainEvent::Agent(AgentChannel::from_raw(state)));
    }
}

unsafe extern "C" fn job_completed(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    parameters: sys::virTypedParameterPtr,
    count: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt calls this with what was registered, and with as many parameters as it says, which
    // it frees itself.
    unsafe {
        if let Some(listener) = listener(domain, opaque) {
            // The event does not say the type; the parameters say whether it ended well.
            let parameters = read_parameters(parameters, count);
            let job = JobInfo::from_parameters(JobType::Completed, &parameters);
            listener.shared.forward(DomainEvent::JobCompleted(job.map(Box::new)));
        }
    }
}

unsafe extern "C" fn iteration(_: sys::virConnectPtr, domain: sys::virDomainPtr, number: c_int, opaque: *mut c_void) {
    // SAFETY: libvirt calls this with what was registered.
    if let Some(listener) = unsafe { listener(domain, opaque) } {
        listener.shared.forward(DomainEvent::MigrationIteration(number));
    }
}

/// The connection has ended by itself.
pub(super) unsafe extern "C" fn closed(_: sys::virConnectPtr, reason: c_int, opaque: *mut c_void) {
    // SAFETY: `opaque` is a reference to a listener that is held until `release`.
    let listener = unsafe { &*opaque.cast::<Listener>() };
    listener.shared.finish(CloseReason::from_raw(reason));
}

/// libvirt needs a callback no more.
pub(super) unsafe extern "C" fn release(opaque: *mut c_void) {
    // SAFETY: a reference that was given to libvirt when the callback was registered, given back once.
    drop(unsafe { Arc::from_raw(opaque.cast::<Listener>().cast_const()) });
}
