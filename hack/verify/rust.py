"""Runs the unit, property and expected-output tests of all crates."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import Failure
from embedded.progress import Progress

from .outcome import Outcome, of_libtest
from .runner import IDLE, REPOSITORY
from .runner import run as command

# Timeout of a test program, several times its usual duration, so that a test that hangs is reported as such.
MOST_SECONDS = 1500

# Programs that run in parallel. Many tests wait for guests, so three programs keep two processors busy.
AT_ONCE = 3

# Programs that take longest, by the names of their targets. They start first.
LONGEST = ("hand_over", "drydock-controller", "drydock-agent")

# The search of everything that can happen to a migration. It takes a minute and is not part of `cargo test`.
SEARCH = "migration_search"

# Programs that never wait. They use the CPU time that clusters and guests leave, and may end while the cluster tests run.
COMPUTE = ("drydock_core", "start_search", SEARCH)

# If an output differs from the expected one, the test fails, and no new file is written.
ENVIRONMENT = {"INSTA_UPDATE": "no", "RUST_BACKTRACE": "0"}

BUILD = ("cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics")


# This source file declares the files of the tests that need a cluster.
CLUSTER_TESTS = REPOSITORY / "tests" / "tests" / "main.rs"


@dataclass(frozen=True)
class Program:
    """The test program of one target."""

    target: str
    path: Path
    # The source file of the target, and the folder of its package, which is the working directory under cargo.
    source: Path
    folder: Path


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Run all tests that need no cluster; skip the search if `arguments.quick` is set."""
    with progress.step("building the tests", announce=True):
        found = sorted(_build(BUILD), key=_turn)
        found += [] if arguments.quick else _build((*BUILD, "--test", SEARCH))
    printed = threading.Lock()

    def job(name: str, argv: Sequence[str], folder: Path) -> Outcome:
        output, code = command(list(argv), ENVIRONMENT, quiet=True, most_seconds=MOST_SECONDS, folder=folder)
        done = of_libtest(output, code)
        with printed:
            progress.note(f"{name}: {done.passed} passed, {len(done.failed)} failed")
        return done

    def of(program: Program) -> Outcome:
        policy = IDLE if program.target in COMPUTE else ()
        return job(program.target, (*policy, str(program.path)), program.folder)

    outcome = Outcome()
    with ThreadPoolExecutor() as leftover, ThreadPoolExecutor(AT_ONCE) as lanes:
        jobs = [
            (leftover if program.target in COMPUTE else lanes).submit(of, program)
            for program in found
        ]
        documents = ("cargo", "test", "--workspace", "--locked", "--doc")
        jobs.append(lanes.submit(job, "examples in documents", documents, REPOSITORY))
        for done in jobs:
            outcome.add(done.result())
    return outcome


def _turn(program: Program) -> int:
    return LONGEST.index(program.target) if program.target in LONGEST else len(LONGEST)


def _build(argv: Sequence[str]) -> list[Program]:
    built, code = command(list(argv), quiet=True)
    if code != 0:
        raise Failure("the tests do not compile; see above")
    return programs(built)


@dataclass(frozen=True)
class ClusterTests:
    """The test program for all tests that need a cluster, and the names of these tests by file."""

    path: Path
    tests: Mapping[str, tuple[str, ...]]

    def argv(self, file: str, names: Iterable[str]) -> list[str]:
        """Return the command that runs tests of a file one after another."""
        return [str(self.path), "--ignored", "--test-threads=1", "--exact", *(f"{file}::{name}" for name in names)]


def cluster_tests(progress: Progress) -> ClusterTests:
    """Build the tests that need a cluster, and list them.

    They are built together with all other tests: a separate build would build shared dependencies again. Raises Failure if they
    do not compile or cannot be listed.
    """
    with progress.step("building the cluster tests", announce=True):
        found = _build(BUILD)
    path = next(program.path for program in found if program.source == CLUSTER_TESTS)
    listed, code = command([str(path), "--list", "--ignored", "--format=terse"], quiet=True)
    if code != 0:
        raise Failure("the names of the cluster tests could not be listed; see above")
    return ClusterTests(path, tests_by_file(listed))


def tests_by_file(listed: str) -> dict[str, tuple[str, ...]]:
    """Return the tests that libtest lists, by file and without the file in their names."""
    files: dict[str, list[str]] = {}
    for line in listed.splitlines():
        test, found, _ = line.rpartition(": test")
        if found:
            file, _, name = test.partition("::")
            files.setdefault(file, []).append(name)
    return {file: tuple(names) for file, names in files.items()}


def programs(messages: str) -> list[Program]:
    """Return the test programs in the messages of a cargo build."""
    found = []
    for line in messages.splitlines():
        if not line.startswith("{"):
            continue
        reported: Mapping = json.loads(line)
        if reported.get("reason") == "compiler-artifact" and reported.get("executable") and reported["profile"]["test"]:
            found.append(
                Program(
                    target=reported["target"]["name"],
                    path=Path(reported["executable"]),
                    source=Path(reported["target"]["src_path"]),
                    folder=Path(reported["manifest_path"]).parent,
                )
            )
    return found
