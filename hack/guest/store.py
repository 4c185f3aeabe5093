"""Stores built disks under a key of their sources."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NAME = "disk.qcow2"
# A machine may still run from a disk that was built from older sources.
KEPT_SECONDS = 7 * 86400


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Hold a lock, so that no other process builds in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stored(cache: Path, key: str, assemble: Callable[[Path], None]) -> Path:
    """Return the path of the disk with this key. If it is missing, `assemble` builds it as `NAME` in the given folder."""
    disks = cache / "disks"
    disk = disks / key / NAME
    if not disk.exists():
        scratch = cache / "work"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        assemble(scratch)
        _forget_old(disks)
        disk.parent.mkdir(parents=True, exist_ok=True)
        (scratch / NAME).rename(disk)
        shutil.rmtree(scratch)
    return disk


def _forget_old(disks: Path) -> None:
    oldest = time.time() - KEPT_SECONDS
    for folder in disks.glob("*"):
        if folder.stat().st_mtime < oldest:
            shutil.rmtree(folder)
