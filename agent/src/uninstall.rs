//! `drydock-agent uninstall`: removes what the agent has left on its host.
//!
//! Waits until no agent acts on the node, using the lock that agents hold ([`host_lock`]). Sends no request to the
//! API server: whether Drydock may be removed is decided before this program is started.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use drydock_api::launcher::SECCOMP_PROFILE;
use drydock_host::{app_armor, roots::Roots};
use thiserror::Error;

use crate::{args::AgentUninstallArgs, device_plugin, guest_network, host_lock};

/// Prefix and suffix of the agent's sockets in the kubelet's folder.
const SOCKET: (&str, &str) = ("drydock-", ".sock");

/// Reason why the files of the agent could not be removed.
#[derive(Debug, Error)]
enum RemovalError {
    #[error("could not wait for the agent of this node to end")]
    Lock(#[source] io::Error),
    #[error("could not remove {path}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("{path} is a symbolic link: delete the target of the link, then the link")]
    Link { path: PathBuf },
    #[error("could not remove the AppArmor profile of launchers from the kernel")]
    AppArmor(#[source] io::Error),
}

/// Removes everything and prints what was removed.
pub(crate) fn run(args: &AgentUninstallArgs) -> ExitCode {
    let removed = files(&args.folders.state_dir, &args.folders.kubelet.kubelet_dir).and_then(|removed| {
        if app_armor::is_on(&Roots::default()) {
            app_armor::unload(&args.apparmor_parser).map_err(RemovalError::AppArmor)?;
        }
        Ok(removed)
    });
    match removed {
        Ok(removed) => {
            for path in &removed {
                println!("removed {}", path.display());
            }
            println!("Drydock has been removed from this host");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("drydock-agent: {}", drydock_runtime::chain(&failure));
            ExitCode::FAILURE
        }
    }
}

/// Removes files and folders, and returns those that existed.
fn files(state: &Path, kubelet: &Path) -> Result<Vec<PathBuf>, RemovalError> {
    let mut removed = Vec::new();
    // Waiting for the lock would create the folder.
    if exists(state)? {
        println!("waiting until no agent is active on this host");
        let acts = host_lock::wait(state).acts.blocking_recv();
        let acts = acts.unwrap_or_else(|_| Err(io::Error::other("the wait ended early")));
        let _lock = acts.map_err(RemovalError::Lock)?;
        remove(state, &mut removed)?;
    }
    for socket in sockets(&kubelet.join(device_plugin::FOLDER))? {
        remove(&socket, &mut removed)?;
    }
    let profile = kubelet.join(guest_network::FOLDER).join(SECCOMP_PROFILE);
    if let Some(folder) = profile.parent() {
        remove(folder, &mut removed)?;
    }
    Ok(removed)
}

/// Returns whether a folder exists. Refuses a symbolic link: its destination is outside this container.
fn exists(path: &Path) -> Result<bool, RemovalError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(RemovalError::Link { path: path.to_owned() }),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(RemovalError::Remove {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Returns the agent's sockets in the kubelet's folder of device plugins.
fn sockets(folder: &Path) -> Result<Vec<PathBuf>, RemovalError> {
    let failed = |source| RemovalError::Remove {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut sockets = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(SOCKET.0) && name.ends_with(SOCKET.1) {
            sockets.push(entry.path());
        }
    }
    Ok(sockets)
}

/// Removes a file, or a folder with its content. A missing path is no error.
fn remove(path: &Path, removed: &mut Vec<PathBuf>) -> Result<(), RemovalError> {
    let result = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => {
            removed.push(path.to_owned());
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(RemovalError::Remove {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, sync::mpsc, thread, time::Duration};

    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        /// Creates a host as an agent leaves it, along with files of others.
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            for folder in [
                "drydock/tunnels",
                "drydock/devices",
                "kubelet/device-plugins",
                "kubelet/seccomp/drydock",
            ] {
                fs::create_dir_all(host.0.path().join(folder)).unwrap();
            }
            for file in [
                "drydock/agent.lock",
                "kubelet/device-plugins/drydock-kvm.sock",
                "kubelet/device-plugins/kubelet.sock",
                "kubelet/device-plugins/drydock-notes",
                "kubelet/seccomp/drydock/launcher.json",
                "kubelet/seccomp/others.json",
            ] {
                fs::write(host.0.path().join(file), "x").unwrap();
            }
            host
        }

        fn state(&self) -> PathBuf {
            self.0.path().join("drydock")
        }

        fn kubelet(&self) -> PathBuf {
            self.0.path().join("kubelet")
        }

        fn has(&self, path: &str) -> bool {
            self.0.path().join(path).exists()
        }
    }

    #[test]
    fn uninstall_removes_only_files_of_the_agent() {
        let host = Host::new();
        assert_eq!(files(&host.state(), &host.kubelet()).unwrap().len(), 3);
        for gone in [
            "drydock",
            "kubelet/device-plugins/drydock-kvm.sock",
            "kubelet/seccomp/drydock",
        ] {
            assert!(!host.has(gone), "{gone}");
        }
        for there in [
            "kubelet/device-plugins/kubelet.sock",
            "kubelet/device-plugins/drydock-notes",
            "kubelet/seccomp/others.json",
        ] {
            assert!(host.has(there), "{there}");
        }
        assert_eq!(files(&host.state(), &host.kubelet()).unwrap(), Vec::<PathBuf>::new());
        assert!(!host.has("drydock"), "the second time must not make the folder");
    }

    #[test]
    fn host_without_drydock_and_kubelet_is_clean() {
        let folder = tempfile::tempdir().unwrap();
        let removed = files(&folder.path().join("drydock"), &folder.path().join("kubelet")).unwrap();
        assert_eq!(removed, Vec::<PathBuf>::new());
    }

    #[test]
    fn nothing_is_removed_while_an_agent_acts() {
        let host = Host::new();
        let agent = host_lock::wait(&host.state()).acts.blocking_recv().unwrap().unwrap();
        let (ended, end) = mpsc::channel();
        let (state, kubelet) = (host.state(), host.kubelet());
        let removing = thread::spawn(move || {
            let removed = files(&state, &kubelet).unwrap();
            ended.send(()).unwrap();
            removed
        });
        assert!(end.recv_timeout(Duration::from_millis(200)).is_err());
        assert!(host.has("kubelet/seccomp/drydock/launcher.json"));
        drop(agent);
        assert_eq!(removing.join().unwrap().len(), 3);
    }

    #[test]
    fn folder_that_is_a_link_is_refused() {
        let host = Host::new();
        let link = host.0.path().join("link");
        symlink(host.state(), &link).unwrap();
        let error = files(&link, &host.kubelet()).unwrap_err();
        assert!(matches!(error, RemovalError::Link { .. }), "{error}");
        assert!(host.has("drydock/agent.lock"));
    }
}
