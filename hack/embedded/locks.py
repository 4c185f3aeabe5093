"""Locks that let only one command at a time work on a cluster. A lock is released when its holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .layout import state_root
from .progress import Progress


@contextmanager
def held(name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of a cluster. The name `""` stands for the list of all clusters."""
    path = state_root() / f"{name}.lock"
    descriptor = _acquire(path, progress, name)
    try:
        yield
    finally:
        os.close(descriptor)


def forget(name: str) -> None:
    """Remove a lock file. The caller must hold the lock."""
    (state_root() / f"{name}.lock").unlink(missing_ok=True)


def _acquire(path: Path, progress: Progress, name: str) -> int:
    waited = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if name and not waited:
                holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
                progress.note(f"waiting: process {holder} is working on cluster {name}")
            waited = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The previous holder may have removed the file meanwhile. A lock on a removed file excludes no other process.
        try:
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)
