"""Runs the tests of the scripts under hack/."""

from __future__ import annotations

import argparse
import sys

from embedded.progress import Progress

from .outcome import Outcome, of_unittest
from .runner import REPOSITORY
from .runner import run as command

# Timeout of the tests of a package: several times the duration of the tests of any package.
MOST_SECONDS = 600


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Run `unittest` in each package that has a `tests` folder."""
    outcome = Outcome()
    hack = REPOSITORY / "hack"
    for folder in sorted(hack.glob("*/tests")):
        package = folder.parent.name
        output, code = command(
            [sys.executable, "-m", "unittest", "discover", "-v", "-s", str(folder), "-t", str(hack)],
            {"PYTHONPATH": str(hack), "PYTHONDONTWRITEBYTECODE": "1"},
            quiet=True,
            most_seconds=MOST_SECONDS,
        )
        found = of_unittest(output, code)
        progress.note(f"{package}: {found.passed} passed, {len(found.failed)} failed")
        outcome.add(found)
    return outcome
