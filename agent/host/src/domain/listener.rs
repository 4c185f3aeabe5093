//! Callbacks that libvirt's event loop calls for events of a domain or its connection.
//!
//! The event loop serves all connections of the process, so these callbacks return at once. The only libvirt call in
//! these callbacks reads the name of the event's domain.

#![expect(unsafe_code, reason = "libvirt calls C functions, with pointers")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem,
    sync::Arc,
};

use virt_sys as sys;

use super::{
    JobInfo, JobType,
    c_values::{read_parameters, text},
    event::{AgentChannel, CloseReason, DomainEvent, EventSource, IoErrorAction},
    lifecycle::LifecycleEvent,
};

/// The state that libvirt's event loop keeps for a connection.
pub(super) struct Listener {
    pub(super) domain: CString,
    pub(super) shared: Arc<EventSource>,
}

/// A callback for any event. libvirt casts it to the type of the event for which it was registered.
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

/// Returns the subscribed events, each with its callback.
pub(super) fn events() -> [(u32, EventCallback); 6] {
    // SAFETY: libvirt calls each callback with the arguments of its own event, regardless of the type used here.
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

/// Returns the listener of a connection if the event belongs to the connection's domain.
///
/// # Safety
/// `domain` must be a domain and `opaque` the registered pointer, as libvirt passes them to callbacks.
unsafe fn listener<'a>(domain: sys::virDomainPtr, opaque: *mut c_void) -> Option<&'a Listener> {
    // SAFETY: `opaque` refers to a listener that lives until `release`, which libvirt calls when no callback is running
    // any more; the name ends with a zero byte and lives as long as the domain.
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
    // SAFETY: libvirt calls this with the registered pointer.
    if let Some(listener) = unsafe { listener(domain, opaque) } {
        let event = LifecycleEvent::from_raw(event, detail);
        listener.shared.forward(DomainEvent::Lifecycle(event));
    }
    0
}

unsafe extern "C" fn reboot(_: sys::virConnectPtr, domain: sys::virDomainPtr, opaque: *mut c_void) {
    // SAFETY: libvirt calls this with the registered pointer.
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
    // SAFETY: libvirt calls this with the registered pointer, and with strings that are null or end with a zero byte.
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
    // SAFETY: libvirt calls this with the registered pointer.
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
    // SAFETY: libvirt calls this with the registered pointer and with `count` parameters, which it frees itself.
    unsafe {
        if let Some(listener) = listener(domain, opaque) {
            // The event does not contain the job type, but its parameters contain whether the job succeeded.
            let parameters = read_parameters(parameters, count);
            let job = JobInfo::from_parameters(JobType::Completed, &parameters);
            listener.shared.forward(DomainEvent::JobCompleted(job.map(Box::new)));
        }
    }
}

unsafe extern "C" fn iteration(_: sys::virConnectPtr, domain: sys::virDomainPtr, number: c_int, opaque: *mut c_void) {
    // SAFETY: libvirt calls this with the registered pointer.
    if let Some(listener) = unsafe { listener(domain, opaque) } {
        listener.shared.forward(DomainEvent::MigrationIteration(number));
    }
}

/// Callback for a connection that has ended without a request to close it.
pub(super) unsafe extern "C" fn closed(_: sys::virConnectPtr, reason: c_int, opaque: *mut c_void) {
    // SAFETY: `opaque` refers to a listener that lives until `release`.
    let listener = unsafe { &*opaque.cast::<Listener>() };
    listener.shared.finish(CloseReason::from_raw(reason));
}

/// Callback for the release of a registered callback's data, after the last use by libvirt.
pub(super) unsafe extern "C" fn release(opaque: *mut c_void) {
    // SAFETY: the reference that was passed to libvirt when the callback was registered. libvirt releases it once.
    drop(unsafe { Arc::from_raw(opaque.cast::<Listener>().cast_const()) });
}
