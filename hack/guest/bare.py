"""Builds the disk of the guest without an operating system: one program, which the BIOS starts."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from oci.builder import content_key, key_of
from oci.progress import run, step

SOURCES = Path(__file__).resolve().parent
DISK_SIZE = 1 << 20


def build(cache: Path) -> Path:
    """Return the disk, building it if its sources have changed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        key = key_of("bare", [content_key(SOURCES / name) for name in ("bare.rs", "bare.ld", "bare.py")])
        disk = cache / "disks" / key / "disk.qcow2"
        if not disk.exists():
            scratch = cache / "work"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            shutil.rmtree(disk.parent.parent, ignore_errors=True)
            with step("guest without an operating system"):
                made = _assemble(scratch)
                disk.parent.mkdir(parents=True)
                made.rename(disk)
            shutil.rmtree(scratch)
    return disk


def _assemble(scratch: Path) -> Path:
    program, raw, disk = scratch / "bare.elf", scratch / "disk.img", scratch / "disk.qcow2"
    compiler = ["rustc", "--edition=2024", "-O", "-Cpanic=abort", "-Cstrip=symbols", "-Crelocation-model=static"]
    compiler += ["-Ctarget-feature=+crt-static"]
    compiler += ["-Clink-args=-nostdlib -nostartfiles -Wl,--build-id=none,--script=bare.ld"]
    steps = (
        [*compiler, "-o", str(program), "bare.rs"],
        ["objcopy", "-O", "binary", str(program), str(raw)],
        ["truncate", f"--size={DISK_SIZE}", str(raw)],
        ["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)],
    )
    for command in steps:
        run(command, log=scratch / f"{command[0]}.log", what=command[0], cwd=SOURCES)
    return disk
