"""The command-line interface: `python3 -m embedded VERB ...`, with `hack` on the module path."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from . import cluster, interruption, registered, selftest
from .errors import Failure
from .layout import DEFAULT_NAME
from .progress import Progress


def main(argv: list[str]) -> int:
    """Run one verb and return the exit code. A failure results in one message and exit code 1."""
    arguments = _parser().parse_args(argv)
    # Pods that run as any user share these folders, so the caller's umask must not apply.
    os.umask(0o022)
    interruption.heed_termination()
    progress = Progress(getattr(arguments, "verbose", False))
    try:
        return arguments.verb(arguments, progress) or 0
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return interruption.EXIT_CODE


def _up(arguments: argparse.Namespace, progress: Progress) -> None:
    made = cluster.up(arguments.name, arguments.nodes, arguments.kvm, progress)
    progress.note(f"cluster {made.name} is ready")
    print(f"export KUBECONFIG={made.kubeconfig}")
    print(f"# kubectl: {made.description['kubectl']}")
    print(f"# registry: {made.registry} (nodes pull all images from this registry)")


def _down(arguments: argparse.Namespace, progress: Progress) -> None:
    failed = cluster.down_each(registered.names() if arguments.all else [arguments.name], progress)
    if failed:
        raise Failure("\n".join(failed))


def _status(arguments: argparse.Namespace, progress: Progress) -> int:
    loaded = cluster.load(arguments.name, progress)
    parts = {name: process.pid() for name, process in loaded.parts().items()}
    for name, pid in parts.items():
        print(f"{name:32} {'pid ' + str(pid) if pid else 'not running'}")
    return 0 if all(parts.values()) else 1


def _list(arguments: argparse.Namespace, progress: Progress) -> None:
    for name in registered.names():
        print(name)


def _exec(arguments: argparse.Namespace, progress: Progress) -> None:
    entry = cluster.load(arguments.name, progress).node_entry(arguments.node)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    os.execvp(entry[0], [*entry, *(command or ["/bin/sh"])])


def _kubectl(arguments: argparse.Namespace, progress: Progress) -> None:
    loaded = cluster.load(arguments.name, progress)
    kubectl = str(loaded.description["kubectl"])
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    os.execve(kubectl, [kubectl, *command], loaded.environment())


def _pid(arguments: argparse.Namespace, progress: Progress) -> int:
    pid = cluster.load(arguments.name, progress).pid(arguments.part)
    if pid is None:
        print(f"{arguments.part} is not running", file=sys.stderr)
        return 1
    print(pid)
    return 0


def _stop(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster.load(arguments.name, progress).stop_process(arguments.part, arguments.signal)


def _start(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster.load(arguments.name, progress).start_process(arguments.part)


def _restart(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster.load(arguments.name, progress).restart_process(arguments.part, arguments.signal)


def _isolate(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster.load(arguments.name, progress).isolate(arguments.node)


def _rejoin(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster.load(arguments.name, progress).rejoin(arguments.node)


def _selftest(arguments: argparse.Namespace, progress: Progress) -> int:
    return selftest.run(arguments.name, arguments.lifecycle, progress)


def _signal(word: str) -> int:
    try:
        return int(word) if word.isdigit() else signal.Signals[f"SIG{word.upper()}"].value
    except KeyError:
        raise argparse.ArgumentTypeError(f"unknown signal {word!r}") from None


def _parser() -> argparse.ArgumentParser:
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("-v", "--verbose", action="store_true", help="print more details")
    named = argparse.ArgumentParser(add_help=False, parents=[every])
    named.add_argument("--name", default=DEFAULT_NAME, help=f"name of the cluster (default {DEFAULT_NAME})")

    parser = argparse.ArgumentParser(prog="embedded", description="Runs Kubernetes clusters on this machine.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    up = verbs.add_parser("up", parents=[named], help="create a cluster, or repair an existing one")
    up.add_argument("--nodes", type=int, help="number of worker nodes (default 2; 0: only a control plane)")
    up.add_argument(
        "--kvm",
        action=argparse.BooleanOptionalAction,
        help="make /dev/kvm visible in the nodes (default: hidden)",
    )
    up.set_defaults(verb=_up)

    down = verbs.add_parser("down", parents=[named], help="remove a cluster")
    down.add_argument("--all", action="store_true", help="remove all clusters on this machine")
    down.set_defaults(verb=_down)

    verbs.add_parser("list", parents=[every], help="list the clusters").set_defaults(verb=_list)
    status = verbs.add_parser("status", parents=[named], help="list the parts and whether they are running")
    status.set_defaults(verb=_status)

    execute = verbs.add_parser("exec", parents=[named], help="run a command inside a node")
    execute.add_argument("node")
    execute.add_argument("command", nargs=argparse.REMAINDER)
    execute.set_defaults(verb=_exec)
    kubectl = verbs.add_parser("kubectl", parents=[named], help="run kubectl as administrator")
    kubectl.add_argument("command", nargs=argparse.REMAINDER)
    kubectl.set_defaults(verb=_kubectl)

    for verb, function, text in (
        ("stop", _stop, "stop a part, such as kube-apiserver or kubelet.node1, or a whole node, such as node1"),
        ("start", _start, "start a stopped part"),
        ("restart", _restart, "stop a part and start it again"),
        ("pid", _pid, "print the pid of a part"),
    ):
        action = verbs.add_parser(verb, parents=[named], help=text)
        action.add_argument("part")
        if verb in ("stop", "restart"):
            action.add_argument("--signal", type=_signal, default=signal.SIGKILL.value)
        action.set_defaults(verb=function)

    for verb, function, text in (
        ("isolate", _isolate, "disconnect a node from the network"),
        ("rejoin", _rejoin, "reconnect a node to the network"),
    ):
        action = verbs.add_parser(verb, parents=[named], help=text)
        action.add_argument("node")
        action.set_defaults(verb=function)

    test = verbs.add_parser("selftest", parents=[named], help="check that a cluster works")
    test.add_argument(
        "--lifecycle",
        action="store_true",
        help="create a cluster for the test, break, repair and remove it, and check for leftovers",
    )
    test.set_defaults(verb=_selftest)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
