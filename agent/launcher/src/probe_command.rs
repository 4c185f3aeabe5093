//! What the kubelet asks of the guest through the launcher, in a process of its own.
//!
//! ```text
//! kubelet ─▶ drydock-launcher wait-started ─▶ libvirt: does it run here yet?
//! kubelet ─▶ drydock-launcher probe-tcp    ─▶ passt ─▶ guest: takes the connection, or refuses it
//! ```

use std::{
    io::{self, Read},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use drydock_api::launcher::{Guest, STARTED_WITHIN_SECONDS};

use crate::{addresses, domain_state::DomainState, folders::Folders, libvirt_settings, lifecycle::Question};

/// Pause between two looks at the guest.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits until the guest runs in this pod; fails once it has taken too long, or libvirt has no such guest.
pub(crate) fn wait_started(guest: &Guest, root: &Path) -> ExitCode {
    let folders = Folders::below(root);
    let within = Duration::from_secs(u64::try_from(STARTED_WITHIN_SECONDS).unwrap_or_default());
    let begun = Instant::now();
    loop {
        let found = state(guest, &folders);
        if found == Ok(DomainState::Running) {
            return ExitCode::SUCCESS;
        }
        if begun.elapsed() >= within {
            return told(&match found {
                Ok(state) => format!("the guest does not run here yet: {state:?}"),
                Err(error) => format!("libvirt does not say: {error}"),
            });
        }
        thread::sleep(AGAIN);
    }
}

fn state(guest: &Guest, folders: &Folders) -> Result<DomainState, String> {
    let output = libvirt_settings::virsh_command(Question::State, &guest.domain, folders)
        .output()
        .map_err(|error| format!("virsh cannot be started: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    DomainState::from_virsh(output.status.success(), &text(&output.stdout), &text(&output.stderr))
}

/// Connects to a port of the guest; fails if the guest refuses the connection within `patience`.
pub(crate) fn probe_tcp(port: u16, patience: Duration) -> ExitCode {
    let Some(pod) = addresses::of_pod().into_iter().next() else {
        return told("the pod has no address");
    };
    match takes_connections(SocketAddr::new(pod.address, port), patience) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => told(&format!("port {port} of the guest: {error}")),
    }
}

/// passt takes each connection, and ends it once the guest has refused it.
fn takes_connections(address: SocketAddr, patience: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    match stream.read(&mut [0]) {
        Ok(0) => Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "the connection was ended before anything was sent",
        )),
        Ok(_) => Ok(()),
        // Who waits to be asked has taken it.
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(()),
        Err(error) => Err(error),
    }
}

fn told(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::TcpListener};

    use super::*;

    #[test]
    fn a_connection_counts_when_it_is_kept_or_spoken_on() {
        const PATIENCE: Duration = Duration::from_millis(200);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody has taken it yet, and nobody has refused it.
        takes_connections(address, PATIENCE).unwrap();
        drop(listener.accept().unwrap());

        let server = thread::spawn(move || {
            let (mut spoken, _) = listener.accept().unwrap();
            spoken.write_all(b"hello").unwrap();
            drop(spoken);
            let (ended, _) = listener.accept().unwrap();
            drop(ended);
        });
        // Long enough for what certainly comes.
        const LONG: Duration = Duration::from_secs(30);
        takes_connections(address, LONG).unwrap();
        let refused = takes_connections(address, LONG).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        server.join().unwrap();
        assert!(takes_connections(address, PATIENCE).is_err(), "nobody listens");
    }
}
