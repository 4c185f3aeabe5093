"""A large cluster on one machine: a real control plane, Drydock's controller, and one process that simulates the nodes.

    etcd, kube-apiserver, scheduler, controller manager ◀──▶ drydock-controller   (audited as its service account)
                          ▲                                   its webhooks: an EndpointSlice that names this machine
                          └──▶ drydock-scale: kubelets, agents and guests of all nodes (see tests/scale)

Controller and simulator are ordinary processes of this machine, outside of pods: nothing limits their CPU or memory.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress
from oci.binaries import target_folder
from verify.install import EMULATION
from verify.runner import REPOSITORY

from .pods import Memory
from .slots import Limits

WEBHOOKS, ADMIN = 8443, 8080
# Kinds that need real nodes, which this cluster does not have.
ON_NODES = ("DaemonSet", "Deployment")
STARTS = 60


@dataclass(frozen=True)
class Size:
    """The size of the simulated cluster, and how long its guests take to move."""

    nodes: int = 500
    machines: int = 5000
    drained: int = 50
    # Seconds that each guest takes to move, and the rate, in MiB per second, at which its memory takes additional time.
    # None: the duration does not depend on the memory.
    seconds: float = 10.0
    rate: int | None = None


def requests_in(metrics: str) -> int:
    """Return the number of requests to the API server in the controller's metrics, without watches and requests for Leases."""
    counted = (line for line in metrics.splitlines() if line.startswith("drydock_api_requests_total{"))
    of_interest = (line for line in counted if 'resource="leases"' not in line and 'verb="watch"' not in line)
    return sum(int(float(line.rpartition(" ")[2])) for line in of_interest)


class Simulation:
    """A simulator of nodes, and a real controller that manages them."""

    def __init__(self, made: Cluster, size: Size, limits: Limits, progress: Progress) -> None:
        self.made, self.size, self.limits, self.progress = made, size, limits, progress
        self.audit_log = Path(str(made.description["audit_log"]))
        self.moved: list[dict[str, Any]] = []
        # The controller's memory before there are nodes and machines.
        self.alone = Memory(0.0, 0.0)
        self._folder = Path(made.kubeconfig).parent / "scale"
        self._responses: queue.Queue[dict[str, Any]] = queue.Queue()
        self._controller: subprocess.Popen[bytes] | None = None
        self._nodes: subprocess.Popen[str] | None = None

    def __enter__(self) -> Simulation:
        self._folder.mkdir(exist_ok=True)
        programs = _build(self.progress)
        with self.progress.step("applying the objects of deploy, except those that run on nodes"):
            self._install()
        try:
            with self.progress.step("starting the controller"):
                self._controller = self._start_controller(programs / "drydock-controller")
                self._until_it_leads()
            self.alone = self.memory()
            with self.progress.step(f"creating {self.size.nodes} nodes"):
                self._nodes = self._start_nodes(programs / "drydock-scale")
                self.response("nodes", 600)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def names(self, count: int, first: int = 0) -> list[str]:
        """Return the names of `count` nodes, starting with number `first`."""
        return [f"sim-{number:04}" for number in range(first, first + count)]

    def order(self, word: str, response: str, patience: float) -> dict[str, Any]:
        """Send a command to the simulator, and return its response of the kind `response`."""
        nodes = self._nodes
        assert nodes is not None and nodes.stdin is not None
        nodes.stdin.write(f"{word}\n")
        nodes.stdin.flush()
        return self.response(response, patience)

    def response(self, kind: str, patience: float) -> dict[str, Any]:
        """Return the simulator's next response of this kind; fail after `patience` seconds."""
        end = time.monotonic() + patience
        while True:
            try:
                line = self._responses.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise Failure(f"the simulator has not reported {kind!r} within {patience} s; see {self._folder}") from None
            if line["kind"] == "over":
                raise Failure(f"the simulator has ended; see {self._folder}")
            if line["kind"] == kind:
                return line

    def until_moved(self, count: int, patience: float) -> None:
        """Wait until `count` guests have moved in total; fail after `patience` seconds."""
        end = time.monotonic() + patience
        while len(self.moved) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise Failure(f"{len(self.moved)} of {count} guests have moved within {patience} s; see {self._folder}")
            self.response("moved", left)

    def requests(self) -> int:
        """Return the number of agents' requests so far, without watches and renewals of Leases."""
        return int(self.order("count", "requests", 30)["counts"].get("agents", 0))

    def requested(self) -> int:
        """Return the number of the controller's requests so far, without watches and requests for Leases."""
        url = f"http://{self.made.layout.address}:{ADMIN}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            return requests_in(response.read().decode())

    def memory(self) -> Memory:
        """Return the controller's memory."""
        text = Path(f"/proc/{self._pid()}/status").read_text()
        kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
        return Memory(resident=kib["VmRSS"] / 1024, anonymous=kib["RssAnon"] / 1024)

    def processor_seconds(self) -> float:
        """Return the controller's CPU time so far, in seconds."""
        threads = Path(f"/proc/{self._pid()}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def _pid(self) -> int:
        assert self._controller is not None
        if self._controller.poll() is not None:
            raise Failure(f"the controller has ended; see {self._folder}")
        return self._controller.pid

    def _install(self) -> None:
        listed = self.made.kubectl("apply", "-k", str(REPOSITORY / "deploy"), "--dry-run=client", "-o", "json")
        objects = [found for found in json.loads(listed)["items"] if found["kind"] not in ON_NODES]
        for found in objects:
            if found["kind"] == "Service":
                found["spec"].pop("selector", None)
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "drydock-webhooks-here",
                "namespace": "drydock",
                "labels": {"kubernetes.io/service-name": "drydock-webhooks"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "webhooks", "port": WEBHOOKS, "protocol": "TCP"}],
            "endpoints": [{"addresses": [self.made.layout.address], "conditions": {"ready": True}}],
        }
        configuration = {
            "apiVersion": "hco.kubevirt.io/v1beta1",
            "kind": "HyperConverged",
            "metadata": {"name": "kubevirt-hyperconverged", "namespace": "drydock"},
            "spec": {
                "liveMigrationConfig": {
                    "parallelMigrationsPerCluster": self.limits.cluster,
                    "parallelOutboundMigrationsPerNode": self.limits.source,
                    "parallelInboundMigrationsPerNode": self.limits.target,
                }
            },
        }
        for some in (objects, [slice_, configuration]):
            self.made.kubectl(
                "apply", "--server-side", "--force-conflicts", "-f", "-",
                input=json.dumps({"apiVersion": "v1", "kind": "List", "items": some}),
            )  # fmt: skip
        self.made.kubectl("apply", "-f", "-", input=EMULATION)

    def _start_nodes(self, program: Path) -> subprocess.Popen[str]:
        size = self.size
        argv = [
            str(program), "--kubeconfig", self.made.kubeconfig, "--nodes", str(size.nodes),
            "--vms", str(size.machines), "--moves", str(int(size.seconds * 1000)),
        ]  # fmt: skip
        if size.rate is not None:
            argv += ["--rate", str(size.rate)]
        with (self._folder / "nodes.log").open("w") as log:
            started = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        threading.Thread(target=self._read, args=(started,), daemon=True).start()
        return started

    def _read(self, started: subprocess.Popen[str]) -> None:
        assert started.stdout is not None
        for text in started.stdout:
            line = json.loads(text)
            if line["kind"] == "moved":
                self.moved.append(line)
            self._responses.put(line)
        self._responses.put({"kind": "over"})

    def _start_controller(self, program: Path) -> subprocess.Popen[bytes]:
        config = json.loads(self.made.kubectl("config", "view", "--raw", "-o", "json"))
        token = self.made.kubectl("-n", "drydock", "create", "token", "drydock-controller", "--duration=24h").strip()
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        kubeconfig = self._folder / "controller.kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(json.dumps(config))
        address = self.made.layout.address
        with (self._folder / "controller.log").open("w") as log:
            return subprocess.Popen(
                [
                    str(program), "run", "--pod-name", "scale", "--kubeconfig", str(kubeconfig),
                    "--metrics-bind-address", f"{address}:{ADMIN}", "--webhook-bind-address", f"{address}:{WEBHOOKS}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(),
            )  # fmt: skip

    def _until_it_leads(self) -> None:
        """Wait until a VirtualMachineInstance passes admission, for which the API server needs the controller's CA bundle."""
        manifest = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": "admitted", "namespace": "default"},
            "spec": {"domain": {"resources": {"requests": {"memory": "96Mi"}}, "devices": {}}},
        }
        end = time.monotonic() + STARTS
        while True:
            self._pid()
            printed = self.made.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(manifest), check=False)
            if "created" in printed:
                return
            if time.monotonic() > end:
                raise Failure("the controller's webhooks do not respond", printed)
            time.sleep(0.5)

    def _end(self) -> None:
        if self._nodes is not None and self._nodes.stdin is not None:
            self._nodes.stdin.close()
        if self._controller is not None:
            self._controller.terminate()
        for process in (self._nodes, self._controller):
            if process is None:
                continue
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}


def _build(progress: Progress) -> Path:
    programs = ["drydock-controller", "drydock-scale"]
    argv = ["cargo", "build", "--locked", "--release", "-p", "drydock-controller", "-p", "drydock-tests"]
    for program in programs:
        argv += ["--bin", program]
    with progress.step(f"cargo build {', '.join(programs)}", announce=True):
        if subprocess.run(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL).returncode != 0:
            raise Failure("controller and simulator could not be built; see above")
    return target_folder(REPOSITORY) / "release"
