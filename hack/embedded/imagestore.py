"""The images of the clusters' registries: one store for all clusters, which outlives them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from . import processes
from .commands import run
from .errors import Failure
from .progress import Progress

# Bytes from which on images without a name are removed. All images of one version take less than a tenth.
LIMIT = 10 << 30

# The part of a cluster that reads and writes the store.
PART = "registry"


def sweep(store: Path, progress: Progress, limit: int = LIMIT) -> None:
    """Remove images that were pushed under a name which another has now, once all images take too much.

    A registry must not run meanwhile. The caller lets none of its clusters start; those of another state folder are
    looked for. Whatever is removed is pushed again when it is needed.
    """
    if not store.is_dir() or shutil.which("docker-registry") is None or _size(store) < limit or _in_use():
        return
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "registry.yml"
        storage = {"filesystem": {"rootdirectory": str(store)}, "delete": {"enabled": True}}
        # YAML's readers take JSON.
        configuration.write_text(json.dumps({"version": 0.1, "log": {"level": "warn"}, "storage": storage}))
        try:
            with progress.step(f"removing images without a name from {store}"):
                run("docker-registry", "garbage-collect", "--delete-untagged", str(configuration), timeout=600)
        except Failure as failure:
            # The cluster is gone all the same.
            progress.note(f"{store} keeps its images: {failure}")


def _size(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("data") if path.is_file())


def _in_use() -> bool:
    return any(processes.read_environment(pid).get(processes.MARK_PART) == PART for pid in processes.all_pids())
