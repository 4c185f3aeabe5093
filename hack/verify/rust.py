"""Unit, property and expected-output tests of all crates."""

from __future__ import annotations

import argparse

from embedded.progress import Progress

from .outcome import Outcome, of_libtest
from .runner import run as command


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """`cargo test`, without what needs a cluster."""
    with progress.step("building the tests", announce=True):
        built, code = command(["cargo", "test", "--workspace", "--locked", "--no-run"], quiet=True)
    if code != 0:
        return Outcome(failed=["the tests do not compile"])
    # An expected output that differs is a failure, and nothing is written beside it.
    output, code = command(["cargo", "test", "--workspace", "--locked", "--no-fail-fast"], {"INSTA_UPDATE": "no"}, quiet=True)
    return of_libtest(output, code)
