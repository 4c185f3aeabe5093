"""Packs Debian's QEMU guest agent, with the libraries it needs, for guests that are configured to run it.

The guest has no C library. All files are therefore packed into one folder, together with a loader that finds the libraries in it.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from oci.layer import epoch
from oci.progress import Failure

# Names of the packages since Debian 13.
PACKAGES = (
    "qemu-guest-agent",
    "libatomic1",
    "libc6",
    "libcap2",
    "libglib2.0-0t64",
    "libnuma1",
    "libpcre2-8-0",
    "libudev1",
    "liburing2",
)  # fmt: skip
PROGRAM = "qemu-ga"
# Kernel modules of file systems that the agent can freeze. The file system of the guest's own disk cannot be frozen.
FILE_SYSTEMS = ("ext4",)
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]|Requesting program interpreter: .*/(.+)\]")


def needed(program: Path) -> set[str]:
    """Return the names of the libraries that a program or library requires, including the loader."""
    printed = subprocess.run(
        ["readelf", "--wide", "--dynamic", "--program-headers", str(program)], capture_output=True, text=True, check=True
    ).stdout
    return {library or loader for library, loader in NEEDED.findall(printed)}


def closure(unpacked: Path) -> dict[str, Path]:
    """Return the agent and all libraries that it requires, by the names under which they are requested."""
    there = {path.name: path for path in sorted(unpacked.rglob("*")) if path.is_file()}
    found: dict[str, Path] = {}
    wanted = {PROGRAM}
    while wanted:
        name = wanted.pop()
        if name not in there:
            raise Failure(f"none of the packages {', '.join(PACKAGES)} contains {name}")
        found[name] = there[name].resolve()
        wanted |= needed(found[name]) - found.keys()
    return found


def pack(unpacked: Path, modules: Mapping[str, bytes], archive: Path) -> None:
    """Write the agent's files to a reproducible tar archive and compress it with gzip.

    `modules` are kernel modules of file systems that can be frozen. The file `order` lists them in loading order.
    """
    plain = archive.with_suffix(".tar")
    files = {name: path.read_bytes() for name, path in closure(unpacked).items()}
    files.update(modules)
    files["order"] = "".join(f"{name}\n" for name in modules).encode()
    with tarfile.open(plain, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), 0o755, epoch()
            tar.addfile(info, io.BytesIO(content))
    with archive.open("wb") as output:
        subprocess.run(["gzip", "--best", "--no-name", "--stdout", str(plain)], stdout=output, check=True)
    plain.unlink()
