//! Keeps the profiles that guests' networks need installed on the node.
//!
//! The profiles are the seccomp profile in the kubelet's folder and, where AppArmor is enabled, the AppArmor profile in
//! the kernel. Only the acting agent installs them: two agents of different versions would keep replacing each other's
//! seccomp profile. If another program changes or removes the seccomp profile, the agent restores it at once.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use drydock_api::launcher::SECCOMP_PROFILE;
use drydock_core::guest_network::{ObservedNetwork, Profile, UserNamespaces};
use drydock_host::{app_armor, roots::Roots, seccomp, user_namespaces};
use drydock_runtime::{Backoff, CancellationToken, Process};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::folder_watch::FolderWatch;

/// The kubelet's folder of seccomp profiles, relative to the kubelet's root.
pub(crate) const FOLDER: &str = "seccomp";
/// Minimum and maximum pause before the installation of a profile is retried.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// Returns what the kernel allows for user namespaces.
pub(crate) fn namespaces() -> UserNamespaces {
    let roots = Roots::default();
    UserNamespaces {
        limit: user_namespaces::limit(&roots),
        for_everybody: user_namespaces::for_everybody(&roots),
    }
}

/// Keeps the profiles installed until the value is dropped.
pub(crate) struct Profiles {
    seccomp: watch::Receiver<Profile>,
    app_armor: watch::Receiver<Profile>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Profiles {
    /// Starts installing the profiles for the kubelet whose folder is `kubelet`. `parser` is the program that loads
    /// AppArmor profiles.
    pub(crate) fn start(process: &Process, kubelet: &Path, parser: &Path) -> Self {
        let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (found, seccomp) = watch::channel(Profile::Unknown);
        let (loaded, app_armor) = watch::channel(Profile::Unknown);
        let keeper = SeccompKeeper {
            file: kubelet.join(FOLDER).join(SECCOMP_PROFILE),
            wanted: seccomp::profile(),
            found,
            backoff: Backoff::new(RETRY.0, RETRY.1),
        };
        let until = closing.clone();
        process.spawn(
            "seccomp profile",
            tasks.track_future(async move {
                until.run_until_cancelled(keeper.keep()).await;
            }),
        );
        if app_armor::is_on(&Roots::default()) {
            let parser = parser.to_owned();
            let load = tokio::task::spawn_blocking(move || app_armor::load(&parser));
            process.spawn("AppArmor profile", async move {
                let result = load.await.unwrap_or_else(|error| Err(io::Error::other(error)));
                if let Err(error) = &result {
                    warn!(%error, "the AppArmor profile of launchers cannot be loaded");
                }
                loaded.send_replace(
                    result.map_or_else(|error| Profile::Missing(error.to_string()), |()| Profile::Installed),
                );
            });
        } else {
            loaded.send_replace(Profile::NotNeeded);
        }
        tasks.close();
        Self {
            seccomp,
            app_armor,
            closing,
            tasks,
        }
    }

    /// Waits until the state differs from the result of the last [`seen`](Self::seen).
    pub(crate) async fn changed(&mut self) {
        // The AppArmor profile is loaded only once, so its sender may have been dropped.
        let (seccomp, app_armor) = (&mut self.seccomp, &mut self.app_armor);
        tokio::select! {
            Ok(()) = seccomp.changed() => {}
            Ok(()) = app_armor.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// Returns the current state of the profiles and of the kernel's user namespaces.
    pub(crate) fn seen(&mut self) -> ObservedNetwork {
        ObservedNetwork {
            seccomp: self.seccomp.borrow_and_update().clone(),
            user_namespaces: namespaces(),
            app_armor: self.app_armor.borrow_and_update().clone(),
        }
    }

    /// Stops maintaining the profiles, leaves them installed, and waits until the tasks have ended.
    /// [`seen`](Self::seen) still works afterwards.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Keeps the seccomp profile installed.
struct SeccompKeeper {
    file: PathBuf,
    wanted: String,
    found: watch::Sender<Profile>,
    backoff: Backoff,
}

impl SeccompKeeper {
    async fn keep(mut self) {
        loop {
            let error = match self.install_and_watch() {
                Ok(mut watch) => {
                    self.backoff.reset();
                    self.publish(Profile::Installed);
                    match watch.next().await {
                        Ok(_) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            warn!(
                %error, file = %self.file.display(),
                "could not install or watch the seccomp profile of launchers, retrying"
            );
            self.publish(Profile::Missing(format!("{}: {error}", self.file.display())));
            tokio::time::sleep(self.backoff.delay()).await;
        }
    }

    /// Installs the profile unless the file already has it. The watch starts before the check, so that no change is
    /// missed.
    fn install_and_watch(&self) -> io::Result<FolderWatch> {
        let (Some(folder), Some(name)) = (self.file.parent(), self.file.file_name()) else {
            return Err(io::Error::other("the path has no file name or no parent folder"));
        };
        fs::create_dir_all(folder)?;
        let watch = FolderWatch::new(folder, [name])?;
        if !holds(&self.file, &self.wanted) {
            replace(&self.file, &self.wanted)?;
            info!(file = %self.file.display(), "the seccomp profile of launchers is installed");
        }
        Ok(watch)
    }

    fn publish(&self, profile: Profile) {
        self.found.send_if_modified(|before| {
            let differs = *before != profile;
            *before = profile;
            differs
        });
    }
}

/// Returns whether `file` is a regular file with this content.
fn holds(file: &Path, content: &str) -> bool {
    let mut found = Vec::new();
    // One byte more than expected is enough to detect a longer file.
    let limit = u64::try_from(content.len()).unwrap_or(u64::MAX).saturating_add(1);
    let read = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(file)
        .and_then(|file| file.take(limit).read_to_end(&mut found));
    read.is_ok() && found == content.as_bytes()
}

/// Atomically replaces `file`, whatever its type, with a file that contains `content`.
fn replace(file: &Path, content: &str) -> io::Result<()> {
    let fresh = file.with_extension("json.new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut writer = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&fresh)?;
    writer.write_all(content.as_bytes())?;
    writer.sync_all()?;
    fs::rename(&fresh, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("drydock-profiles-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// Waits until the reported seccomp profile is as wanted.
    async fn until(profiles: &mut Profiles, wanted: impl Fn(&Profile) -> bool) {
        while !wanted(&profiles.seen().seccomp) {
            profiles.changed().await;
        }
    }

    /// Waits until the file contains the profile again.
    async fn until_right(folder: &Path, file: &Path) {
        let mut watch = FolderWatch::new(folder, [file.file_name().unwrap()]).unwrap();
        while !holds(file, &seccomp::profile()) {
            watch.next().await.unwrap();
        }
    }

    #[tokio::test]
    async fn seccomp_profile_is_installed_before_report_and_restored() {
        let kubelet = folder("kept");
        let process = Process::new();
        let mut profiles = Profiles::start(&process, &kubelet, Path::new("/no/parser"));
        until(&mut profiles, |profile| *profile == Profile::Installed).await;
        let within = kubelet.join("seccomp/drydock");
        let file = within.join("launcher.json");
        assert!(holds(&file, &seccomp::profile()));

        fs::write(&file, "{}").unwrap();
        until_right(&within, &file).await;
        fs::remove_file(&file).unwrap();
        until_right(&within, &file).await;
        fs::rename(&file, within.join("away.json")).unwrap();
        until_right(&within, &file).await;
        fs::remove_file(&file).unwrap();
        // The agent does not follow a symbolic link, and leaves its destination unchanged.
        std::os::unix::fs::symlink(within.join("away.json"), &file).unwrap();
        until_right(&within, &file).await;

        // A file has the path of the folder: the error is reported, and the installation is retried.
        fs::remove_dir_all(kubelet.join("seccomp")).unwrap();
        fs::write(kubelet.join("seccomp"), "").unwrap();
        until(&mut profiles, |profile| matches!(profile, Profile::Missing(_))).await;
        fs::remove_file(kubelet.join("seccomp")).unwrap();
        until(&mut profiles, |profile| *profile == Profile::Installed).await;
        assert!(holds(&file, &seccomp::profile()));
        profiles.close().await;
        fs::remove_dir_all(kubelet).unwrap();
    }
}
