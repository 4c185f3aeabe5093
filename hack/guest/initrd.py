"""Writes the guest's initrd, a cpio archive that Linux unpacks."""

from __future__ import annotations

import lzma
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from oci.progress import Failure

# Drivers for the disks, network devices, clocks and buttons that a virtual machine
# of libvirt may have. Their dependencies are added automatically. A driver that the
# kernel lacks or has built in is skipped.
WANTED = (
    "nls_cp437", "nls_iso8859-1", "nls_utf8", "nls_ascii", "vfat", "isofs",
    "virtio_blk", "sd_mod", "sr_mod", "virtio_scsi", "ahci", "ata_piix",
    "virtio_net", "e1000", "e1000e", "8139cp", "virtio-rng", "virtio_balloon",
    "evdev", "virtio_input", "button",
)  # fmt: skip
DEPENDS = re.compile(rb"(?:^|\0)depends=([^\0]*)")


# A signed module ends with the signature, 12 bytes that end with its length, and this text (linux/module_signature.h).
SIGNED = b"~Module signature appended~\n"


def unpack_module(path: Path) -> bytes:
    """Return the content of a module, decompressed if necessary."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def without_signature(module: bytes) -> bytes:
    """Return a module without its signature. Under emulation, verifying it takes longer than the rest of loading the module."""
    if not module.endswith(SIGNED):
        return module
    end = len(module) - len(SIGNED)
    length = int.from_bytes(module[end - 4 : end], "big")
    return module[: end - 12 - length]


def modules(
    kernel: Path,
    wanted: Iterable[str] = WANTED,
    loaded_before: Iterable[str] = (),
    *,
    signed: bool = False,
) -> dict[str, bytes]:
    """Return modules of an unpacked kernel package and their dependencies in loading order, without `loaded_before`."""
    files = {path.name.split(".ko")[0].replace("_", "-"): path for path in sorted(kernel.rglob("*.ko*"))}
    if not files:
        raise Failure(f"there are no modules in {kernel}")
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        path = files.get(name.replace("_", "-"))
        if path is None or path.name.split(".ko")[0] + ".ko" in {*loaded, *loaded_before}:
            return
        data = unpack_module(path)
        found = DEPENDS.search(data)
        for needed in (found[1].decode() if found else "").split(","):
            load(needed)
        loaded[path.name.split(".ko")[0] + ".ko"] = data if signed else without_signature(data)

    for name in wanted:
        load(name)
    return loaded


def write(folder: Path, output: IO[bytes], time: int) -> None:
    """Write a folder as a newc archive in which root owns all files."""
    for number, (name, path) in enumerate(_walk(folder, ""), start=1):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            data = os.readlink(path).encode()
        else:
            data = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
        _entry(output, name, number, found.st_mode, data, time)
    _entry(output, "TRAILER!!!", 0, 0, b"", 0)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for entry in sorted(os.listdir(folder)):
        path = folder / entry
        yield prefix + entry, path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, f"{prefix}{entry}/")


def _entry(output: IO[bytes], name: str, number: int, mode: int, data: bytes, time: int) -> None:
    encoded = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, time, len(data), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    output.write(head + b"\0" * (-len(head) % 4))
    output.write(data + b"\0" * (-len(data) % 4))
