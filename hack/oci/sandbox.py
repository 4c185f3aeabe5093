"""Runs one build step on top of finished layers, and collects the files that it changes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oci.debian import Mirror
from oci.progress import run

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


def change(
    lowers: Sequence[Path], scratch: Path, step: dict[str, Any], mirror: Mirror | None, log: Path, what: str
) -> Path:
    """Execute a step in new namespaces, and return the folder with the changes.

    `lowers` are the layers below, the lowest first. The root of the step is an
    overlay of them. Its mounts and remaining processes end with the namespaces.
    """
    upper = scratch / "root"
    for folder in (upper, scratch / "work", scratch / "mount", scratch / "empty"):
        folder.mkdir(parents=True)
    upper.chmod(0o755)
    apt = None
    if step["kind"] == "run" and mirror is not None:
        apt = scratch / "apt"
        mirror.write_apt(apt)
        # apt reads this folder as its own user, so others need access to it.
        apt.chmod(0o755)
    description = step | {
        "lowers": [str(lower) for lower in reversed(lowers)] or [str(scratch / "empty")],
        "upper": str(upper),
        "work": str(scratch / "work"),
        "mountpoint": str(scratch / "mount"),
        "apt": str(apt) if apt else "",
    }
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE_FOLDER), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    command += [sys.executable, "-m", "oci.inside", json.dumps(description)]
    run(command, log=log, what=what, env=env)
    for folder in (scratch / "work", scratch / "mount", scratch / "empty", scratch / "apt"):
        shutil.rmtree(folder, ignore_errors=True)
    return upper


def build_environment(declared: dict[str, str]) -> dict[str, str]:
    """Return the environment of a RUN step: defaults, this machine's proxy settings, and the declared variables."""
    default = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    return default | {name: os.environ[name] for name in PROXIES if name in os.environ} | declared
