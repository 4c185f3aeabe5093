"""hack/up: makes an embedded Kubernetes cluster, or mends one, and installs Drydock on it if that is wanted.

`hack/up --install` is the way to try a change: a second run brings the changed programs to the cluster.
"""

from __future__ import annotations

import argparse
import os
import sys

from embedded import cluster, interruption
from embedded.errors import Failure
from embedded.layout import DEFAULT_NAME
from embedded.progress import Progress

from .install import install


def main(argv: list[str]) -> int:
    """Bring it up; a failure is one message and exit code 1."""
    parser = argparse.ArgumentParser(
        prog="hack/up", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print more")
    parser.add_argument("--name", default=DEFAULT_NAME, help="the cluster (default %(default)s)")
    parser.add_argument("--nodes", type=int, help="how many worker nodes (default 2; 0: a control plane alone)")
    parser.add_argument(
        "--kvm", action=argparse.BooleanOptionalAction, help="let the nodes see /dev/kvm (default: hidden)"
    )
    parser.add_argument("--install", action="store_true", help="build Drydock for debugging and install it")
    parser.add_argument("--release", action="store_true", help="with --install: build it as users get it, which takes minutes")
    arguments = parser.parse_args(argv)
    # Folders are shared with pods that run as any user, whatever the caller's umask is.
    os.umask(0o022)
    interruption.heed_termination()
    progress = Progress(arguments.verbose)
    try:
        made = cluster.up(arguments.name, arguments.nodes, arguments.kvm, progress)
        if arguments.install:
            install(made, progress, kind="" if arguments.release else "--debug")
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return interruption.EXIT_CODE
    progress.note(f"cluster {made.name} is ready")
    print(f"export KUBECONFIG={made.kubeconfig}")
    print(f"# kubectl: {made.description['kubectl']}")
    print(f"# registry: {made.registry} (stands for every registry in the cluster)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
