"""hack/bench NAME: runs a benchmark, and prints each figure as one line of JSON on standard output.

  inspect   the node agent: inspection, labels, cost when idle (about 30 minutes)
  vms       virtual machines: memory overhead, start time, writes to the API server (about 10 minutes)
  migration live migration compared with virsh, and the tunnel with socat (about 20 minutes)
  drain     `kubectl drain` compared with the ideal duration, and responses to evictions (about 15 minutes)
  streams   consoles, displays and port-forwards through the API compared with socat (about 5 minutes)
  console   `kubectl drydock` and its web console with 500 nodes and 5,000 virtual machines (about 8 minutes)
  plans     plans of drains compared with the actual drains, in 30 random simulated clusters (about 10 minutes)
  sweep     how long a change of a node blocks the controller, with 100,000 instances (about 10 minutes)
  scale     drains in a large simulated cluster: slots, controller, requests (about 30 minutes at full size)
  all       all benchmarks

Each line is {"name", "value", "unit", "reference", "ratio", "budget", "ok", "least", "load"}. `reference` is the value of the
raw tool in the same run, or of KubeVirt if the name of the figure states so; `value` is a median, `least` the smallest sample,
and `load` the load average of the machine. The exit code is 1 if a figure exceeds its budget.
Benchmarks create their own clusters and delete them at the end. The clusters of `console`, `plans` and `scale` have no
real nodes.
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
# The benchmark with simulated nodes.
SCALE = "scale"
# The benchmark whose nodes are only objects.
CONSOLE = "console"
# The benchmark with random clusters of simulated nodes.
PLANS = "plans"
# The benchmark without a cluster.
SWEEP = "sweep"
# Benchmarks that do not use the cluster that the others share.
APART = (CONSOLE, PLANS, SWEEP, SCALE)

Part = Callable[[Cluster, Api, Progress], Iterator[Measurement]]


def benchmarks(samples: int) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each benchmark that uses the shared cluster."""
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
    """Parse a positive integer of the command line."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def measured(names: list[str], arguments: argparse.Namespace, progress: Progress) -> Iterator[Measurement]:
    """Run these benchmarks, and yield each figure as soon as it is measured."""
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
    """Create a cluster, and delete it at the end unless `keep` is set.

    Only a run with `keep` reuses the cluster of an earlier run, which may have another commit's Drydock or an unfinished drain.
    """
    if not keep and name in registered.names():
        cluster.down(name, progress)
    with cluster.brought_up(name, progress, nodes, keep) as made:
        yield made


def main(argv: list[str]) -> int:
    """Run benchmarks, and print each figure as soon as it is measured."""
    parser = argparse.ArgumentParser(
        prog="hack/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = benchmarks(SAMPLES)
    parser.add_argument("benchmark", choices=[*known, CONSOLE, PLANS, SWEEP, SCALE, "all"])
    parser.add_argument(
        "--samples", type=at_least_one, default=SAMPLES,
        help=f"samples per figure of `migration`, `drain` and `streams` (default {SAMPLES})",
    )  # fmt: skip
    size = Size()
    parser.add_argument(
        "--nodes", type=at_least_one, default=size.nodes, help=f"number of nodes of `scale` (default {size.nodes})"
    )
    parser.add_argument(
        "--machines", type=at_least_one, default=size.machines,
        help=f"number of virtual machines of `scale` (default {size.machines})",
    )  # fmt: skip
    parser.add_argument(
        "--drained", type=at_least_one, default=size.drained, help=f"number of nodes that `scale` drains (default {size.drained})"
    )
    parser.add_argument("--seed", type=int, help="seed of the random clusters of `plans` (default: a random seed)")
    parser.add_argument("--keep", action="store_true", help="do not delete the cluster at the end")
    parser.add_argument(
        "--against", metavar="COMMIT",
        help="also run the benchmark of an earlier commit with that commit's scripts, for comparison",
    )  # fmt: skip
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
