"""The Python interface of the embedded cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from . import bringup, build, commands, locks, network, registered, teardown
from .bringup import Bringup
from .certificates import Certificates
from .controlplane import ControlPlane
from .errors import Failure
from .layout import DEFAULT_NAME, Layout, NodeLayout
from .node import Node
from .processes import Process
from .progress import Progress


class Cluster:
    """An existing cluster, with methods to query it, run commands in it, and stop and start its parts."""

    def __init__(self, layout: Layout, progress: Progress | None = None) -> None:
        self.layout = layout
        self.progress = progress or Progress()
        self._programs = build.ensure(self.progress)

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def registry(self) -> str:
        """The host and port of the registry that replaces all others."""
        return self.layout.registry

    @property
    def kubeconfig(self) -> str:
        return str(self.layout.kubeconfig)

    @property
    def nodes(self) -> tuple[NodeLayout, ...]:
        return self.layout.nodes

    @property
    def description(self) -> dict[str, object]:
        """The content of `cluster.json`."""
        return json.loads(self.layout.description.read_text())

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 300
    ) -> str:
        """Run kubectl as the administrator and return its output."""
        argv = [self._programs["kubectl"], *arguments]
        environment = self.environment()
        if check:
            return commands.run(*argv, input=input, environment=environment, timeout=timeout)
        done = subprocess.run(
            argv, input=input, env=environment, capture_output=True, text=True, timeout=timeout
        )
        return done.stdout + done.stderr

    def environment(self) -> dict[str, str]:
        """Return the environment with which kubectl and other clients use this cluster and no other."""
        return {
            **os.environ,
            "KUBECONFIG": self.kubeconfig,
            "KUBECACHEDIR": str(self.layout.directory / "kubectl-cache"),
            "NO_PROXY": "*",
            "no_proxy": "*",
        }

    def in_node(
        self,
        node: str,
        argv: Sequence[str],
        input: str | None = None,
        check: bool = True,
        timeout: float | None = 300,
    ) -> str:
        """Run a command in all of a node's namespaces and return its output."""
        prefix = self._node(node).entry()
        if check:
            return commands.run(*prefix, *argv, input=input, timeout=timeout)
        done = subprocess.run(
            [*prefix, *argv], input=input, capture_output=True, text=True, timeout=timeout
        )
        return done.stdout + done.stderr

    def node_entry(self, node: str) -> list[str]:
        """Return the command prefix that enters a node."""
        return self._node(node).entry()

    def parts(self) -> dict[str, Process]:
        """Return all processes by name: `kube-apiserver`, `kubelet.node1`, `node1`, ..."""
        processes = self._control().processes()
        for node in self._nodes():
            processes += node.processes()
        return {process.part: process for process in processes}

    def part(self, name: str) -> Process:
        parts = self.parts()
        if name not in parts:
            raise Failure(f"no part {name!r} in cluster {self.name}; parts: {', '.join(parts)}")
        return parts[name]

    def pid(self, part: str) -> int | None:
        """Return the pid of a part in the host's PID namespace, or None if the part is not running."""
        return self.part(part).pid()

    def stop_process(self, part: str, number: int = signal.SIGKILL) -> None:
        """Stop a part, by default with SIGKILL. The name of a node stops the whole node, like a power cut."""
        with locks.held(self.name, self.progress):
            self.part(part).stop(number)

    def start_process(self, part: str) -> None:
        """Start a stopped part and wait until it works."""
        with locks.held(self.name, self.progress):
            self._start(part)

    def restart_process(self, part: str, number: int = signal.SIGKILL) -> None:
        """Stop a part, start it again, and wait until it works."""
        with locks.held(self.name, self.progress):
            self.part(part).stop(number)
            self._start(part)

    def isolate(self, node: str) -> None:
        """Disconnect the node from the network."""
        network.set_connected(self.layout.node(node), False)

    def rejoin(self, node: str) -> None:
        """Reconnect the node to the network."""
        network.ensure_node(self.layout, self.layout.node(node))

    def _start(self, part: str) -> None:
        self.part(part)
        work = Bringup(self.layout, self._programs, self.progress)
        for node in work.nodes:
            if part == node.name:
                node.configure(work.certificates)
                work.power_on(node)
                work.start_containerd(node)
                work.start_kubelet(node)
                work.await_nodes([node])
                bringup.describe(self.layout, self._programs)
                return
            if part in (node.node.part("kubelet"), node.node.part("kube-proxy")):
                work.start_kubelet(node)
                work.await_nodes([node])
                return
            if part == node.node.part("containerd"):
                work.start_containerd(node)
                work.start_kubelet(node)
                return
        if part == "registry":
            work.push_sandbox_image()
            return
        if part == work.control.apiserver.part and not work.control.apiserver.is_running():
            work.end_clients()
        work.start_control_plane()

    def _node(self, name: str) -> Node:
        return Node(self.layout, self.layout.node(name), self._programs)

    def _nodes(self) -> list[Node]:
        return [Node(self.layout, node, self._programs) for node in self.layout.nodes]

    def _control(self) -> ControlPlane:
        return ControlPlane(self.layout, self._programs, Certificates(self.layout))


def up(
    name: str = DEFAULT_NAME,
    nodes: int | None = None,
    kvm: bool | None = None,
    progress: Progress | None = None,
) -> Cluster:
    """Create a cluster, or repair an existing one, and return once all its nodes are Ready."""
    progress = progress or Progress()
    return Cluster(bringup.up(name, nodes, kvm, progress), progress)


@contextmanager
def brought_up(
    name: str, progress: Progress, nodes: int | None = None, keep: bool = False
) -> Iterator[Cluster]:
    """Bring up a cluster and remove it at the end of the block, even if it came up only in part, unless `keep` is set."""
    try:
        yield up(name, nodes, progress=progress)
    finally:
        if not keep:
            down(name, progress)


def down(name: str = DEFAULT_NAME, progress: Progress | None = None) -> None:
    """Remove a cluster and everything that it has created."""
    teardown.down(name, progress or Progress())


def down_each(names: Iterable[str], progress: Progress) -> list[str]:
    """Remove each of the clusters, even if the removal of another fails. Return a line for each failure."""
    failed = []
    for name in names:
        try:
            down(name, progress)
        except (Failure, OSError) as problem:
            failed.append(f"cluster {name} cannot be removed: {problem}")
    return failed


def load(name: str = DEFAULT_NAME, progress: Progress | None = None) -> Cluster:
    """Return an existing cluster. Raise Failure if it does not exist."""
    return Cluster(registered.find(name), progress)
