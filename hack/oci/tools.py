"""Installs the programs that image builds need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from oci.progress import Failure, run, step

# Each required program or file, and the Debian package that contains it.
NEEDED = {
    "mcopy": "mtools",
    "mmdebstrap": "mmdebstrap",
    "qemu-img": "qemu-utils",
    "syslinux": "syslinux",
    "zstd": "zstd",
    "/usr/lib/syslinux/mbr/mbr.bin": "syslinux-common",
}


def missing() -> list[str]:
    """Return the packages of the programs and files that this machine lacks."""
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [
        package
        for wanted, package in NEEDED.items()
        if not (Path(wanted).exists() if wanted.startswith("/") else shutil.which(wanted, path=search))
    ]


def ensure(logs: Path) -> None:
    """Install the missing packages."""
    packages = missing()
    if not packages:
        return
    env = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    with step(f"apt-get install {' '.join(packages)}"):
        # Wait for another process that holds the dpkg lock instead of failing.
        apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
        run([*apt, "update"], log=logs / "apt-update.log", what="apt-get update", env=env)
        command = [*apt, "install", "--yes", "--no-install-recommends", *packages]
        run(command, log=logs / "apt-install.log", what="apt-get install", env=env)
    left = missing()
    if left:
        raise Failure(f"apt-get succeeded but these packages are still missing: {', '.join(left)}")
