"""Cleans up the image store, which all clusters' registries share and which outlives the clusters."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from . import processes
from .commands import run
from .errors import Failure
from .progress import Progress

# Size in bytes from which untagged images are removed. All images of one version take less than a tenth of this size.
LIMIT = 10 << 30

# The name of the process that reads and writes the store.
PART = "registry"


def sweep(store: Path, progress: Progress, limit: int = LIMIT) -> None:
    """Remove images whose tag has moved to another image, if the store's size has reached the limit.

    No registry may run meanwhile. The caller ensures that no cluster of its state folder starts. If a registry of a cluster in
    another state folder runs, nothing is removed. Removed images are pushed again when they are needed.
    """
    if not store.is_dir() or shutil.which("docker-registry") is None or _size(store) < limit or _in_use():
        return
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "registry.yml"
        storage = {"filesystem": {"rootdirectory": str(store)}, "delete": {"enabled": True}}
        # YAML parsers accept JSON.
        configuration.write_text(json.dumps({"version": 0.1, "log": {"level": "warn"}, "storage": storage}))
        try:
            with progress.step(f"removing untagged images from {store}"):
                run("docker-registry", "garbage-collect", "--delete-untagged", str(configuration), timeout=600)
        except Failure as failure:
            # The removal of the cluster has succeeded nevertheless.
            progress.note(f"untagged images could not be removed from {store}: {failure}")


def _size(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("data") if path.is_file())


def _in_use() -> bool:
    return any(processes.read_environment(pid).get(processes.MARK_PART) == PART for pid in processes.all_pids())
