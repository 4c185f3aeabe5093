"""Packs a folder of changes as a reproducible OCI layer.

Entries are sorted and no timestamp is later than SOURCE_DATE_EPOCH. Equal folders
therefore have equal digests, and a layer is not uploaded to a registry that has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

from oci.progress import Failure

# 2026-01-01. Later modification times are replaced by this one.
DEFAULT_EPOCH = 1767225600
TAR = "application/vnd.oci.image.layer.v1.tar"
COMPRESSED = {"none": TAR, "gzip": TAR + "+gzip", "zstd": TAR + "+zstd"}
COMPRESSORS = {"gzip": ["gzip", "-1", "-n", "-c"], "zstd": ["zstd", "-1", "-q", "-c"]}
COMPRESSION = "zstd"
CHUNK = 1 << 20
XATTR = "SCHILY.xattr."


def epoch() -> int:
    """Return the latest timestamp that an image may contain, in seconds since the Unix epoch."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", DEFAULT_EPOCH))


@dataclass(frozen=True)
class Layer:
    """A finished layer: its blob, and the fields that a manifest and a configuration need."""

    media_type: str
    digest: str
    size: int
    diff_id: str
    blob: Path
    created_by: str = ""

    def save(self, path: Path) -> None:
        """Write the description of the layer as JSON; `path` must be in the folder of the blob."""
        path.write_text(json.dumps(asdict(self) | {"blob": self.blob.name}, indent=1))

    @classmethod
    def load(cls, path: Path) -> Layer:
        """Read a description that save() wrote."""
        fields = json.loads(path.read_text())
        return cls(**(fields | {"blob": path.parent / fields["blob"]}))


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


class _Hashing:
    """A writer that forwards bytes and tracks their SHA-256 digest and their number."""

    def __init__(self, target: _Sink) -> None:
        self.target = target
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes, /) -> int:
        self.hash.update(data)
        self.size += len(data)
        self.target.write(data)
        return len(data)

    @property
    def digest(self) -> str:
        return "sha256:" + self.hash.hexdigest()


def pack(folder: Path, blob: Path, created_by: str, compression: str = COMPRESSION) -> Layer:
    """Pack an overlay's upper folder into a layer blob, and return the layer."""
    with blob.open("wb") as output:
        compressor = COMPRESSORS.get(compression)
        if compressor is None:
            plain = _Hashing(output)
            _write_tar(folder, plain)
        else:
            try:
                process = subprocess.Popen(compressor, stdin=subprocess.PIPE, stdout=output)
            except FileNotFoundError as error:
                raise Failure(f"the command {compressor[0]} is not installed") from error
            assert process.stdin is not None
            plain = _Hashing(process.stdin)
            _write_tar(folder, plain)
            process.stdin.close()
            if process.wait():
                raise Failure(f"{compressor[0]} failed with status {process.returncode}")
    digest, size = digest_of(blob)
    return Layer(COMPRESSED[compression], digest, size, plain.digest, blob, created_by)


def digest_of(path: Path) -> tuple[str, int]:
    """Return the digest and the size in bytes of a file."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        return "sha256:" + found.hexdigest(), file.tell()


def _write_tar(folder: Path, sink: _Hashing) -> None:
    latest = epoch()
    hardlinks: dict[tuple[int, int], str] = {}
    # A large buffer avoids a system call for each block of 10 KiB.
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as archive:  # type: ignore[call-overload]
        for path, name in _walk(folder, ""):
            found = path.lstat()
            info = tarfile.TarInfo(name)
            info.uid, info.gid = found.st_uid, found.st_gid
            info.mode = stat.S_IMODE(found.st_mode)
            info.mtime = min(int(found.st_mtime), latest)
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                # An overlay marks a removed file with such a device, an OCI layer with a `.wh.` file.
                parent, _, base = name.rpartition("/")
                whiteout = tarfile.TarInfo(f"{parent}/.wh.{base}".lstrip("/"))
                whiteout.mtime = latest
                archive.addfile(whiteout)
                continue
            content = _describe(path, found, info, hardlinks)
            if content is None:
                archive.addfile(info)
            else:
                with content:
                    archive.addfile(info, content)
            if info.isdir() and _attribute(path, "trusted.overlay.opaque") == b"y":
                opaque = tarfile.TarInfo(f"{name}/.wh..wh..opq")
                opaque.mtime = latest
                archive.addfile(opaque)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[Path, str]]:
    for entry in sorted(os.listdir(folder)):
        path, name = folder / entry, f"{prefix}{entry}"
        yield path, name
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, name + "/")


def _describe(
    path: Path, found: os.stat_result, info: tarfile.TarInfo, hardlinks: dict[tuple[int, int], str]
) -> IO[bytes] | None:
    """Set the type of a tar entry and the fields that depend on it; return its open content, or None if it has none."""
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISREG(mode):
        capability = _attribute(path, "security.capability")
        if capability:
            info.pax_headers = {XATTR + "security.capability": capability.decode("utf-8", "surrogateescape")}
        first = (
            hardlinks.setdefault((found.st_dev, found.st_ino), info.name) if found.st_nlink > 1 else info.name
        )
        if first != info.name:
            info.type, info.linkname = tarfile.LNKTYPE, first
        else:
            info.size = found.st_size
            return path.open("rb")
    elif stat.S_ISFIFO(mode):
        info.type = tarfile.FIFOTYPE
    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        info.type = tarfile.CHRTYPE if stat.S_ISCHR(mode) else tarfile.BLKTYPE
        info.devmajor, info.devminor = os.major(found.st_rdev), os.minor(found.st_rdev)
    else:
        raise Failure(f"{path} is a socket, which an image cannot contain")
    return None


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None
