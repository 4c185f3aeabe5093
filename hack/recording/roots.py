"""Debian root file systems with libvirt and QEMU, created once and cached."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from oci.debian import EXCLUDES, Mirror
from oci.progress import run, step

# Recommended packages are not installed. QEMU then has no firmware, which domain capabilities do not need.
COMMON = ("libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86")


@dataclass(frozen=True)
class Release:
    """A Debian release whose libvirt is recorded."""

    suite: str
    # Packages with emulators for foreign architectures.
    emulators: tuple[str, ...]
    # Combinations of architecture, machine type and virt type to query.
    machines: tuple[tuple[str, str, str], ...]


NATIVE = (("x86_64", "q35", "qemu"), ("x86_64", "q35", "kvm"))

RELEASES = (
    Release("bookworm", (), NATIVE),
    Release(
        "trixie",
        ("qemu-system-arm", "qemu-system-s390x"),
        (*NATIVE, ("aarch64", "virt", "qemu"), ("s390x", "s390-ccw-virtio", "qemu")),
    ),
)


def root_of(release: Release, cache: Path) -> Path:
    """Return the root file system of a release; create it if there is none with the current list of packages."""
    packages = [*COMMON, *release.emulators]
    key = hashlib.sha256(" ".join([release.suite, *packages]).encode()).hexdigest()[:16]
    root = cache / f"{release.suite}-{key}"
    if root.exists():
        return root
    logs, partial = cache / "logs", cache / f"{release.suite}-{key}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    mirror = Mirror.of_this_machine(release.suite)
    settings, keyrings = logs / f"{release.suite}.conf", logs / f"{release.suite}-keyrings"
    logs.mkdir(parents=True, exist_ok=True)
    settings.write_text(mirror.settings + 'APT::Install-Recommends "false";\n')
    mirror.write_keyrings(keyrings)
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"]
    command += [f"--dpkgopt={exclude}" for exclude in EXCLUDES]
    command += [f"--aptopt={settings}", f"--keyring={keyrings}", f"--include={','.join(packages)}"]
    command += [release.suite, str(partial), "-"]
    with step(f"Debian {release.suite} with libvirt and {1 + len(release.emulators)} emulators", long=True):
        run(
            command,
            log=logs / f"{release.suite}.log",
            what=f"creating a Debian {release.suite} root file system",
            stdin=mirror.sources,
        )
        partial.rename(root)
    return root
