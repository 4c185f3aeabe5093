"""What turns fresh namespaces into a node, run as the node's first process.

It is started in new mount, PID, IPC and UTS namespaces and the node's network
namespace. It gives the node folders of its own at the ordinary paths, so that
ordinary manifests' hostPath volumes mean this node and not the machine, and then
becomes `pause`, which holds the namespaces and buries orphans. Killing it is the
node's power switch.
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

# What a node's /run is expected to have from its start.
_RUN_FOLDERS = ("lock", "mount", "netns", "containerd")

# Mount points of other file systems in /dev, and the device that this is all about.
_OWN_MOUNTS = {"pts", "shm", "mqueue", "hugepages"}
_KVM = "kvm"


@dataclass(frozen=True)
class NodeSpec:
    """All that the node's first process needs to know."""

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
    """Furnish the node and become its first process."""
    spec = NodeSpec.from_json(sys.argv[1])
    socket.sethostname(spec.name)
    _mount("-t", "proc", "proc", "/proc")
    # Opened before their paths are covered by the node's own folders.
    kept = {path: _open_folder(path) for path in spec.keep}
    shared = _open_folder(spec.shared)
    _furnish_sys()
    _furnish_etc(spec)
    _furnish_run()
    _furnish_var(spec, shared, kept)
    _furnish_dev(spec)
    # Mounts that containers make for the host must reach the kubelet and back.
    _mount("--make-rshared", "/")
    _configure_network()
    os.execv(spec.pause, [spec.pause])


def _furnish_sys() -> None:
    """A /sys that shows the node's network devices, with the machine's cgroups."""
    cgroups = _open_folder("/sys/fs/cgroup")
    _mount("-t", "sysfs", "sysfs", "/sys")
    _bind("--rbind", cgroups, "/sys/fs/cgroup")


def _furnish_etc(spec: NodeSpec) -> None:
    """The machine's /etc, with this node's changes kept apart."""
    resolver = _resolver_configuration()
    upper = _folder(spec.directory, "etc")
    work = _folder(spec.directory, "etc.work")
    _mount("-t", "overlay", "-o", f"lowerdir=/etc,upperdir={upper},workdir={work}", "etc", "/etc")
    Path("/etc/hostname").write_text(spec.name + "\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {spec.name}\n")
    # On many machines this is a link into the /run that is about to be covered.
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").write_text(resolver)
    Path("/etc/machine-id").write_text(_machine_id(spec) + "\n")


def _furnish_run() -> None:
    _mount("-t", "tmpfs", "-o", "mode=755,size=1g", "run", "/run")
    for name in _RUN_FOLDERS:
        Path("/run", name).mkdir()


def _furnish_var(spec: NodeSpec, shared: int, kept: dict[str, int]) -> None:
    """A /var/lib and a /var/log of the node's own."""
    _mount("--bind", _folder(spec.directory, "log"), "/var/log")
    _mount("--bind", _folder(spec.directory, "lib"), "/var/lib")
    for name in ("kubelet/seccomp", "kubelet/device-plugins", "containerd", "cni", "drydock"):
        _folder("/var/lib", name)
    _bind("--bind", shared, _folder("/var/lib", "drydock-shared"))
    # The cluster's state and the built programs stay reachable by their own paths.
    for path, descriptor in kept.items():
        _bind("--bind", descriptor, _folder(path))


def _furnish_dev(spec: NodeSpec) -> None:
    """Make a /dev with the machine's devices, but KVM only if it was requested."""
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
    """Make the same device nodes, links and folders elsewhere."""
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
    """Let the node route between its pods and the world."""
    settings = {
        "net/ipv4/ip_forward": "1",
        # Services must work between two pods of one bridge.
        "net/bridge/bridge-nf-call-iptables": "1",
    }
    for name, value in settings.items():
        path = Path("/proc/sys", name)
        if path.exists():
            path.write_text(value)


def _resolver_configuration() -> str:
    """How the machine resolves names, by servers that its pods can reach too."""
    for path in ("/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"):
        try:
            text = Path(path).read_text()
        except OSError:
            continue
        if "nameserver" in text:
            return text
    return ""


def _machine_id(spec: NodeSpec) -> str:
    """One for each node, the same after a restart."""
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
    """Bind an open folder, whatever its path means by now."""
    # Made canonical, the name of the descriptor would become that path again.
    arguments = ["mount", "--no-canonicalize", how, f"/proc/self/fd/{source}", target]
    subprocess.run(arguments, check=True, pass_fds=[source])
    os.close(source)


if __name__ == "__main__":
    main()
