"""Taking a cluster away so that nothing of it is left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import cgroups, imagestore, locks, network, processes, registered, sysctls
from .bringup import SYSCTL_RECORD
from .commands import run
from .layout import Layout, Settings, check_name, image_store, state_root
from .progress import Progress

_NETNS_FOLDER = Path("/run/netns")


def down(name: str, progress: Progress) -> None:
    """Remove one cluster; one that is only half there, or not at all, is no error."""
    check_name(name)
    directory = state_root() / name
    if not directory.exists() and not (state_root() / f"{name}.lock").exists():
        progress.note(f"there is no cluster {name}")
        return
    with locks.held(name, progress), progress.step(f"removing cluster {name}"):
        settings = registered.settings(name)
        processes.kill_all(pid for pid in processes.of_cluster(directory) if pid != os.getpid())
        layout = Layout(name, settings or Settings(index=0))
        cgroups.remove(layout.cgroup)
        if settings is not None:
            network.remove(layout)
        else:
            network.remove_namespaces(name)
        _unmount_below(directory)
        _remove_folder(directory)
        locks.forget(name)
    _leave_if_last(progress)


def _leave_if_last(progress: Progress) -> None:
    """What all clusters share goes with the last one."""
    if not state_root().exists():
        return
    with locks.held("", progress):
        if registered.names():
            return
        sysctls.restore(state_root() / SYSCTL_RECORD)
        # `ip netns` mounts its folder on itself and never takes that back.
        if _NETNS_FOLDER.is_dir() and not any(_NETNS_FOLDER.iterdir()):
            while str(_NETNS_FOLDER) in _mount_points():
                run("umount", str(_NETNS_FOLDER))
            _NETNS_FOLDER.rmdir()
        imagestore.sweep(image_store(), progress)
        locks.forget("")
    try:
        state_root().rmdir()
    except OSError:
        progress.detail(f"{state_root()} has other things in it and stays")


def _unmount_below(directory: Path) -> None:
    """Nothing should be mounted there; removing files through a mount would be worse."""
    for point in reversed(_mount_points()):
        if point == str(directory) or point.startswith(f"{directory}/"):
            run("umount", "--lazy", point)


def _remove_folder(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].encode().decode("unicode_escape") for line in lines]
