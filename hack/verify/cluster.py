"""End-to-end tests on an embedded cluster of their own."""

from __future__ import annotations

import argparse
import sys

from embedded import build
from embedded import cluster as clusters
from embedded import registered
from embedded.progress import Progress

from . import faults
from .install import install
from .outcome import Outcome, of_libtest
from .runner import REPOSITORY
from .runner import run as command

NAME = "verify"
SELFTEST = "selftest"


def selftest(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Try the embedded cluster itself out, and see that nothing stays behind."""
    build.ensure(progress)
    output, code = command(
        [sys.executable, "-m", "embedded", "selftest", "--name", SELFTEST, "--lifecycle"],
        {"PYTHONPATH": str(REPOSITORY / "hack"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    outcome = Outcome()
    for line in output.splitlines():
        words = line.strip().split("] ", 1)[-1]
        if words.startswith("ok "):
            outcome.passed += 1
        elif words.startswith("FAILED "):
            outcome.failed.append(words.removeprefix("FAILED "))
    if code != 0 and not outcome.failed:
        outcome.failed.append(f"the self-test ended with {code}")
    return outcome


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Bring a cluster up, install Drydock, run the tests, take the cluster away."""
    outcome = Outcome()
    if NAME in registered.names() and not arguments.keep:
        clusters.down(NAME, progress)
    made = clusters.up(NAME, progress=progress)
    try:
        install(made, progress)
        for test in sorted((REPOSITORY / "tests" / "tests").glob("*.rs")):
            argv = ["cargo", "test", "--locked", "-p", "drydock-tests", "--test", test.stem, "--"]
            argv += ["--ignored", "--test-threads=1", "--skip", faults.TEST, *([arguments.only] if arguments.only else [])]
            with progress.step(f"cluster tests of {test.stem}", announce=True):
                output, code = command(argv, {"DRYDOCK_TEST_CLUSTER": NAME, "RUST_BACKTRACE": "0"})
            outcome.add(of_libtest(output, code))
    finally:
        if not arguments.keep:
            clusters.down(NAME, progress)
    return outcome
