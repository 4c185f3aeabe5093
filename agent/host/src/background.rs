//! Thread that polls file descriptors for this crate: relays to libvirts, and folder watches.
//!
//! Each process has one thread, which is started on first use. The thread waits only for the kernel, so a launcher that
//! hangs does not block any other task.

use std::{io, sync::OnceLock, thread};

use tokio::runtime::{Builder, Handle};

/// Reason why the thread could not be started. `io::Error` is not `Clone`, so it cannot be stored and returned
/// repeatedly.
type NotStarted = (io::ErrorKind, String);

/// Returns the runtime of the thread.
///
/// # Errors
/// If the kernel cannot provide the thread or the descriptors. The start is not retried.
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
