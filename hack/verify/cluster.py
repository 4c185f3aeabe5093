"""End-to-end tests on embedded clusters of their own."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

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

# With three, all tests take as long as with two: what is idle beside two is taken by what three contend for.
NAMES = ("verify", "verify-2")
SELFTEST = "selftest"

# The tests in a browser, as if they were a file of the others.
BROWSER = "browser"

# Files that take minutes. They start in the first half, so that the clusters end at about the same time.
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

# Seeds are short enough to be typed again.
SEEDS = 100_000

# Inspects the API servers' records of all that the others did.
LAST = "verbs_used"

# Kinds that are listed with a failure: most failures are something that is still there, or not there.
SHOWN = "nodes,vm,vmirs,vmi,vmim,pods,pdb"

# Two to three times what the longest file takes: one that hangs is to be reported as such.
MOST_SECONDS = 1500


def selftest(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Try the embedded cluster itself out, and see that nothing stays behind."""
    build.ensure(progress)
    # The cluster tests need these too, and they are built while other tests wait.
    build.virtctl(progress)
    build.descheduler(progress)
    browser.prepare(progress)
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
        outcome.failed.append(f"the self-test ended with {code}")
    return outcome


class Turns:
    """The files of tests that no cluster has taken yet, in the order of a seed."""

    def __init__(self, files: Iterable[str], seed: int) -> None:
        self._left = ordered(files, seed)
        self._lock = threading.Lock()
        self._spare = ""

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> str:
        with self._lock:
            if not self._left:
                raise StopIteration
            return self._left.pop(0)

    def is_spare(self, cluster: str) -> bool:
        """Whether this cluster is the first to which no file was left."""
        with self._lock:
            self._spare = self._spare or cluster
            return self._spare == cluster


def ordered(files: Iterable[str], seed: int) -> list[str]:
    """Files in the order in which they start, drawn from a seed: a test that depends on what ran before it fails
    under some orders, and the same seed draws the same order again."""
    draw = random.Random(seed)
    names = sorted(files)
    draw.shuffle(names)
    long = [name for name in names if name in LONGEST]
    short = [name for name in names if name not in LONGEST]
    half = max(0, len(names) // 2 - len(long))
    first = long + short[:half]
    draw.shuffle(first)
    return first + short[half:]


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Bring clusters up, install Drydock, share the tests out among them, take the clusters away."""
    outcome = Outcome()
    tests = cluster_tests(progress)
    if not is_known(tests, arguments.only):
        # A cluster would take minutes to come up, and the summary would show neither a test nor a reason.
        return Outcome(failed=[f"no test has {arguments.only!r} in its name, and no file of tests begins with it"])
    os.environ["DRYDOCK_TEST_VIRTCTL"] = build.virtctl(progress)
    os.environ["DRYDOCK_TEST_DESCHEDULER"] = build.descheduler(progress)
    seed = random.randrange(SEEDS) if arguments.seed is None else arguments.seed
    files = wanted(tests, arguments.only)
    turns = Turns(files, seed)
    # For a few tests, fewer clusters come up sooner. Drydock's removal takes one.
    ran: dict[str, list[str]] = {name: [] for name in NAMES[: max(1, len(files) + removal.is_wanted(arguments.only))]}
    os.environ["DRYDOCK_TEST_CLUSTERS"] = ",".join(ran)
    progress.note(f"the order of the cluster tests is drawn from seed {seed}: hack/test cluster --seed {seed} repeats it")
    try:
        with ThreadPoolExecutor(len(ran)) as lanes:
            running = [lanes.submit(_lane, name, turns, ran[name], tests, arguments, progress) for name in ran]
            for lane in running:
                outcome.add(lane.result())
        outcome.failed += [f"{name}: not run, no cluster came up" for name in turns]
        installed = next((name for name in ran if not turns.is_spare(name)), NAMES[0])
        outcome.add(_tests(LAST, installed, tests, arguments, progress))
        if outcome.failed:
            for name, files in ran.items():
                progress.note(f"{name} ran, by seed {seed}: {', '.join(files)}")
    finally:
        if not arguments.keep:
            outcome.failed += clusters.down_each(ran, progress)
    return outcome


def is_known(tests: ClusterTests, word: str) -> bool:
    """Whether a word selects any test."""
    return bool(wanted(tests, word)) or removal.is_wanted(word) or bool(selected(LAST, tests.tests.get(LAST, ()), word))


def wanted(tests: ClusterTests, word: str) -> list[str]:
    """The files with tests that a word selects, but the last."""
    files = [file for file, names in tests.tests.items() if file != LAST and selected(file, names, word)]
    return [*files, BROWSER] if browser.is_wanted(word) else files


def _lane(
    name: str,
    turns: Turns,
    ran: list[str],
    tests: ClusterTests,
    arguments: argparse.Namespace,
    progress: Progress,
) -> Outcome:
    """Run tests on one cluster while there are any; `ran` gets their files in order.

    The first cluster that gets no more is the one from which Drydock is removed, while others still test.
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
        if file == BROWSER:
            outcome.add(_of_python(browser.run, name, arguments, progress))
        else:
            outcome.add(_tests(file, name, tests, arguments, progress))
    if turns.is_spare(name):
        outcome.add(_of_python(removal.run, name, arguments, progress))
    return outcome


def selected(file: str, names: Iterable[str], word: str) -> list[str]:
    """Which tests of a file run: all if its name begins with the word, otherwise those with the word in their name; but
    none of those that run on demand."""
    return [
        name
        for name in names
        if (file.startswith(word) or word in name) and name != faults.TEST and not name.startswith(previous.TESTS)
    ]


def _tests(file: str, name: str, tests: ClusterTests, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """The tests of one file, in a process of their own."""
    chosen = selected(file, tests.tests[file], arguments.only)
    if not chosen:
        return Outcome()
    environment = {
        "DRYDOCK_TEST_CLUSTER": name,
        "RUST_BACKTRACE": "0",
    }
    with progress.step(f"cluster tests of {file} on {name}", announce=True):
        # Stamped, so that the tests that take long can be found in the output of any run.
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
    """Tests that are no file of Rust."""
    try:
        outcome = run(name, arguments, progress)
    except Failure as failure:
        return Outcome(failed=[f"{run.__module__}: {failure}"])
    if outcome.failed:
        _show(name, progress)
    return outcome


def _show(name: str, progress: Progress) -> None:
    """What is on a cluster on which tests have failed."""
    progress.note(f"{name} as it is now")
    try:
        shown = clusters.load(name).kubectl(
            "get", SHOWN, "--all-namespaces", "-o", "wide", "--request-timeout=20s", check=False
        )
    except (Failure, OSError, subprocess.SubprocessError) as problem:
        shown = str(problem)
    for line in shown.splitlines():
        show(f"    {name}: {line}")
