"""hack/test: runs all tests, including those on clusters.

Suites, in this order (by default, all of them run):

  style     checks of formatting, lints, names and documents
  embedded  self-test of the embedded Kubernetes cluster
  rust      unit, property and expected-output tests of all crates
  python    tests of the scripts under hack/, including the bootable guest disk
  crates    build of each crate alone; licences and versions of dependencies
  cluster   end-to-end tests on three dedicated embedded clusters in parallel, which are deleted afterwards

Some suites run in parallel: style and embedded start immediately, rust starts after style, crates after rust, and python and
cluster after embedded. The programs that embedded and cluster need are built in the background from the
start.

`--quick` runs style, and rust without the slow test `migration_search`. Use it before every commit.

`--all-faults` runs no suite, but the full matrix of faults during migrations; `cluster` runs only a part of this matrix.
A run can be interrupted: the next run continues it. The results are written to tests/faults.md.

`--previous-release` runs no suite, but tests of clusters in which some components are of the previous release. The
results are written to tests/previous-release.md.

`--kubernetes VERSION` runs the suites on another minor version of Kubernetes. The version mainly matters for suites with
clusters; tests/kubernetes-versions.md has results.

The last lines report the numbers of passed and failed tests. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

from embedded import build, interruption, prerequisites, toolchains
from embedded.errors import Failure
from embedded.progress import Progress

from . import cluster, crates, faults, previous, python, rust, style
from .outcome import Outcome
from .programs import built_meanwhile
from .runner import REPOSITORY, interrupt

Suite = Callable[[argparse.Namespace, Progress], Outcome]

SUITES: dict[str, Suite] = {
    "style": style.run,
    "embedded": cluster.selftest,
    "rust": rust.run,
    "python": python.run,
    "crates": crates.run,
    "cluster": cluster.run,
}

# Suites whose programs are built from the start: Rust's compilers leave a processor idle for a third of the style checks.
ON_CLUSTERS = {"embedded", "cluster"}

# For each suite, the earlier suites that may run at the same time. Suites with clusters or guests wait more than they compute, and
# crates uses only the CPU time that the others leave. Neither python nor cluster runs at the same time as embedded, which checks
# at its end that nothing that belongs to a cluster is left on the machine.
BESIDE = {
    "embedded": {"style"},
    "rust": {"embedded"},
    "python": {"style", "rust"},
    "crates": {"python", "embedded"},
    "cluster": {"python", "rust", "crates"},
}


def main(argv: list[str]) -> int:
    """Run the selected suites, print a summary and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="hack/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one of {', '.join(SUITES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="run only style, and rust without the slow test migration_search")
    parser.add_argument(
        "-k", "--only", default="", metavar="WORD",
        help="run only cluster tests with this word in their name, or in files whose name begins with this word",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N", help="run the files of cluster tests in the random order of this seed (default: a new seed)"
    )
    parser.add_argument(
        "--kubernetes", metavar="VERSION", choices=build.kubernetes_versions(),
        help=f"run on another minor version of Kubernetes: {', '.join(build.kubernetes_versions())}",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="do not delete the clusters of the cluster tests")
    parser.add_argument(
        "--all-faults", action="store_true", help="run the full matrix of faults, or the rest of it, instead of the suites"
    )
    parser.add_argument(
        "--previous-release", action="store_true", help="migrate guests between this version and the previous release, instead of the suites"
    )
    parser.add_argument("--again", action="store_true", help="with --all-faults: also run cases that have already passed")
    arguments = parser.parse_args(argv)
    if arguments.all_faults and arguments.suites:
        parser.error("--all-faults cannot be combined with suites")
    if arguments.previous_release and (arguments.suites or arguments.all_faults):
        parser.error("--previous-release cannot be combined with suites or --all-faults")
    if arguments.quick and (arguments.suites or arguments.all_faults or arguments.previous_release):
        parser.error("--quick cannot be combined with suites, --all-faults or --previous-release")
    if arguments.again and not arguments.all_faults:
        parser.error("--again requires --all-faults")
    suites = SUITES
    if arguments.quick:
        suites = {"style": style.run, "rust": rust.run}
    elif arguments.all_faults:
        suites = {"faults": faults.run}
    elif arguments.previous_release:
        suites = {"previous": previous.run}
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; allowed: {', '.join(SUITES)}")
    if arguments.kubernetes:
        os.environ[build.VERSION] = arguments.kubernetes
    os.umask(0o022)
    interruption.heed_termination()
    progress = Progress()
    outcomes: list[Outcome] = []
    try:
        toolchains.check(("cargo", "go", "python3"))
        prerequisites.ensure(("programs",), progress, toolchains=())
        names = list(dict.fromkeys(arguments.suites or suites))
        with built_meanwhile("cluster", "virtctl", "descheduler") if ON_CLUSTERS & set(names) else nullcontext():
            prerequisites.ensure(prerequisites.PACKAGES, progress, toolchains=())
            outcomes += _run(names, suites, arguments, progress)
    except Failure as failure:
        outcomes.append(Outcome(name="machine", failed=[str(failure)]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return interruption.EXIT_CODE
    return _summary(outcomes, progress)


def before(name: str, earlier: Iterable[str]) -> list[str]:
    """Return the earlier suites that have to end before the suite `name` starts."""
    return [other for other in earlier if other not in BESIDE.get(name, ())]


def _run(
    names: list[str], suites: Mapping[str, Suite], arguments: argparse.Namespace, progress: Progress
) -> list[Outcome]:
    """Run suites, each as soon as the suites that `before` returns have ended; return the outcomes in the order of `names`."""

    def suite(name: str, others: list[Future[Outcome]]) -> Outcome:
        for other in others:
            other.result()
        begun = time.monotonic()
        progress.note(f"suite {name}, with {shutil.disk_usage(REPOSITORY).free >> 30} GiB free on the disk")
        try:
            outcome = suites[name](arguments, progress)
        except Failure as failure:
            outcome = Outcome(failed=[f"{name}: {failure}"])
        outcome.name, outcome.seconds = name, time.monotonic() - begun
        progress.note(str(outcome))
        return outcome

    running: dict[str, Future[Outcome]] = {}
    with ThreadPoolExecutor(len(names)) as threads:
        try:
            for name in names:
                running[name] = threads.submit(suite, name, [running[other] for other in before(name, running)])
            return [future.result() for future in running.values()]
        except KeyboardInterrupt:
            # Only this thread receives the interruption. The other threads end with the commands that they run.
            interrupt()
            raise


def _summary(outcomes: list[Outcome], progress: Progress) -> int:
    print(flush=True)
    for outcome in outcomes:
        print(outcome)
    failed = [f"{outcome.name}: {what}" for outcome in outcomes for what in outcome.failures()]
    for what in failed:
        print(f"FAILED {what}")
    skipped = [what for outcome in outcomes for what in outcome.skipped]
    for what in skipped:
        print(f"skipped {what}")
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped in {progress.elapsed():.0f} s")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
