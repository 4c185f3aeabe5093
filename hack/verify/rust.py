"""Unit, property and expected-output tests of all crates."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from embedded.errors import Failure
from embedded.progress import Progress

from .outcome import Outcome, of_libtest
from .runner import REPOSITORY
from .runner import run as command

# Several times what they take: one that hangs is to be told as such.
MOST_SECONDS = 1500


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """`cargo test`, without what needs a cluster."""
    with progress.step("building the tests", announce=True):
        built, code = command(["cargo", "test", "--workspace", "--locked", "--no-run"], quiet=True)
    if code != 0:
        return Outcome(failed=["the tests do not compile"])
    argv = ["cargo", "test", "--workspace", "--locked", "--no-fail-fast"]
    # An expected output that differs is a failure, and nothing is written beside it.
    output, code = command(argv, {"INSTA_UPDATE": "no", "RUST_BACKTRACE": "0"}, quiet=True, most_seconds=MOST_SECONDS)
    return of_libtest(output, code)


def cluster_tests(progress: Progress) -> dict[str, Path]:
    """The programs of the tests that need a cluster, by the names of their files; built with all others, as
    a build of these alone would build what they share again.

    Fails if they do not compile.
    """
    argv = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
    with progress.step("building the cluster tests", announce=True):
        built, code = command(argv, quiet=True)
    if code != 0:
        raise Failure("the tests do not compile; see above")
    return programs(built, REPOSITORY / "tests" / "tests")


def programs(messages: str, folder: Path) -> dict[str, Path]:
    """What cargo says it has made of the tests whose sources are in `folder`, by the names of these."""
    found = {}
    for line in messages.splitlines():
        if not line.startswith("{"):
            continue
        told = json.loads(line)
        if told.get("reason") == "compiler-artifact" and told.get("executable") and told["target"]["kind"] == ["test"]:
            source = Path(told["target"]["src_path"])
            if source.parent == folder:
                found[source.stem] = Path(told["executable"])
    return found
