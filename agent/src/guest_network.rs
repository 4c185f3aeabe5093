//! Keeps on the node what guests' networks need: the seccomp profile in the kubelet's folder and,
//! where AppArmor is on, its profile in the kernel.
//!
//! Only the agent that acts does: two of different versions would each put its own in place of the
//! other's. A profile that is changed or removed by others is put right at once.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use drydock_api::launcher::SECCOMP_PROFILE;
use drydock_core::guest_network::{Profile, Seen, UserNamespaces};
use drydock_host::{app_armor, roots::Roots, seccomp, user_namespaces};
use drydock_runtime::{Backoff, CancellationToken, Process};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::folder_watch::FolderWatch;

/// The kubelet's folder of seccomp profiles, below its own.
pub(crate) const FOLDER: &str = "seccomp";
/// Pause before a profile that could not be put there is tried again: first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// What the kernel allows of user namespaces.
pub(crate) fn namespaces() -> UserNamespaces {
    let roots = Roots::default();
    UserNamespaces {
        limit: user_namespaces::limit(&roots),
        for_everybody: user_namespaces::for_everybody(&roots),
    }
}

/// Keeps the profiles, until dropped.
pub(crate) struct Profiles {
    seccomp: watch::Receiver<Profile>,
    app_armor: watch::Receiver<Profile>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Profiles {
    /// Begins to keep them, for the kubelet whose folder is `kubelet`. `parser` is the program that
    /// loads AppArmor profiles.
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

    /// Waits until something is otherwise than it was when last seen.
    pub(crate) async fn changed(&mut self) {
        // What is found of AppArmor is found once.
        let (seccomp, app_armor) = (&mut self.seccomp, &mut self.app_armor);
        tokio::select! {
            Ok(()) = seccomp.changed() => {}
            Ok(()) = app_armor.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// What there is now.
    pub(crate) fn seen(&mut self) -> Seen {
        Seen {
            seccomp: self.seccomp.borrow_and_update().clone(),
            user_namespaces: namespaces(),
            app_armor: self.app_armor.borrow_and_update().clone(),
        }
    }

    /// Leaves the profiles as they are and waits until nothing is done about them any more. What
    /// was seen of them can still be asked for.
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

/// Keeps the seccomp profile.
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
                    self.tell(Profile::Installed);
                    match watch.next().await {
                        Ok(_) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            warn!(%error, file = %self.file.display(), "the seccomp profile of launchers cannot be kept");
            self.tell(Profile::Missing(format!("{}: {error}", self.file.display())));
            tokio::time::sleep(self.backoff.delay()).await;
        }
    }

    /// Puts the profile there unless it is, and begins to watch it before it looks, so that no
    /// change is missed.
    fn install_and_watch(&self) -> io::Result<FolderWatch> {
        let (Some(folder), Some(name)) = (self.file.parent(), self.file.file_name()) else {
            return Err(io::Error::other("not a file in a folder"));
        };
        fs::create_dir_all(folder)?;
        let watch = FolderWatch::new(folder, [name])?;
        if !holds(&self.file, &self.wanted) {
            replace(&self.file, &self.wanted)?;
            info!(file = %self.file.display(), "the seccomp profile of launchers is installed");
        }
        Ok(watch)
    }

    fn tell(&self, profile: Profile) {
        self.found.send_if_modified(|before| {
            let differs = *before != profile;
            *before = profile;
            differs
        });
    }
}

/// Whether `file` is an ordinary file with this content.
fn holds(file: &Path, content: &str) -> bool {
    let mut found = Vec::new();
    // One more than expected is enough to see that it is another.
    let limit = u64::try_from(content.len()).unwrap_or(u64::MAX).saturating_add(1);
    let read = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(file)
        .and_then(|file| file.take(limit).read_to_end(&mut found));
    read.is_ok() && found == content.as_bytes()
}

/// Puts `content` in the place of whatever `file` is, all of it or nothing.
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

    /// Waits for what is said, not for a time.
    async fn until(profiles: &mut Profiles, wanted: impl Fn(&Profile) -> bool) {
        while !wanted(&profiles.seen().seccomp) {
            profiles.changed().await;
        }
    }

    /// Waits until the file has the profile again.
    async fn until_right(folder: &Path, file: &Path) {
        let mut watch = FolderWatch::new(folder, [file.file_name().unwrap()]).unwrap();
        while !holds(file, &seccomp::profile()) {
            watch.next().await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_profile_is_there_before_it_is_said_and_comes_back_whatever_is_done_to_it() {
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
        // A link is not followed, and what it points at is left alone.
        std::os::unix::fs::symlink(within.join("away.json"), &file).unwrap();
        until_right(&within, &file).await;

        // The folder is in the way of itself: said, and tried again.
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
