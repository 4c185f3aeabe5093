"""hack/demo: creates a real two-node Kubernetes cluster, installs Drydock and demonstrates its main features.

Installs missing Debian packages and builds Kubernetes and Drydock, which takes minutes for the first time and
seconds afterwards. Deletes the cluster at the end unless --keep is given or the cluster existed before.
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
    """Run the demonstration; print a failure as one message and return exit code 1."""
    parser = argparse.ArgumentParser(
        prog="hack/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default=DEFAULT_NAME, help=f"name of the cluster (default {DEFAULT_NAME})")
    parser.add_argument("--keep", action="store_true", help="do not delete the cluster at the end")
    arguments = parser.parse_args(argv)
    os.umask(0o022)
    interruption.heed_termination()
    progress = Progress()
    try:
        preparation.build(progress)
        there = arguments.name in registered.names()
        with cluster.brought_up(arguments.name, progress, keep=arguments.keep or there) as made:
            try:
                # The first scenes do not need virtctl, and leave processor time for building it.
                with built_meanwhile("virtctl"):
                    _show(made, progress)
            finally:
                if arguments.keep or there:
                    why = "existed before and is kept" if there else "is kept"
                    print(f"\nThe cluster {why}: export KUBECONFIG={made.kubeconfig}")
                    print(f"Delete it with: hack/down --name {arguments.name}")
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return interruption.EXIT_CODE
    return 0


def _show(made: cluster.Cluster, progress: Progress) -> None:
    """Install Drydock, run all scenes and print the summary."""
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
