"""hack/bench NAME: measures, one line of JSON for each figure on standard output.

  inspect   the node agent: inspection, labels, what it costs when idle (about 30 minutes)
  vms       virtual machines: memory beside the guest, time to start, writes to the API server (about 10 minutes)
  migration live migration against virsh, and the tunnel against socat (about 20 minutes)
  drain     `kubectl drain` against its ideal, and the responses to evictions (about 15 minutes)
  streams   consoles, displays and port-forwards through the API against socat (about 5 minutes)
  console   `kubectl drydock` and its web console with 500 nodes and 5,000 virtual machines (about 8 minutes)
  plans     what plans of drains foretell against what happens, in 30 random simulated clusters (about 10 minutes)
  sweep     a change of a node with 100,000 instances: how long it blocks the controller (about 10 minutes)
  scale     drains of a large simulated cluster: slots, controller, requests (about 30 minutes at full size)
  all       everything

Each line is {"name", "value", "unit", "reference", "ratio", "budget", "ok", "least", "load"}: the reference is the raw
tool measured in the same run, or a number of KubeVirt's that its name states; `value` is a median, `least` the smallest
sample, `load` how busy the machine was. Exits with 1 if a figure is not within its budget.
A cluster of its own is brought up and taken away again; those of `console`, `plans` and `scale` have no nodes but played ones.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator

from embedded import cluster, interruption, prerequisites, registered
from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress
from verify.install import install

from . import (
    against,
    agent_cost,
    console_time,
    drain_time,
    eviction_time,
    guest_memory,
    guest_start,
    guest_writes,
    inspection_time,
    label_latency,
    migration_time,
    other_nodes_memory,
    plans,
    scale,
    streams,
    sweep,
    tunnel_throughput,
)
from .api import Api
from .measurement import SAMPLES, Measurement
from .simulation import Size

NAME = "bench"
# The benchmark whose nodes are played.
SCALE = "scale"
# The one whose nodes are objects only.
CONSOLE = "console"
# The one whose nodes are random.
PLANS = "plans"
# The one without a cluster.
SWEEP = "sweep"
# Those that do not share the cluster of the others.
APART = (CONSOLE, PLANS, SWEEP, SCALE)

Part = Callable[[Cluster, Api, Progress], Iterator[Measurement]]


def benchmarks(samples: int) -> dict[str, tuple[Part, ...]]:
    """The parts of each benchmark."""
    return {
        "inspect": (inspection_time.measure, label_latency.measure, agent_cost.measure, other_nodes_memory.measure),
        "vms": (guest_memory.measure, guest_writes.measure, guest_start.measure),
        "migration": (
            functools.partial(migration_time.measure, samples=samples),
            functools.partial(tunnel_throughput.measure, samples=samples),
        ),
        "drain": (functools.partial(drain_time.measure, samples=samples), eviction_time.measure),
        "streams": (functools.partial(streams.measure, samples=samples),),
    }


def at_least_one(text: str) -> int:
    """A number of samples."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def measured(names: list[str], arguments: argparse.Namespace, progress: Progress) -> Iterator[Measurement]:
    """The figures of these benchmarks, as they come."""
    real = [name for name in names if name not in APART]
    if real:
        with _cluster(NAME, None, arguments.keep, progress) as made:
            install(made, progress)
            api = Api(made)
            for name in real:
                for part in benchmarks(arguments.samples)[name]:
                    yield from part(made, api, progress)
    if CONSOLE in names:
        with _cluster(f"{NAME}-{CONSOLE}", 0, arguments.keep, progress) as made:
            yield from console_time.measure(made, Api(made), progress)
    if PLANS in names:
        with _cluster(f"{NAME}-{PLANS}", 0, arguments.keep, progress) as made:
            yield from plans.measure(made, Api(made), progress, arguments.seed)
    if SWEEP in names:
        yield from sweep.measure(progress)
    if SCALE in names:
        size = Size(arguments.nodes, arguments.machines, arguments.drained)
        with _cluster(f"{NAME}-{SCALE}", 0, arguments.keep, progress) as made:
            yield from scale.measure(made, Api(made), progress, size)


@contextlib.contextmanager
def _cluster(name: str, nodes: int | None, keep: bool, progress: Progress) -> Iterator[Cluster]:
    """A cluster of its own, taken away again unless it is to be kept.

    Only a run that keeps its cluster takes over that of an earlier run, which may be of another commit or in the middle
    of a drain.
    """
    if not keep and name in registered.names():
        cluster.down(name, progress)
    with cluster.brought_up(name, progress, nodes, keep) as made:
        yield made


def main(argv: list[str]) -> int:
    """Run benchmarks and print their figures as they come."""
    parser = argparse.ArgumentParser(
        prog="hack/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = benchmarks(SAMPLES)
    parser.add_argument("benchmark", choices=[*known, CONSOLE, PLANS, SWEEP, SCALE, "all"])
    parser.add_argument("--samples", type=at_least_one, default=SAMPLES, help=f"of each figure of `migration`, `drain` and `streams` (default {SAMPLES})")
    size = Size()
    parser.add_argument("--nodes", type=at_least_one, default=size.nodes, help=f"of `scale` (default {size.nodes})")
    parser.add_argument("--machines", type=at_least_one, default=size.machines, help=f"of `scale` (default {size.machines})")
    parser.add_argument("--drained", type=at_least_one, default=size.drained, help=f"nodes of `scale` (default {size.drained})")
    parser.add_argument("--seed", type=int, help="of the random clusters of `plans` (default: another one each time)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument("--against", metavar="COMMIT", help="then measure an earlier commit by its own scripts, for comparison")
    arguments = parser.parse_args(argv)
    os.umask(0o022)
    interruption.heed_termination()
    progress = Progress()
    names = [*known, *APART] if arguments.benchmark == "all" else [arguments.benchmark]
    figures: list[Measurement] = []
    try:
        prerequisites.ensure(prerequisites.PACKAGES, progress, toolchains=("cargo", "go", "python3"))
        for figure in measured(names, arguments, progress):
            print(figure.line(), flush=True)
            figures.append(figure)
        if arguments.against:
            same = [arguments.benchmark, "--samples", str(arguments.samples)]
            for figure in against.measured(arguments.against, same, figures, progress):
                print(figure.line(), flush=True)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return interruption.EXIT_CODE
    return 0 if figures and all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
