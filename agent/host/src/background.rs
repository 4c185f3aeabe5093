//! The thread on which this crate waits for descriptors: relays to libvirts, and watches of folders.
//!
//! One for the process, started when it is first needed. It never waits for anything but the kernel,
//! so that a launcher which hangs holds up nobody here.

use std::{io, sync::OnceLock, thread};

use tokio::runtime::{Builder, Handle};

/// Why there is no such thread. `io::Error` cannot be kept and given out many times.
type NotStarted = (io::ErrorKind, String);

/// The runtime of that thread.
///
/// # Errors
/// If the kernel gives no thread or no descriptors. It is not tried again.
pub(crate) fn runtime() -> io::Result<&'static Handle> {
    static HANDLE: OnceLock<Result<Handle, NotStarted>> = OnceLock::new();
    HANDLE
        .get_or_init(|| start().map_err(|error| (error.kind(), error.to_string())))
        .as_ref()
        .map_err(|(kind, message)| io::Error::new(*kind, message.clone()))
}

fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("drydock-host".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}
