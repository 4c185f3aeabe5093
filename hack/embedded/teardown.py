"""Removes a cluster without leaving anything behind."""

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
    """Remove one cluster. It is no error if the cluster exists only in part or not at all."""
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
    """Remove the resources that all clusters share if no cluster is left."""
    if not state_root().exists():
        return
    with locks.held("", progress):
        if registered.names():
            return
        sysctls.restore(state_root() / SYSCTL_RECORD)
        # `ip netns` mounts its folder on itself and never unmounts it.
        if _NETNS_FOLDER.is_dir() and not any(_NETNS_FOLDER.iterdir()):
            while str(_NETNS_FOLDER) in _mount_points():
                run("umount", str(_NETNS_FOLDER))
            _NETNS_FOLDER.rmdir()
        imagestore.sweep(image_store(), progress)
        locks.forget("")
    try:
        state_root().rmdir()
    except OSError:
        progress.detail(f"{state_root()} is not empty and is kept")


def _unmount_below(directory: Path) -> None:
    """Unmount everything at or below a folder. Nothing should be mounted there, but no file may be removed through a mount."""
    for point in reversed(_mount_points()):
        if point == str(directory) or point.startswith(f"{directory}/"):
            run("umount", "--lazy", point)


def _remove_folder(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].encode().decode("unicode_escape") for line in lines]
