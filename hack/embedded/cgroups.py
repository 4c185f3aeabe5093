"""Creates and removes a cgroup for each node, with cgroup v1, hybrid or v2."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from .errors import Failure

MOUNT = Path("/sys/fs/cgroup")
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")


def is_unified(mount: Path = MOUNT) -> bool:
    """Return whether the host uses cgroup v2 only."""
    return (mount / "cgroup.controllers").exists()


def hierarchies(mount: Path = MOUNT) -> list[Path]:
    """Return the roots of all hierarchies in which a group has to be created."""
    if is_unified(mount):
        return [mount]
    return sorted(
        path
        for path in mount.iterdir()
        if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()
    )


def ensure(group: str, mount: Path = MOUNT) -> None:
    """Create a group and its parents in every hierarchy, ready to have children."""
    for root in hierarchies(mount):
        path = root
        for part in group.strip("/").split("/"):
            if is_unified(mount):
                _pass_controllers_down(path)
            path = path / part
            path.mkdir(exist_ok=True)
            # A new v1 cpuset group has no CPUs and no memory nodes, so no process can run in it.
            for name in _CPUSET_FILES:
                own, above = path / name, path.parent / name
                if not is_unified(mount) and own.exists() and not own.read_text().strip():
                    own.write_text(above.read_text())


def pids(group: str, mount: Path = MOUNT) -> set[int]:
    """Return the pids of all processes in a group and below it."""
    found: set[int] = set()
    for root in hierarchies(mount):
        for folder, _, names in os.walk(root / group.strip("/")):
            if "cgroup.procs" in names:
                try:
                    text = Path(folder, "cgroup.procs").read_text()
                except OSError:
                    continue
                found.update(int(word) for word in text.split() if word != "0")
    return found


def remove(group: str, mount: Path = MOUNT, patience: float = 20.0) -> None:
    """Remove a group and all groups below it. Wait up to `patience` seconds until they have no processes."""
    deadline = time.monotonic() + patience
    for root in hierarchies(mount):
        top = root / group.strip("/")
        while top.exists():
            busy = _remove_once(top)
            if busy is not None:
                if time.monotonic() > deadline:
                    raise Failure(f"cgroup {busy} could not be removed: it is still in use")
                time.sleep(0.05)
        # All clusters share the parent folder, which is removed with the last cluster.
        if top.parent != root:
            try:
                top.parent.rmdir()
            except OSError:
                pass


def _remove_once(top: Path) -> Path | None:
    """Remove all groups that can be removed. Return a group that is still busy, or None."""
    busy = None
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            busy = Path(folder)
    return busy


def _pass_controllers_down(path: Path) -> None:
    """Enable all controllers of a v2 group for its children."""
    control = path / "cgroup.subtree_control"
    enabled = control.read_text().split()
    for controller in (path / "cgroup.controllers").read_text().split():
        if controller not in enabled:
            try:
                control.write_text(f"+{controller}")
            except OSError:
                # Some controllers cannot be enabled for children. The kubelet reports if a controller that it needs is missing.
                continue
