"""Turns new namespaces into a node; runs as the node's first process.

The process starts in new mount, PID, IPC and UTS namespaces and in the node's network
namespace. It mounts the node's own folders at the standard paths, so that hostPath
volumes of unmodified manifests refer to this node and not to the host. Then it
executes `pause`, which keeps the namespaces alive and reaps orphaned processes.
Killing this process switches the node off.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Folders that must exist in a node's /run from its start.
_RUN_FOLDERS = ("lock", "mount", "netns", "containerd")

# Entries of /dev at which the node mounts its own file systems, and the device that is hidden unless requested.
_OWN_MOUNTS = {"pts", "shm", "mqueue", "hugepages"}
_KVM = "kvm"


@dataclass(frozen=True)
class NodeSpec:
    """The parameters of the node's first process."""

    name: str
    directory: str
    shared: str
    keep: list[str]
    kvm: bool
    pause: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "NodeSpec":
        return NodeSpec(**json.loads(text))


def main() -> None:
    """Set up the node, then execute `pause`."""
    spec = NodeSpec.from_json(sys.argv[1])
    socket.sethostname(spec.name)
    _mount("-t", "proc", "proc", "/proc")
    # Open these before the node's own folders cover their paths.
    kept = {path: _open_folder(path) for path in spec.keep}
    shared = _open_folder(spec.shared)
    _furnish_sys()
    _furnish_etc(spec)
    _furnish_run()
    _furnish_var(spec, shared, kept)
    _furnish_dev(spec)
    # Mounts must propagate from containers to the kubelet and back.
    _mount("--make-rshared", "/")
    _configure_network()
    os.execv(spec.pause, [spec.pause])


def _furnish_sys() -> None:
    """Mount a /sys that shows the node's network devices and the host's cgroups."""
    cgroups = _open_folder("/sys/fs/cgroup")
    _mount("-t", "sysfs", "sysfs", "/sys")
    _bind("--rbind", cgroups, "/sys/fs/cgroup")


def _furnish_etc(spec: NodeSpec) -> None:
    """Mount an overlay on the host's /etc that stores this node's changes separately."""
    resolver = _resolver_configuration()
    upper = _folder(spec.directory, "etc")
    work = _folder(spec.directory, "etc.work")
    _mount("-t", "overlay", "-o", f"lowerdir=/etc,upperdir={upper},workdir={work}", "etc", "/etc")
    Path("/etc/hostname").write_text(spec.name + "\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {spec.name}\n")
    # On many hosts, this file is a link into /run, which the node's own /run will cover.
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").write_text(resolver)
    Path("/etc/machine-id").write_text(_machine_id(spec) + "\n")


def _furnish_run() -> None:
    _mount("-t", "tmpfs", "-o", "mode=755,size=1g", "run", "/run")
    for name in _RUN_FOLDERS:
        Path("/run", name).mkdir()


def _furnish_var(spec: NodeSpec, shared: int, kept: dict[str, int]) -> None:
    """Mount the node's own /var/lib and /var/log."""
    _mount("--bind", _folder(spec.directory, "log"), "/var/log")
    _mount("--bind", _folder(spec.directory, "lib"), "/var/lib")
    for name in ("kubelet/seccomp", "kubelet/device-plugins", "containerd", "cni", "drydock"):
        _folder("/var/lib", name)
    _bind("--bind", shared, _folder("/var/lib", "drydock-shared"))
    # The cluster's state and the built programs stay accessible at their original paths.
    for path, descriptor in kept.items():
        _bind("--bind", descriptor, _folder(path))


def _furnish_dev(spec: NodeSpec) -> None:
    """Mount a /dev with the host's devices, but with KVM only if it was requested."""
    _mount("-t", "tmpfs", "-o", "mode=755,size=16m", "dev", _folder("/run/dev"))
    _copy_devices("/dev", "/run/dev", hidden=set() if spec.kvm else {_KVM})
    for name in ("pts", "shm", "mqueue"):
        _folder("/run/dev", name)
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", "/run/dev/pts")
    _mount("-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "shm", "/run/dev/shm")
    _mount("-t", "mqueue", "mqueue", "/run/dev/mqueue")
    if os.path.lexists("/run/dev/ptmx"):
        os.unlink("/run/dev/ptmx")
    os.symlink("pts/ptmx", "/run/dev/ptmx")
    _mount("--move", "/run/dev", "/dev")
    os.rmdir("/run/dev")


def _copy_devices(source: str, target: str, hidden: set[str]) -> None:
    """Copy device nodes, links and folders to another folder."""
    for entry in os.scandir(source):
        if entry.name in hidden or entry.name in _OWN_MOUNTS:
            continue
        path = os.path.join(target, entry.name)
        status = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            os.mknod(path, status.st_mode, status.st_rdev)
            os.chown(path, status.st_uid, status.st_gid)
            os.chmod(path, stat.S_IMODE(status.st_mode))
        elif entry.is_dir(follow_symlinks=False):
            os.mkdir(path)
            os.chmod(path, stat.S_IMODE(status.st_mode))
            _copy_devices(entry.path, path, hidden=set())


def _configure_network() -> None:
    """Let the node route traffic between its pods and other networks."""
    settings = {
        "net/ipv4/ip_forward": "1",
        # Services must also work between two pods on the same bridge.
        "net/bridge/bridge-nf-call-iptables": "1",
    }
    for name, value in settings.items():
        path = Path("/proc/sys", name)
        if path.exists():
            path.write_text(value)


def _resolver_configuration() -> str:
    """Return the host's resolver configuration, preferably the one with servers that pods can reach, too."""
    for path in ("/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"):
        try:
            text = Path(path).read_text()
        except OSError:
            continue
        if "nameserver" in text:
            return text
    return ""


def _machine_id(spec: NodeSpec) -> str:
    """Return the node's machine ID, which stays the same after a restart. Create it on first use."""
    path = Path(spec.directory, "machine-id")
    if not path.exists():
        path.write_text(os.urandom(16).hex())
    return path.read_text().strip()


def _folder(*parts: str) -> str:
    path = os.path.join(*parts)
    os.makedirs(path, exist_ok=True)
    return path


def _open_folder(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _bind(how: str, source: int, target: str) -> None:
    """Bind-mount an open folder, whatever its path refers to by now, and close it."""
    # Without --no-canonicalize, mount would resolve the descriptor's name to that path.
    arguments = ["mount", "--no-canonicalize", how, f"/proc/self/fd/{source}", target]
    subprocess.run(arguments, check=True, pass_fds=[source])
    os.close(source)


if __name__ == "__main__":
    main()
