"""Checks the versions of the compilers and interpreters that these scripts need but do not install."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import Failure

_REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Toolchain:
    """A required program: the command that prints its version, the minimum version, and a source of newer versions."""

    title: str
    argv: tuple[str, ...]
    least: str
    remedy: str


def known() -> dict[str, Toolchain]:
    """Return the toolchains by program name."""
    workspace = tomllib.loads((_REPOSITORY / "Cargo.toml").read_text())["workspace"]
    return {
        "cargo": Toolchain(
            "the Rust toolchain (cargo)",
            ("cargo", "--version"),
            workspace["package"]["rust-version"],
            "rustup installs the version of rust-toolchain.toml",
        ),
        # Older versions do not download the Go version that a go.mod requires.
        "go": Toolchain("the Go toolchain (go)", ("go", "env", "GOVERSION"), "1.21", "go.dev/dl has newer versions"),
        "python3": Toolchain("Python 3 (python3)", ("python3", "--version"), "3.11", "python.org has newer versions"),
    }


def check(names: Iterable[str]) -> None:
    """Raise Failure with the required version if a toolchain is missing or too old."""
    toolchains = known()
    for name in names:
        toolchain = toolchains[name]
        if shutil.which(name) is None:
            raise Failure(f"{toolchain.title} is not on the PATH; version {toolchain.least} or newer is needed")
        found = _version(toolchain)
        if found is None or _numbers(found) < _numbers(toolchain.least):
            raise Failure(
                f"{toolchain.title} on the PATH has version {found or 'unknown'}; "
                f"version {toolchain.least} or newer is needed: {toolchain.remedy}"
            )


def _version(toolchain: Toolchain) -> str | None:
    """Return the version that the program prints in the repository, where rustup selects that of rust-toolchain.toml."""
    # Do not capture standard error: rustup reports there that it installs a version.
    argv = toolchain.argv
    done = subprocess.run(argv, cwd=_REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(argv)} failed with exit code {done.returncode}; see above")
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
    return found[0] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))
