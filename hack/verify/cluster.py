"""Runs the end-to-end tests on dedicated embedded clusters."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

from embedded import build
from embedded import cluster as clusters
from embedded import lifecycle, registered
from embedded.errors import Failure
from embedded.progress import Progress, show

from . import browser, faults, previous, removal
from .install import install
from .outcome import Outcome, of_libtest
from .runner import REPOSITORY
from .runner import run as command
from .rust import ClusterTests, cluster_tests

# Two clusters leave two processors idle for a third of the time, three for less than a tenth.
NAMES = ("verify", "verify-2", "verify-3")
SELFTEST = "selftest"

# The browser tests and the removal test, which are scheduled like files of the other tests.
BROWSER = "browser"
REMOVAL = "removal"

# Test files that take minutes. They start in the first half.
LONGEST = (
    "drain",
    "guest_faults",
    "migration_faults",
    "machines",
    "migration",
    "drain_control_plane",
    "certificates",
    "instances",
    "maintenance",
    BROWSER,
)

# Test files that take less than 20 seconds. They start last, so that all clusters finish at about the same time.
QUICKEST = (
    "cli_check",
    "cli_live",
    "configuration",
    "kubelet_restart",
    "labels",
    "migration_policies",
    "placement",
    "policies",
    "subresources",
)

# Modules with tests that are written in Python.
OF_PYTHON: Mapping[str, ModuleType] = {BROWSER: browser, REMOVAL: removal}

# The number of seeds: low enough that a seed is easy to retype.
SEEDS = 100_000

# The test file that runs last: it inspects the API servers' audit logs, which cover all other tests.
LAST = "verbs_used"

# Kinds that are listed after a failure. Most failures are about an object that still exists, or that does not exist.
SHOWN = "nodes,vm,vmirs,vmi,vmim,pods,pdb"

# Timeout of a test file: two to three times the duration of the longest one, so that a hang is reported as such.
MOST_SECONDS = 1500


def selftest(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Test the embedded cluster itself, including that it leaves nothing behind."""
    build.ensure(progress)
    for name in lifecycle.left_behind(SELFTEST):
        clusters.down(name, progress)
    output, code = command(
        [sys.executable, "-m", "embedded", "selftest", "--name", SELFTEST, "--lifecycle"],
        {"PYTHONPATH": str(REPOSITORY / "hack"), "PYTHONDONTWRITEBYTECODE": "1"},
        most_seconds=MOST_SECONDS,
    )
    outcome = Outcome()
    for line in output.splitlines():
        words = line.strip().split("] ", 1)[-1]
        if words.startswith("ok "):
            outcome.passed += 1
        elif words.startswith("FAILED "):
            outcome.failed.append(words.removeprefix("FAILED "))
    if code != 0 and not outcome.failed:
        outcome.failed.append(f"the self-test ended with exit code {code}")
    return outcome


class Turns:
    """The queue of the test files that no cluster has started yet, in the order drawn from a seed."""

    def __init__(self, files: Iterable[str], seed: int) -> None:
        self._left = ordered(files, seed)
        self._lock = threading.Lock()

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> str:
        with self._lock:
            if not self._left:
                raise StopIteration
            return self._left.pop(0)


def ordered(files: Iterable[str], seed: int) -> list[str]:
    """Return the test files in the order in which they start, which is drawn from a seed.

    A test that depends on earlier tests fails under some orders. The same seed reproduces the order.
    """
    draw = random.Random(seed)
    names = sorted(files)
    draw.shuffle(names)
    long = [name for name in names if name in LONGEST]
    quick = [name for name in names if name in QUICKEST]
    others = [name for name in names if name not in (*long, *quick)]
    half = max(0, len(names) // 2 - len(long))
    first = long + others[:half]
    draw.shuffle(first)
    return first + others[half:] + quick


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Bring up clusters, install Drydock, distribute the tests among the clusters, and remove the clusters."""
    outcome = Outcome()
    tests = cluster_tests(progress)
    if not is_known(tests, arguments.only):
        # Otherwise a cluster would take minutes to come up, and the summary would show neither a test nor a reason.
        return Outcome(failed=[f"no test name contains {arguments.only!r}, and the name of no test file begins with this word"])
    os.environ["DRYDOCK_TEST_VIRTCTL"] = build.virtctl(progress)
    os.environ["DRYDOCK_TEST_DESCHEDULER"] = build.descheduler(progress)
    seed = random.randrange(SEEDS) if arguments.seed is None else arguments.seed
    files = wanted(tests, arguments.only)
    turns = Turns(files, seed)
    # A few test files need fewer clusters, which come up sooner.
    ran: dict[str, list[str]] = {name: [] for name in NAMES[: max(1, len(files))]}
    os.environ["DRYDOCK_TEST_CLUSTERS"] = ",".join(ran)
    progress.note(f"the order of the cluster tests is from seed {seed}; to repeat this order: hack/test cluster --seed {seed}")
    try:
        with ThreadPoolExecutor(len(ran)) as lanes:
            running = [lanes.submit(_lane, name, turns, ran[name], tests, arguments, progress) for name in ran]
            for lane in running:
                outcome.add(lane.result())
        outcome.failed += [f"{name}: not run: no cluster was available" for name in turns]
        outcome.add(_tests(LAST, NAMES[0], tests, arguments, progress))
        if outcome.failed:
            for name, files in ran.items():
                progress.note(f"{name} ran these files in the order of seed {seed}: {', '.join(files)}")
    finally:
        if not arguments.keep:
            outcome.failed += clusters.down_each(ran, progress)
    return outcome


def is_known(tests: ClusterTests, word: str) -> bool:
    """Return whether a word selects any test."""
    return bool(wanted(tests, word)) or bool(selected(LAST, tests.tests.get(LAST, ()), word))


def wanted(tests: ClusterTests, word: str) -> list[str]:
    """Return the files, except the last one, with tests that a word selects."""
    files = [file for file, names in tests.tests.items() if file != LAST and selected(file, names, word)]
    return files + [name for name, module in OF_PYTHON.items() if module.is_wanted(word)]


def _lane(
    name: str,
    turns: Turns,
    ran: list[str],
    tests: ClusterTests,
    arguments: argparse.Namespace,
    progress: Progress,
) -> Outcome:
    """Run test files on one cluster until none is left, and append them to `ran` in order.

    Run no more files if the removal test fails: it may not have installed Drydock again.
    """
    outcome = Outcome()
    try:
        if name in registered.names() and not arguments.keep:
            clusters.down(name, progress)
        install(clusters.up(name, progress=progress), progress, kind="--debug")
    except Failure as failure:
        outcome.failed.append(f"cluster {name}: {failure}")
        return outcome
    for file in turns:
        ran.append(file)
        if file in OF_PYTHON:
            done = _of_python(OF_PYTHON[file].run, name, arguments, progress)
        else:
            done = _tests(file, name, tests, arguments, progress)
        outcome.add(done)
        if file == REMOVAL and done.failed:
            break
    return outcome


def selected(file: str, names: Iterable[str], word: str) -> list[str]:
    """Return the tests of a file that run: all if the file's name begins with the word, otherwise those with the word in
    their name. Tests that run only on demand are excluded."""
    return [
        name
        for name in names
        if (file.startswith(word) or word in name) and name != faults.TEST and not name.startswith(previous.TESTS)
    ]


def _tests(file: str, name: str, tests: ClusterTests, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the selected tests of one file in a separate process."""
    chosen = selected(file, tests.tests[file], arguments.only)
    if not chosen:
        return Outcome()
    environment = {
        "DRYDOCK_TEST_CLUSTER": name,
        "RUST_BACKTRACE": "0",
    }
    with progress.step(f"cluster tests of {file} on {name}", announce=True):
        # Each line has the elapsed time, so that slow tests can be found in the output of any run.
        output, code = command(
            tests.argv(file, chosen),
            environment,
            most_seconds=MOST_SECONDS,
            prefix=f"{name}: ",
            stamped=True,
            folder=REPOSITORY / "tests",
        )
    outcome = of_libtest(output, code)
    if outcome.failed:
        _show(name, progress)
    return outcome


def _of_python(
    run: Callable[[str, argparse.Namespace, Progress], Outcome], name: str, arguments: argparse.Namespace, progress: Progress
) -> Outcome:
    """Run tests that are written in Python."""
    try:
        outcome = run(name, arguments, progress)
    except Failure as failure:
        return Outcome(failed=[f"{run.__module__}: {failure}"])
    if outcome.failed:
        _show(name, progress)
    return outcome


def _show(name: str, progress: Progress) -> None:
    """Print the objects on a cluster on which tests have failed."""
    progress.note(f"objects on cluster {name}")
    try:
        shown = clusters.load(name).kubectl(
            "get", SHOWN, "--all-namespaces", "-o", "wide", "--request-timeout=20s", check=False
        )
    except (Failure, OSError, subprocess.SubprocessError) as problem:
        shown = str(problem)
    for line in shown.splitlines():
        show(f"    {name}: {line}")
