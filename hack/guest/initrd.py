"""Writes the guest's initrd: an archive in the cpio form that Linux unpacks."""

from __future__ import annotations

import lzma
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from oci.progress import Failure

# What the guest may meet as disk, network, clock or button on a machine of
# libvirt's making. Others are pulled in by their dependencies. A driver that
# the kernel does not have, or has built in, is passed over.
WANTED = (
    "nls_cp437", "nls_iso8859-1", "nls_utf8", "nls_ascii", "vfat", "isofs",
    "virtio_blk", "sd_mod", "sr_mod", "virtio_scsi", "ahci", "ata_piix",
    "virtio_net", "e1000", "e1000e", "8139cp", "virtio-rng", "virtio_balloon",
    "evdev", "virtio_input", "button",
)  # fmt: skip
DEPENDS = re.compile(rb"(?:^|\0)depends=([^\0]*)")


# A signature behind a module: its data, 12 bytes that end with its length, and these words (linux/module_signature.h).
SIGNED = b"~Module signature appended~\n"


def unpack_module(path: Path) -> bytes:
    """Return a module as the kernel wants it."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def without_signature(module: bytes) -> bytes:
    """Return a module without its signature, which costs an emulated processor more to verify than all else in loading it."""
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
    """Return the modules of an unpacked kernel package in an order that loads, but for those that are loaded before."""
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
    """Write a folder as a newc archive, all of it owned by root."""
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
