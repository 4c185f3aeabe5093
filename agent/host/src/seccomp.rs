//! The seccomp profile of launcher pods.
//!
//! The profile is the container runtime's default profile plus the few calls with which passt, a guest's network,
//! sandboxes itself.
//!
//! ```text
//!  unshare(NEWUSER) ─▶ unshare(NEWNS|NEWUTS|NEWIPC|NEWPID) ─▶ mount ×2 ─▶ pivot_root ─▶ umount2 ─▶ its own filter
//! ```
//!
//! Only exactly these flags are allowed. Outside its own user namespace, the pod has no permission for any of these
//! calls, whatever the profile allows. Inside, it can neither create a network namespace nor mount anything except
//! passt's mounts. The profile is stricter than the default in two respects: foreign 32-bit calls are denied, and
//! sockets are limited to the four families that QEMU, libvirt and passt use. The limit is needed because a user
//! namespace exposes more of the kernel to the other families.

use serde_json::{Value, json};

const ALLOWED: &str = include_str!("seccomp/allowed.txt");

/// Allowed socket families: AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK.
const SOCKET_FAMILIES: [u64; 4] = [1, 2, 10, 16];
/// Values that `personality` may set, as in the default: Linux, and both with UNAME26. The last value is the query.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// All namespace flags of `clone`. As in the default, none of them is allowed.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;
/// Allowed flags of `unshare`: first CLONE_NEWUSER, then the combination of CLONE_NEWNS, NEWUTS, NEWIPC and NEWPID.
const UNSHARE: [u64; 2] = [0x1000_0000, 0x2c02_0000];
/// Allowed flags of `mount`.
///
/// The first value is MS_REC and MS_UNBINDABLE, which only restricts existing mounts. The second is MS_RDONLY, NOSUID,
/// NODEV and NOEXEC, with which passt mounts an empty root.
const MOUNT: [u64; 2] = [0x2_4000, 0xf];
/// Allowed flags of `umount2`: MNT_DETACH and UMOUNT_NOFOLLOW, which remove the old root.
const UMOUNT: u64 = 0xa;
const ENOSYS: u32 = 38;

/// Returns the profile for this machine, as JSON in the format of the OCI runtime specification.
pub fn profile() -> String {
    profile_for(std::env::consts::ARCH)
}

fn profile_for(architecture: &str) -> String {
    // On s390x, the kernel takes the flags of `clone` as the second argument.
    let (name, clone_flags) = match architecture {
        "aarch64" => ("SCMP_ARCH_AARCH64", 0),
        "s390x" => ("SCMP_ARCH_S390X", 1),
        _ => ("SCMP_ARCH_X86_64", 0),
    };
    let mut rules = vec![json!({"names": names(), "action": "SCMP_ACT_ALLOW"})];
    rules.extend(SOCKET_FAMILIES.map(|family| only("socket", 0, family)));
    rules.extend(PERSONALITIES.map(|personality| only("personality", 0, personality)));
    rules.push(json!({
        "names": ["clone"],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": clone_flags, "value": CLONE_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
    }));
    // The flags of `clone3` are in memory, where a filter cannot check them. If the call fails with ENOSYS, the C
    // library falls back to `clone`.
    rules.push(json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}));
    rules.extend(UNSHARE.map(|flags| only("unshare", 0, flags)));
    rules.extend(MOUNT.map(|flags| only("mount", 3, flags)));
    rules.push(only("umount2", 1, UMOUNT));
    rules.push(json!({"names": ["pivot_root"], "action": "SCMP_ACT_ALLOW"}));
    json!({"defaultAction": "SCMP_ACT_ERRNO", "architectures": [name], "syscalls": rules}).to_string()
}

/// Returns a rule that allows a call only if one argument has this value.
fn only(name: &str, index: u32, value: u64) -> Value {
    json!({
        "names": [name],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": index, "value": value, "op": "SCMP_CMP_EQ"}],
    })
}

fn names() -> Vec<&'static str> {
    let lines = ALLOWED.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns whether the profile allows a call. This is a minimal filter with the rules of libseccomp.
    fn allows(profile: &Value, name: &str, arguments: &[u64]) -> bool {
        let number = |value: &Value| value.as_u64().unwrap();
        let allows = |rule: &Value| {
            let is_named = rule["names"].as_array().unwrap().iter().any(|other| other == name);
            let argument_matches = |argument: &Value| {
                let given = arguments[usize::try_from(number(&argument["index"])).unwrap()];
                match argument["op"].as_str().unwrap() {
                    "SCMP_CMP_EQ" => given == number(&argument["value"]),
                    "SCMP_CMP_MASKED_EQ" => given & number(&argument["value"]) == number(&argument["valueTwo"]),
                    other => panic!("{other}"),
                }
            };
            is_named
                && rule["action"] == "SCMP_ACT_ALLOW"
                && rule["args"].as_array().into_iter().flatten().all(argument_matches)
        };
        profile["syscalls"].as_array().unwrap().iter().any(allows)
    }

    #[test]
    fn seccomp_profile_allows_passt_and_little_else() {
        for architecture in ["x86_64", "aarch64", "s390x"] {
            let profile: Value = serde_json::from_str(&profile_for(architecture)).unwrap();
            let allows = |name: &str, arguments: &[u64]| allows(&profile, name, arguments);
            assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
            for (name, arguments) in [
                ("unshare", &[0x1000_0000][..]),
                ("unshare", &[0x2c02_0000]),
                ("mount", &[0, 0, 0, 0x2_4000]),
                ("mount", &[0, 0, 0, 0xf]),
                ("pivot_root", &[0, 0]),
                ("umount2", &[0, 10]),
                ("seccomp", &[]),
                ("socket", &[16]),
                ("openat", &[]),
            ] {
                assert!(allows(name, arguments), "{name} {arguments:x?} on {architecture}");
            }
            for (name, arguments) in [
                // The flags of a network namespace, a cgroup namespace, a user and mount namespace, and no flags.
                ("unshare", &[0x4000_0000][..]),
                ("unshare", &[0x0200_0000]),
                ("unshare", &[0x1002_0000]),
                ("unshare", &[0]),
                // The flags are for a bind mount, a remount, and an ordinary mount.
                ("mount", &[0, 0, 0, 0x1000]),
                ("mount", &[0, 0, 0, 0x20]),
                ("mount", &[0, 0, 0, 0]),
                ("umount2", &[0, 0]),
                ("clone", &[0x1000_0011, 0x1000_0011]),
                ("clone3", &[]),
                // The families are AF_ALG, AF_VSOCK and AF_PACKET.
                ("socket", &[38]),
                ("socket", &[40]),
                ("socket", &[17]),
                ("setns", &[]),
                ("bpf", &[]),
                ("io_uring_setup", &[]),
                ("userfaultfd", &[]),
                ("open_tree", &[]),
                ("fsopen", &[]),
            ] {
                assert!(!allows(name, arguments), "{name} {arguments:x?} on {architecture}");
            }
            // The C library creates a thread and a process with these flags.
            for flags in [0x003d_0f00, 0x0120_0011] {
                assert!(allows("clone", &[flags, flags]), "{flags:x} on {architecture}");
            }
        }
    }

    #[test]
    fn syscall_names_are_unique_and_valid() {
        let names = names();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len());
        assert!(names.len() > 300, "{}", names.len());
        let is_name = |name: &&str| {
            name.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        assert!(names.iter().all(is_name));
    }
}
