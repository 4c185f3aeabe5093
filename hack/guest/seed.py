"""Writes NoCloud data for the guest to a volume with the label cidata."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from oci.progress import run


def write_iso(path: Path, files: Mapping[str, str], scratch: Path) -> None:
    """Write the files as an ISO 9660 volume."""
    folder = scratch / f"{path.stem}.files"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [
        "genisoimage",
        "-quiet",
        "-volid",
        "cidata",
        "-joliet",
        "-rock",
        "-output",
        str(path),
        str(folder),
    ]
    run(command, log=scratch / "genisoimage.log", what="writing an ISO")


def write_vfat(path: Path, files: Mapping[str, str]) -> None:
    """Write the files as a small FAT volume without partitions."""
    subprocess.run(["mformat", "-C", "-i", str(path), "-f", "1440", "-v", "cidata", "::"], check=True)
    for name, text in files.items():
        subprocess.run(["mcopy", "-i", str(path), "-", f"::{name}"], input=text.encode(), check=True)
