//! libvirt's own event loop. libvirt supports one event loop per process.

use std::{io, sync::OnceLock, thread, time::Duration};

use virt::error::{Error, clear_error_callback};
use virt_sys as sys;

/// Stack size of the event loop's thread in bytes.
const STACK: usize = 256 * 1024;

/// Delay after an error of the event loop, so that a persistent error does not use a whole CPU.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// Starts the event loop once per process. Connections that need events and keep-alives must be opened afterwards.
///
/// # Errors
/// If libvirt refuses the event loop or the kernel cannot create a thread. The start is not retried.
#[expect(unsafe_code, reason = "the virt crate has no binding for the default event loop")]
pub(crate) fn start() -> io::Result<()> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let start = || {
        clear_error_callback();
        // SAFETY: called once in this process, before any connection that needs the loop.
        if unsafe { sys::virEventRegisterDefaultImpl() } < 0 {
            return Err(Error::last_error().message().to_owned());
        }
        thread::Builder::new()
            .name("libvirt events".into())
            .stack_size(STACK)
            .spawn(run)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    STARTED.get_or_init(start).clone().map_err(io::Error::other)
}

#[expect(unsafe_code, reason = "the virt crate has no binding for the default event loop")]
fn run() {
    loop {
        // SAFETY: the default implementation is registered, and this is the only thread that runs it.
        if unsafe { sys::virEventRunDefaultImpl() } < 0 {
            tracing::warn!(error = Error::last_error().message(), "libvirt's event loop failed");
            thread::sleep(AFTER_ERROR);
        }
    }
}
