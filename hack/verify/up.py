"""hack/up: creates or repairs an embedded Kubernetes cluster, and optionally installs Drydock on it.

Use `hack/up --install` to try a change: a second run installs the changed programs on the cluster.
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
    """Bring the cluster up and return the exit code. A failure prints one message and returns 1."""
    parser = argparse.ArgumentParser(
        prog="hack/up", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print more details")
    parser.add_argument("--name", default=DEFAULT_NAME, help="name of the cluster (default %(default)s)")
    parser.add_argument("--nodes", type=int, help="number of worker nodes (default 2; 0: only a control plane)")
    parser.add_argument(
        "--kvm", action=argparse.BooleanOptionalAction, help="make /dev/kvm visible to the nodes (default: hidden)"
    )
    parser.add_argument("--install", action="store_true", help="build Drydock in debug mode and install it")
    parser.add_argument("--release", action="store_true", help="with --install: build Drydock in release mode, which takes minutes")
    arguments = parser.parse_args(argv)
    # Pods that run as any user share these folders, so the umask of the caller must not apply.
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
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return interruption.EXIT_CODE
    progress.note(f"cluster {made.name} is ready")
    print(f"export KUBECONFIG={made.kubeconfig}")
    print(f"# kubectl: {made.description['kubectl']}")
    print(f"# registry: {made.registry} (nodes pull all images from this registry)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
