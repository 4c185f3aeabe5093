"""Checks that each crate compiles alone, and that the dependencies are allowed.

The cluster tests run at the same time, so these checks get only CPU time that no other process needs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from embedded.progress import Progress

from .outcome import Outcome
from .runner import IDLE
from .runner import run as command

CRATES = (
    "drydock-api",
    "drydock-core",
    "drydock-runtime",
    "drydock-view",
    "drydock-cli",
    "drydock-host",
    "drydock-launcher",
    "drydock-controller",
    "drydock-agent",
    "drydock-tests",
)

DENY_VERSION = "0.20.2"


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Check the dependencies, then each crate.

    The order matters: the cluster suite begins with builds in the same target folder, which cargo locks.
    """
    outcome = Outcome()
    with progress.step("cargo fetch"):
        # A build fetches only the dependencies for this platform; cargo deny checks those for all platforms.
        _check(outcome, "cargo fetch", ["cargo", "fetch", "--locked"])
    deny = _deny(progress)
    with progress.step("cargo deny"):
        _check(outcome, "cargo deny", [str(deny), "--offline", "--locked", "check", "bans", "licenses", "sources"])
    for crate in CRATES:
        with progress.step(f"{crate} alone"):
            # Fails if the crate needs a feature of a shared dependency that only another crate enables.
            _check(outcome, f"{crate} alone", ["cargo", "check", "--locked", "-p", crate])
    return outcome


def _check(outcome: Outcome, name: str, argv: list[str]) -> None:
    _, code = command([*IDLE, *argv], quiet=True)
    outcome.count(name, code == 0)


def _deny(progress: Progress) -> Path:
    """Return the path of cargo-deny in the cache; build it there if it does not exist."""
    cache = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock"))
    root = cache / f"cargo-deny-{DENY_VERSION}"
    program = root / "bin" / "cargo-deny"
    if not program.exists():
        with progress.step(f"building cargo-deny {DENY_VERSION}", announce=True):
            version = ("--version", DENY_VERSION, "cargo-deny")
            command(
                [*IDLE, "cargo", "install", "--debug", "--locked", "--root", str(root), *version],
                # The speed of the build matters here, not that of the program.
                {"CARGO_PROFILE_DEV_DEBUG": "0"},
                quiet=True,
            )
    return program
