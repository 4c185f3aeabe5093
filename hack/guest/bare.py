"""Builds the disk of the guest without an operating system. The disk has one program, which the BIOS starts."""

from __future__ import annotations

from pathlib import Path

from guest import store
from oci.builder import content_key, key_of
from oci.progress import run, step

SOURCES = Path(__file__).resolve().parent
DISK_SIZE = 1 << 20


def build(cache: Path) -> Path:
    """Build the disk if its sources have changed, and return its path."""
    key = key_of("bare", [content_key(SOURCES / name) for name in ("bare.rs", "bare.ld", "bare.py")])
    with store.locked(cache):
        return store.stored(cache, key, _assemble)


def _assemble(scratch: Path) -> None:
    program, raw = scratch / "bare.elf", scratch / "disk.img"
    compiler = ["rustc", "--edition=2024", "-O", "-Cpanic=abort", "-Cstrip=symbols", "-Crelocation-model=static"]
    compiler += ["-Ctarget-feature=+crt-static"]
    compiler += ["-Clink-args=-nostdlib -nostartfiles -Wl,--build-id=none,--script=bare.ld"]
    steps = (
        [*compiler, "-o", str(program), "bare.rs"],
        ["objcopy", "-O", "binary", str(program), str(raw)],
        ["truncate", f"--size={DISK_SIZE}", str(raw)],
        ["qemu-img", "convert", "-O", "qcow2", str(raw), str(scratch / store.NAME)],
    )
    with step("guest without an operating system"):
        for command in steps:
            run(command, log=scratch / f"{command[0]}.log", what=command[0], cwd=SOURCES)
