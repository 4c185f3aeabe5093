"""Each crate built alone, and what the dependencies are allowed to be.

The cluster tests run beside these checks, which therefore get the time that no other process wants.
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

    In this order, since the cluster suite begins with builds into the same folder, which only one cargo may write to.
    """
    outcome = Outcome()
    with progress.step("cargo fetch"):
        # Building fetches what this platform needs; what is checked is all that any platform does.
        _check(outcome, "cargo fetch", ["cargo", "fetch", "--locked"])
    deny = _deny(progress)
    with progress.step("cargo deny"):
        _check(outcome, "cargo deny", [str(deny), "--offline", "--locked", "check", "bans", "licenses", "sources"])
    for crate in CRATES:
        with progress.step(f"{crate} alone"):
            # A crate that leans on what another one switched on in a shared dependency fails here.
            _check(outcome, f"{crate} alone", ["cargo", "check", "--locked", "-p", crate])
    return outcome


def _check(outcome: Outcome, name: str, argv: list[str]) -> None:
    _, code = command([*IDLE, *argv], quiet=True)
    outcome.count(name, code == 0)


def _deny(progress: Progress) -> Path:
    """cargo-deny, from cargo's own folder or built once into the cache."""
    cache = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock"))
    root = cache / f"cargo-deny-{DENY_VERSION}"
    program = root / "bin" / "cargo-deny"
    if not program.exists():
        with progress.step(f"building cargo-deny {DENY_VERSION}", announce=True):
            version = ("--version", DENY_VERSION, "cargo-deny")
            command(
                [*IDLE, "cargo", "install", "--debug", "--locked", "--root", str(root), *version],
                # Speed of the build matters here, not that of the program.
                {"CARGO_PROFILE_DEV_DEBUG": "0"},
                quiet=True,
            )
    return program
