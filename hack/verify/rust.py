"""Unit, property and expected-output tests of all crates."""

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

# Several times what they take: one that hangs is to be reported as such.
MOST_SECONDS = 1500

# Many tests wait for guests, so that three programs side by side keep two processors busy.
AT_ONCE = 3

# Programs that take longest start first. By their targets' names.
LONGEST = ("hand_over", "drydock-controller", "drydock-agent")

# The search of all that can happen to a migration, which takes a minute and is no part of `cargo test`.
SEARCH = "migration_search"

# Programs that wait for nothing: they get the time that clusters and guests leave, and may end while the cluster tests run.
COMPUTE = ("drydock_core", "start_search", SEARCH)

# An expected output that differs is a failure, and nothing is written beside it.
ENVIRONMENT = {"INSTA_UPDATE": "no", "RUST_BACKTRACE": "0"}

BUILD = ("cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics")


# Declares the files of tests that need a cluster.
CLUSTER_TESTS = REPOSITORY / "tests" / "tests" / "main.rs"


@dataclass(frozen=True)
class Program:
    """The built tests of one target."""

    target: str
    path: Path
    # The target's source, and the folder of its package, in which cargo runs it.
    source: Path
    folder: Path


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """All tests but those that need a cluster; without the search if it has to be quick."""
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
    """The program of the tests that need a cluster, and their names by file."""

    path: Path
    tests: Mapping[str, tuple[str, ...]]

    def argv(self, file: str, names: Iterable[str]) -> list[str]:
        """The command that runs tests of a file one after the other."""
        return [str(self.path), "--ignored", "--test-threads=1", "--exact", *(f"{file}::{name}" for name in names)]


def cluster_tests(progress: Progress) -> ClusterTests:
    """The tests that need a cluster; built with all others, as a build of these alone would build what they share again.

    Fails if they do not compile.
    """
    with progress.step("building the cluster tests", announce=True):
        found = _build(BUILD)
    path = next(program.path for program in found if program.source == CLUSTER_TESTS)
    listed, code = command([str(path), "--list", "--ignored", "--format=terse"], quiet=True)
    if code != 0:
        raise Failure("the cluster tests do not list their names; see above")
    return ClusterTests(path, tests_by_file(listed))


def tests_by_file(listed: str) -> dict[str, tuple[str, ...]]:
    """The tests that libtest lists, without the file in their names, by file."""
    files: dict[str, list[str]] = {}
    for line in listed.splitlines():
        test, found, _ = line.rpartition(": test")
        if found:
            file, _, name = test.partition("::")
            files.setdefault(file, []).append(name)
    return {file: tuple(names) for file, names in files.items()}


def programs(messages: str) -> list[Program]:
    """Return the programs of tests that cargo reports as built."""
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
