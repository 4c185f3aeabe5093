"""hack/demo: brings up a real two-node Kubernetes, installs Drydock and shows its main job.

Installs the Debian packages that are missing, builds Kubernetes and Drydock (minutes at the first
time, seconds after), and takes the cluster away at the end unless --keep is given or it was
there before.
"""

from __future__ import annotations

import argparse
import os
import sys

from embedded import cluster, interruption, registered
from embedded.errors import Failure
from embedded.layout import DEFAULT_NAME
from embedded.progress import Progress
from verify.install import install
from verify.programs import built_meanwhile

from . import drain, inspection, machines, migration, preparation
from .stage import Stage


def main(argv: list[str]) -> int:
    """Run the demonstration; a failure is one message and exit code 1."""
    parser = argparse.ArgumentParser(
        prog="hack/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default=DEFAULT_NAME, help=f"the cluster (default {DEFAULT_NAME})")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, to try things by hand")
    arguments = parser.parse_args(argv)
    os.umask(0o022)
    interruption.heed_termination()
    progress = Progress()
    try:
        preparation.build(progress)
        there = arguments.name in registered.names()
        with cluster.brought_up(arguments.name, progress, keep=arguments.keep or there) as made:
            try:
                # The first scenes do without virtctl and leave processor time.
                with built_meanwhile("virtctl"):
                    _show(made, progress)
            finally:
                if arguments.keep or there:
                    why = "was there before and stays" if there else "is yours"
                    print(f"\nThe cluster {why}: export KUBECONFIG={made.kubeconfig}")
                    print(f"Take it away with: hack/down --name {arguments.name}")
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return interruption.EXIT_CODE
    return 0


def _show(made: cluster.Cluster, progress: Progress) -> None:
    """Install Drydock, play all scenes and sum up."""
    install(made, progress, kind=f"--{preparation.PROFILE}")
    stage = Stage(made, progress)
    stage.clear()
    inspection.show(stage)
    machines.show(stage)
    migration.show(stage)
    drain.show(stage)
    stage.summary()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
