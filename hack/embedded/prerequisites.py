"""What must be on the machine: Debian packages, by purpose, and three toolchains."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .commands import last_lines
from .errors import Failure
from .progress import Progress
from .toolchains import check

PACKAGES: dict[str, tuple[str, ...]] = {
    # The embedded cluster itself.
    "cluster": (
        "ca-certificates",
        "conntrack",
        "containernetworking-plugins",
        "docker-registry",
        "iproute2",
        "iptables",
        "kmod",
        "mount",
        "openssl",
        "procps",
        "runc",
        "util-linux",
    ),
    # Its self-test packs a tiny image of this.
    "selftest": ("busybox-static",),
    # Building the Rust crates: libvirt is linked, its headers are read.
    "rust": ("gcc", "libc6-dev", "libvirt-dev", "pkg-config"),
    # Container images without a container engine.
    "images": ("busybox-static", "debian-archive-keyring", "mmdebstrap", "zstd"),
    # The guest disk: a kernel, a boot loader and a file system in one file.
    "guest": (
        "binutils",
        "busybox-static",
        "genisoimage",
        "mtools",
        "qemu-system-x86",
        "qemu-utils",
        "syslinux",
        "syslinux-common",
    ),
    # Tests that talk to a real libvirt on this host.
    "libvirt": (
        "libvirt-clients",
        "libvirt-daemon",
        "libvirt-daemon-driver-qemu",
        "qemu-system-x86",
        "qemu-utils",
        "xorriso",
    ),
    # Tests of the console: a browser, and the types of its script.
    "browser": ("chromium-headless-shell", "node-typescript", "python3-venv"),
    # What benchmarks compare with.
    "bench": ("openssl", "socat"),
}

_ATTEMPTS = 4
_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\n# Drydock: services that packages bring stay off.\nexit 101\n"


def missing(groups: Iterable[str]) -> list[str]:
    """The packages of these groups that are not installed."""
    wanted: list[str] = []
    for group in groups:
        if group not in PACKAGES:
            raise Failure(f"unknown package group {group!r}; known: {', '.join(PACKAGES)}")
        wanted += [package for package in PACKAGES[group] if package not in wanted]
    if not wanted:
        return []
    if shutil.which("dpkg-query") is None:
        raise Failure("this needs Debian or a relative of it: there is no dpkg-query")
    response = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    installed = {line.split()[0] for line in response.splitlines() if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]


def ensure(
    groups: Iterable[str],
    progress: Progress | None = None,
    toolchains: Iterable[str] = ("go", "python3"),
) -> None:
    """Install what is missing and check for the toolchains."""
    progress = progress or Progress()
    check(toolchains)
    packages = missing(groups)
    if not packages:
        return
    if os.geteuid() != 0:
        raise Failure(f"not root, and these packages are missing: {' '.join(packages)}")
    with progress.step(f"installing {' '.join(packages)}", announce=True), _services_stay_off():
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *packages)
    left = missing(groups)
    if left:
        raise Failure(f"apt-get succeeded but these packages are still missing: {' '.join(left)}")


def _apt(*arguments: str) -> None:
    """apt-get, tried again: mirrors and locks have passing troubles."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    options = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-q"]
    printed = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(3 * attempt)
        done = subprocess.run(
            ["apt-get", *options, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode == 0:
            return
        printed = done.stdout
    raise Failure(f"apt-get {arguments[0]} failed {_ATTEMPTS} times", last_lines(printed))


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    """Keep the daemons that packages bring from starting: nobody requested that.

    Debian's maintainer scripts query this file first. One that is already there is
    somebody's decision and stays.
    """
    if _POLICY.exists() and _POLICY.read_text() != _POLICY_TEXT:
        yield
        return
    _POLICY.write_text(_POLICY_TEXT)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
