"""hack/test: runs every test, the cluster ones too.

Suites, in this order (name some to run only those):

  style     formatting, lints, names and documents
  python    the tests of the scripts under hack/, the bootable guest disk among them
  rust      unit, property and expected-output tests of all crates
  embedded  the embedded Kubernetes tried out
  crates    each crate built alone, dependencies' licences and versions
  cluster   end-to-end tests on two embedded clusters of their own side by side, taken away afterwards

Style and python start at once, rust after style, embedded after python, crates after rust, cluster after embedded, whatever else
runs then. What embedded and cluster need is built from the start on.

`--quick` runs style and rust without what takes long: for every commit.

`--all-faults` runs none of these, but the whole matrix of faults while guests move, of which `cluster`
tries a part. It can be interrupted and goes on where it was; its results are tests/faults.md.

`--previous-release` runs none of these either, but tests of clusters of which some parts are of the previous release;
its results are tests/previous-release.md.

`--kubernetes VERSION` runs the suites on another minor version of Kubernetes, those with clusters above all; results
are in tests/kubernetes-versions.md.

The last lines report how many tests passed and failed; the exit code is 1 if any failed.
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
    "python": python.run,
    "rust": rust.run,
    "embedded": cluster.selftest,
    "crates": crates.run,
    "cluster": cluster.run,
}

# Their programs are built from the start on: compilers of Rust leave a processor idle for a third of the style checks.
ON_CLUSTERS = {"embedded", "cluster"}

# Suites that one may run beside, of those before it. Those with clusters or guests wait more than they compute, and crates takes
# the time that the others leave. Neither python nor cluster runs beside embedded, which checks at its end that nothing that belongs
# to a cluster is left on the machine.
BESIDE = {
    "python": {"style"},
    "rust": {"python"},
    "embedded": {"style", "rust"},
    "crates": {"python", "embedded"},
    "cluster": {"python", "rust", "crates"},
}


def main(argv: list[str]) -> int:
    """Run the suites and add up."""
    parser = argparse.ArgumentParser(
        prog="hack/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="style, and rust without the long searches")
    parser.add_argument("-k", "--only", default="", metavar="WORD", help="only cluster tests with this word in their name, or in files that begin with it")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="run the files of cluster tests in the order that this seed draws (default: a new one)"
    )
    parser.add_argument(
        "--kubernetes", metavar="VERSION", choices=build.kubernetes_versions(),
        help=f"run on another minor version of Kubernetes: {', '.join(build.kubernetes_versions())}",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="leave the clusters of the cluster tests running")
    parser.add_argument("--all-faults", action="store_true", help="run the whole matrix of faults instead, or the rest of it")
    parser.add_argument(
        "--previous-release", action="store_true", help="move guests between this version and the previous release instead"
    )
    parser.add_argument("--again", action="store_true", help="with --all-faults: also what has passed before")
    arguments = parser.parse_args(argv)
    if arguments.all_faults and arguments.suites:
        parser.error("--all-faults runs no other suite")
    if arguments.previous_release and (arguments.suites or arguments.all_faults):
        parser.error("--previous-release runs no other suite")
    if arguments.quick and (arguments.suites or arguments.all_faults or arguments.previous_release):
        parser.error("--quick runs no other suite")
    if arguments.again and not arguments.all_faults:
        parser.error("--again is for --all-faults")
    suites = SUITES
    if arguments.quick:
        suites = {"style": style.run, "rust": rust.run}
    elif arguments.all_faults:
        suites = {"faults": faults.run}
    elif arguments.previous_release:
        suites = {"previous": previous.run}
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"there is no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
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
    """Return which earlier suites have to end before one starts."""
    return [other for other in earlier if other not in BESIDE.get(name, ())]


def _run(
    names: list[str], suites: Mapping[str, Suite], arguments: argparse.Namespace, progress: Progress
) -> list[Outcome]:
    """Run suites, each as soon as those before it have ended; return what came of them in their order."""

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
            # Only this thread receives it. The others end with the commands that they run.
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
