"""Creates a cluster, or repairs an incomplete one, and waits until all nodes are Ready."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from datetime import datetime
from pathlib import Path

from . import build, cgroups, files, health, locks, network, prerequisites, registered, sysctls, waiting
from .build import Programs
from .certificates import Certificates
from .controlplane import ControlPlane
from .errors import Failure
from .layout import Layout, state_root
from .node import CONTAINERD_SOCKET, Node
from .nodeconfig import SANDBOX_IMAGE
from .processes import Process
from .progress import Progress
from .registry import PackedFile, TinyImage

SYSCTL_RECORD = "sysctls.json"


class Bringup:
    """The steps that start the missing parts of a cluster and wait until they work. Each step may be repeated."""

    def __init__(self, layout: Layout, programs: Programs, progress: Progress) -> None:
        self.layout = layout
        self.programs = programs
        self.progress = progress
        self.certificates = Certificates(layout)
        self.control = ControlPlane(layout, programs, self.certificates)
        self.nodes = [Node(layout, node, programs) for node in layout.nodes]
        # Whether the API server was down, so that its clients may be backing off.
        self.api_was_down = False
        # Start time of each part that this run started. Status reports from before that time describe an earlier process.
        self.started: dict[str, float] = {}
        # Offset in bytes at which the log of each containerd that this run started begins.
        self.log_starts: dict[str, int] = {}

    def run(self) -> None:
        """Run all steps in the order of their dependencies."""
        self.prepare()
        self.api_was_down = not self.control.apiserver.is_running()
        if self.api_was_down:
            self.end_clients()
        for node in self.nodes:
            self.power_on(node)
        for process in (self.control.registry, self.control.etcd):
            self._ensure(process)
        for node in self.nodes:
            self.start_containerd(node)
        self.start_control_plane()
        self.push_sandbox_image()
        for node in self.nodes:
            if self.api_was_down:
                # The retries of both may be up to a minute apart by now. Restarting both does not affect pods.
                node.kubelet.stop()
                node.kube_proxy.stop()
            self.start_kubelet(node)
        self.await_nodes(self.nodes)
        describe(self.layout, self.programs)

    def prepare(self) -> None:
        """Create the configuration files, certificates, network and cgroups."""
        with self.progress.step("certificates and configuration"):
            self.certificates.ensure()
            self.control.configure()
            self.layout.shared.mkdir(parents=True, exist_ok=True)
            self.layout.shared.chmod(0o1777)
        with self.progress.step(f"network {self.layout.bridge}, {self.layout.node_range}"):
            sysctls.load_modules()
            sysctls.apply(state_root() / SYSCTL_RECORD)
            network.ensure_bridge(self.layout)
            for node in self.nodes:
                node.configure(self.certificates)

    def start_control_plane(self) -> None:
        """Start etcd, the API server and its clients, and wait until pods can be created."""
        control = self.control
        with self.progress.step("control plane"):
            self._ensure(control.etcd)
            url = f"{control.etcd_url}/health"
            waiting.until(lambda: health.responses(url), "etcd to be healthy", 60, [control.etcd])
            self._ensure(control.apiserver)
            needed = [control.etcd, control.apiserver]
            waiting.until(
                lambda: self._api("/readyz") is not None, "the API server to be ready", 90, needed
            )
            clients = control.clients()
            for process in clients:
                self._ensure(process)
            # A namespace refuses pods until its default service account exists.
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            waiting.until(
                lambda: self._api(account) is not None,
                "the creation of the default service account",
                60,
                [*needed, *clients],
            )

    def end_clients(self) -> None:
        """Stop the API server's clients, which otherwise back off for up to two minutes while there is no API server.

        Leader election would have the same effect: a client that cannot renew its Lease exits and is then restarted.
        """
        for process in self.control.clients():
            process.stop()

    def push_sandbox_image(self) -> None:
        """Push the sandbox image of every pod, which must exist before the first pod starts."""
        registry = self.control.registry
        self._ensure(registry)
        base = f"http://{self.layout.registry}/v2/"
        waiting.until(lambda: health.responses(base), "the registry to respond", 30, [registry])
        _, _, path = SANDBOX_IMAGE.partition("/")
        repository, _, tag = path.partition(":")
        content = Path(self.programs["pause"]).read_bytes()
        image = TinyImage({"pause": PackedFile(content, 0o755)}, ["/pause"], user="65535:65535")
        image.push(self.layout.registry, repository, tag)

    def power_on(self, node: Node) -> None:
        """Start the node's first process and wait until it has set up the node's namespaces and folders."""
        machine = node.machine
        if machine.is_running() and not _in_namespace(machine, node):
            self.progress.note(f"{node.name} lost its network namespace and is restarted")
            machine.stop(signal.SIGKILL)
        if not machine.is_current():
            machine.stop(signal.SIGKILL)
            # After a power cut there are no cgroups, either. A kubelet takes long to clean up those of dead containers.
            cgroups.remove(node.node.cgroup)
            cgroups.ensure(node.node.cgroup)
        self._ensure(machine)
        waiting.until(node.is_furnished, f"{node.name} to be set up", 30, [machine])

    def start_containerd(self, node: Node) -> None:
        log = node.containerd.log
        size = log.stat().st_size if log.exists() else 0
        self._ensure(node.containerd)
        if node.containerd.part in self.started:
            self.log_starts.setdefault(node.containerd.part, size)

    def start_kubelet(self, node: Node) -> None:
        """Start the kubelet and kube-proxy once containerd is ready: a kubelet exits if its first call is refused."""
        containerd = node.containerd
        waiting.until(
            lambda: _listens(node) and has_booted(containerd.log, self.log_starts.get(containerd.part)),
            f"containerd of {node.name} to be ready",
            60,
            [containerd],
        )
        self._ensure(node.kubelet)
        self._ensure(node.kube_proxy)

    def await_nodes(self, nodes: list[Node]) -> None:
        """Wait until the API server reports the nodes as Ready and their kube-proxies are healthy."""
        processes = [process for node in nodes for process in node.processes()]
        with self.progress.step(f"nodes {', '.join(node.name for node in nodes)} Ready"):
            waiting.until(
                lambda: all(self._is_ready(node) for node in nodes),
                "all nodes to be Ready",
                180,
                [*processes, self.control.apiserver],
            )
            for node in nodes:
                url = f"http://{node.node.address}:10256/healthz"
                waiting.until(
                    lambda: health.responses(url),
                    f"kube-proxy of {node.name} to be healthy",
                    60,
                    [node.kube_proxy],
                )

    def _is_ready(self, node: Node) -> bool:
        response = self._api(f"/api/v1/nodes/{node.name}")
        if response is None:
            return False
        document = json.loads(response)
        conditions = document.get("status", {}).get("conditions", [])
        since = self.started.get(node.kubelet.part, 0.0)
        ready = any(
            c["type"] == "Ready" and c["status"] == "True" and _time(c["lastHeartbeatTime"]) >= since
            for c in conditions
        )
        taints = document.get("spec", {}).get("taints", [])
        if any(t["key"].startswith("node.kubernetes.io/not-ready") for t in taints):
            return False
        return ready and self._knows_its_pods(node)

    def _knows_its_pods(self, node: Node) -> bool:
        """Return whether the kubelet lists all pods of its node. Until then, it responds as if the others did not exist."""
        wanted = self._api(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node.name}")
        ca, admin = self.certificates.ca.certificate, self.certificates.path("admin")
        known = health.get(f"https://{node.node.address}:10250/pods", ca, admin)
        if wanted is None or known is None:
            return False
        return _pod_uids(wanted) <= _pod_uids(known)

    def _api(self, path: str) -> bytes | None:
        admin = self.certificates.path("admin")
        return health.get(f"{self.layout.server}{path}", self.certificates.ca.certificate, admin)

    def _ensure(self, process: Process) -> None:
        # The API server reports times in whole seconds.
        now = float(int(time.time()))
        if process.ensure():
            self.started[process.part] = now
            self.progress.detail(f"started {process.part}, pid {process.tracked_pid()}")


def up(name: str, nodes: int | None, kvm: bool | None, progress: Progress) -> Layout:
    """Create a cluster, or repair an existing one."""
    if os.geteuid() != 0:
        raise Failure("creating a cluster requires root privileges for namespaces, mounts, cgroups and firewall rules")
    prerequisites.ensure(["cluster"], progress)
    programs = build.ensure(progress)
    with locks.held(name, progress):
        layout = registered.reserve(name, nodes, kvm, progress)
        Bringup(layout, programs, progress).run()
    return layout


def describe(layout: Layout, programs: Programs) -> None:
    """Write `cluster.json`, which describes the cluster's addresses, files and nodes for other programs."""
    nodes = [Node(layout, node, programs) for node in layout.nodes]
    document = {
        "name": layout.name,
        "kubeconfig": str(layout.kubeconfig),
        "server": layout.server,
        "registry": layout.registry,
        "audit_log": str(layout.audit_log),
        "kubectl": programs["kubectl"],
        "ctr": programs["ctr"],
        "logs": str(layout.logs),
        "shared": str(layout.shared),
        "nodes": [
            {
                "name": node.name,
                "address": node.node.address,
                "pid": node.machine.pid(),
                "netns": node.node.netns,
                "state": str(node.node.directory),
                "cgroup": node.node.cgroup,
            }
            for node in nodes
        ],
    }
    files.write(layout.description, json.dumps(document, indent=2) + "\n")


def _time(stamp: str) -> float:
    """Convert a timestamp of the API to seconds since the epoch."""
    return datetime.fromisoformat(stamp).timestamp()


def _pod_uids(response: bytes) -> set[str]:
    """Return the UIDs of the pods in a list that have not finished."""
    return {
        pod["metadata"]["uid"]
        for pod in json.loads(response)["items"] or []
        if pod["status"].get("phase") not in ("Succeeded", "Failed")
    }


def has_booted(log: Path, since: int | None) -> bool:
    """Return whether containerd has logged after this offset in bytes that all of its services are ready.

    containerd accepts connections before that. Without an offset, an earlier run has started containerd, which therefore
    counts as ready.
    """
    if since is None:
        return True
    with log.open("rb") as file:
        file.seek(since)
        return b"containerd successfully booted" in file.read()


def _listens(node: Node) -> bool:
    """Return whether containerd accepts connections on its socket below the node's root."""
    pid = node.machine.pid()
    if pid is None:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(f"/proc/{pid}/root{CONTAINERD_SOCKET}")
        except OSError:
            return False
    return True


def _in_namespace(machine: Process, node: Node) -> bool:
    try:
        mine = os.stat(f"/proc/{machine.pid()}/ns/net").st_ino
        return mine == os.stat(node.node.network_namespace).st_ino
    except OSError:
        return False
