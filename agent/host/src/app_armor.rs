//! The AppArmor profile of launcher pods, for kernels with AppArmor.
//!
//! The container runtime's default profile denies mounts, which breaks passt's sandbox. Like the default profile, this
//! profile protects /proc and /sys. The pod's lack of capabilities and its seccomp profile cover the rest.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::roots::Roots;

const PROFILE: &str = include_str!("app_armor/drydock-launcher");
/// The profile's name inside `PROFILE`.
const NAME: &str = "drydock-launcher";

/// Returns whether AppArmor is enabled in the kernel.
pub fn is_on(roots: &Roots) -> bool {
    roots.sys_text("module/apparmor/parameters/enabled").as_deref() == Some("Y")
}

/// Loads the profile into the kernel with the program `apparmor_parser`, replacing an older version.
///
/// # Errors
/// If the program does not exist or fails. The error contains the last line of its stderr.
pub fn load(parser: &Path) -> io::Result<()> {
    let parser = parser.to_owned();
    in_own_mounts(move |kernel| run(&parser, "--replace", kernel))
}

/// Removes the profile from the kernel if it is loaded.
///
/// # Errors
/// As for [`load`].
pub fn unload(parser: &Path) -> io::Result<()> {
    let parser = parser.to_owned();
    in_own_mounts(move |kernel| {
        let profiles = fs::read_to_string(kernel.join("profiles"))?;
        if has_profile(&profiles) {
            run(&parser, "--remove", kernel)
        } else {
            Ok(())
        }
    })
}

/// Returns whether the kernel's list of profiles, one per line as in `name (enforce)`, contains the launcher profile.
fn has_profile(profiles: &str) -> bool {
    profiles.lines().any(|line| line.split(" (").next() == Some(NAME))
}

/// Runs `act` on the kernel's AppArmor folder in securityfs.
///
/// The folder is not visible in a container, even a privileged container, so securityfs is mounted.
fn in_own_mounts(act: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) -> io::Result<()> {
    // The mount is visible only to this thread and its child processes.
    let done = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
        let folder = MountFolder::new()?;
        mount(
            Some("securityfs"),
            &folder.0,
            Some("securityfs"),
            MsFlags::empty(),
            nothing,
        )?;
        let result = act(&folder.0.join("apparmor"));
        umount2(&folder.0, MntFlags::MNT_DETACH)?;
        result
    });
    done.join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

fn run(parser: &Path, action: &str, kernel: &Path) -> io::Result<()> {
    let mut child = Command::new(parser)
        .args([action, "--skip-cache", "--subdomainfs"])
        .arg(kernel)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", parser.display())))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(PROFILE.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&done.stderr);
    let last = message
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("no error output");
    Err(io::Error::other(format!(
        "{}: {}: {last}",
        parser.display(),
        done.status
    )))
}

/// An empty folder to use as a mount point.
struct MountFolder(PathBuf);

impl MountFolder {
    fn new() -> io::Result<Self> {
        Ok(Self(nix::unistd::mkdtemp(
            &std::env::temp_dir().join("drydock-securityfs-XXXXXX"),
        )?))
    }
}

impl Drop for MountFolder {
    fn drop(&mut self) {
        // If the removal fails, only an empty folder remains in the temporary directory.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_armor_is_on_only_if_kernel_reports_enabled() {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-apparmor-XXXXXX")).unwrap();
        let roots = Roots {
            sys: folder.clone(),
            ..Roots::default()
        };
        assert!(!is_on(&roots));
        let parameters = folder.join("module/apparmor/parameters");
        fs::create_dir_all(&parameters).unwrap();
        for (text, expected) in [("Y\n", true), ("N\n", false)] {
            fs::write(parameters.join("enabled"), text).unwrap();
            assert_eq!(is_on(&roots), expected);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn profile_is_found_only_by_the_whole_name() {
        assert!(PROFILE.contains(&format!("profile {NAME} ")));
        for (profiles, expected) in [
            ("docker-default (enforce)\ndrydock-launcher (enforce)\n", true),
            ("drydock-launcher (complain)\n", true),
            ("drydock-launcher-2 (enforce)\nmy-drydock-launcher (enforce)\n", false),
            ("", false),
        ] {
            assert_eq!(has_profile(profiles), expected, "{profiles:?}");
        }
    }

    #[test]
    fn parser_gets_the_profile_and_the_last_line_is_the_error() {
        let folder = MountFolder::new().unwrap();
        let script = folder.0.join("parser");
        let got = folder.0.join("got");
        let write = |text: String| {
            fs::write(&script, text).unwrap();
            fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        };
        write(format!("#!/bin/sh\ncat > {0}; echo \"$@\" >> {0}\n", got.display()));
        run(&script, "--replace", Path::new("/kernel")).unwrap();
        let text = fs::read_to_string(&got).unwrap();
        assert!(text.contains("profile drydock-launcher"), "{text}");
        assert!(
            text.ends_with("--replace --skip-cache --subdomainfs /kernel\n"),
            "{text}"
        );
        write("#!/bin/sh\ncat > /dev/null\necho one >&2\necho 'no such rule' >&2\nexit 3\n".into());
        let error = run(&script, "--replace", Path::new("/kernel")).unwrap_err().to_string();
        assert!(
            error.contains("exit status: 3") && error.ends_with("no such rule"),
            "{error}"
        );
        let error = run(Path::new("/no/parser"), "--replace", Path::new("/kernel")).unwrap_err();
        assert!(error.to_string().starts_with("/no/parser: "), "{error}");
        fs::remove_dir_all(&folder.0).unwrap();
    }
}
