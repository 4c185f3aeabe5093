"""hack/bench NAME: measures, one line of JSON for each figure on standard output.

  inspect   the node agent: inspection, labels, what it costs when idle (about 20 minutes)
  vms       virtual machines: memory beside the guest, time to start, writes to the API server (about 10 minutes)
  all       everything

Each line is {"name", "value", "unit", "reference", "ratio", "budget", "ok"}: the reference is the raw tool measured in
the same run, or a number of KubeVirt's that its name says. Exits with 1 if a figure is not within its budget.
A cluster of its own is brought up and taken away again.
"""

from __future__ import annotations

import argparse
import os
import sys

from embedded import cluster, prerequisites
from embedded.errors import Failure
from embedded.progress import Progress
from verify.install import install

from . import agent_cost, guest_memory, guest_start, guest_writes, inspection_time, reactions
from .api import Api
from .figure import Figure

NAME = "bench"

BENCHMARKS = {
    "inspect": (inspection_time.measure, reactions.measure, agent_cost.measure),
    "vms": (guest_memory.measure, guest_writes.measure, guest_start.measure),
}


def main(argv: list[str]) -> int:
    """Run benchmarks and print their figures as they come."""
    parser = argparse.ArgumentParser(
        prog="hack/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    arguments = parser.parse_args(argv)
    os.umask(0o022)
    progress = Progress()
    names = list(BENCHMARKS) if arguments.benchmark == "all" else [arguments.benchmark]
    try:
        prerequisites.ensure(prerequisites.PACKAGES, progress, toolchains=("cargo", "go", "python3"))
        made = cluster.up(NAME, progress=progress)
        try:
            install(made, progress)
            api = Api(made)
            figures: list[Figure] = []
            for name in names:
                for part in BENCHMARKS[name]:
                    for figure in part(made, api, progress):
                        print(figure.line(), flush=True)
                        figures.append(figure)
        finally:
            if not arguments.keep:
                cluster.down(NAME, progress)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0 if figures and all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
