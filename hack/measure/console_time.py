"""Latency and memory of `kubectl drydock` and its console with 500 nodes and 5,000 virtual machines that are only objects.

    objects ──▶ kube-apiserver ──watches──▶ console ──▶ lines of JSON, as a browser reads them
       ▲                └──watch──▶ this process: when the change becomes visible
       └── a change, and the time until the page shows it

The start of the plugin is compared with that of kubectl. Both connect to a port of this process that never responds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress
from oci.binaries import target_folder
from verify.runner import REPOSITORY, run

from .api import MERGE_PATCH, Api, send
from .measurement import SAMPLES, Measurement, median

NODES = 500
MACHINES = 5000
NAMESPACE = "machines"
ZONE = "topology.kubernetes.io/zone"
CLIENTS = 8
PLUGIN = "kubectl-drydock"
BUILD_SECONDS = 1800
# Maximum seconds between two lines of the console, which sends one every five seconds.
IDLE_TIMEOUT = 60
START_SAMPLES = 21

FIRST_REQUEST = 0.030
FIRST_TABLE = 1.0
UPDATE = 0.250
MEMORY = 80


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure the start of the plugin, then the console with all objects."""
    with progress.step(f"cargo build {PLUGIN}", announce=True):
        output, code = run(
            ["cargo", "build", "--locked", "--release", "--bin", PLUGIN], quiet=True, most_seconds=BUILD_SECONDS
        )
    if code != 0:
        raise Failure(f"{PLUGIN} cannot be built", output)
    program = target_folder(REPOSITORY) / "release" / PLUGIN
    yield from _first_request(made, program)
    made.kubectl("apply", "--server-side", "-k", str(REPOSITORY / "deploy" / "crds"))
    made.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    made.kubectl("create", "namespace", NAMESPACE)
    with progress.step(f"creating {NODES} nodes, {MACHINES} machines and their pods"), ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda first: _nodes(api, range(first, NODES, CLIENTS)), range(CLIENTS)))
        list(pool.map(lambda first: _machines(api, range(first, MACHINES, CLIENTS)), range(CLIENTS)))
    yield from _console(made, api, program, progress)


def _first_request(made: Cluster, program: Path) -> Iterator[Measurement]:
    """Measure the time from the start of the plugin's process to its first connection, and the same for kubectl."""
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        listener.settimeout(30)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        json.dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "a",
                "clusters": [{"name": "a", "cluster": {"server": address}}],
                "users": [{"name": "a", "user": {}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            },
            file,
        )
        file.flush()
        plugin, kubectl = (
            [_start(listener, [*argv, "--kubeconfig", file.name]) for _ in range(START_SAMPLES)]
            for argv in ([str(program), "top"], [str(made.description["kubectl"]), "get", "--raw", "/api"])
        )
    yield Measurement("plugin.first-request vs kubectl", median(plugin), "s", median(kubectl), FIRST_REQUEST, least=min(plugin))


def _start(listener: socket.socket, argv: list[str]) -> float:
    begun = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            connection, _ = listener.accept()
            took = time.monotonic() - begun
            connection.close()
        finally:
            process.kill()
    # Discard further connections of the process.
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
    listener.settimeout(30)
    return took


def _nodes(api: Api, numbers: range) -> None:
    """Create nodes without kubelets, and the Hypervisor objects that agents would create."""
    with contextlib.closing(api.connect()) as connection:
        for number in numbers:
            name = node(number)
            labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true"}
            send(connection, "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            status = {"status": {"allocatable": amounts, "capacity": amounts}}
            send(connection, "PATCH", f"/api/v1/nodes/{name}/status", status, MERGE_PATCH)
            path = "/apis/drydock.dev/v1alpha1/hypervisors"
            send(connection, "POST", path, {**kind("drydock.dev/v1alpha1", "Hypervisor"), "metadata": {"name": name}, "spec": {}})


def _machines(api: Api, numbers: range) -> None:
    """Create instances in the phase Running, and their pods."""
    instances = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances"
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    with contextlib.closing(api.connect()) as connection:
        for number in numbers:
            name, place = f"machine-{number}", node(number % NODES)
            spec = {"domain": {"memory": {"guest": "4Gi"}, "devices": {}}, "evictionStrategy": "LiveMigrate"}
            made = send(
                connection,
                "POST",
                instances,
                {**kind("kubevirt.io/v1", "VirtualMachineInstance"), "metadata": {"name": name}, "spec": spec},
            )
            conditions = [{"type": "LiveMigratable", "status": "True"}]
            status = {"status": {"phase": "Running", "nodeName": place, "conditions": conditions}}
            send(connection, "PATCH", f"{instances}/{name}/status", status, MERGE_PATCH)
            labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": made["metadata"]["uid"]}
            requests = {"memory": "4Gi", "cpu": "100m"}
            pod = {
                "metadata": {"name": f"virt-launcher-{name}", "labels": labels},
                "spec": {
                    "nodeName": place,
                    "terminationGracePeriodSeconds": 0,
                    # These nodes have no kubelets; the pods must tolerate the resulting taints.
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "compute", "image": "none", "resources": {"requests": requests}}],
                },
            }
            send(connection, "POST", pods, pod)


def node(number: int) -> str:
    """Return the name of a node."""
    return f"played-{number:03}"


def kind(version: str, name: str) -> dict[str, str]:
    """Return the fields that identify the type of a custom resource."""
    return {"apiVersion": version, "kind": name}


def _console(made: Cluster, api: Api, program: Path, progress: Progress) -> Iterator[Measurement]:
    argv = [str(program), "console", "--kubeconfig", str(made.kubeconfig)]
    begun = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as console:
        try:
            assert console.stdout
            link = console.stdout.readline().strip()
            if not link:
                raise Failure("the console has ended")
            address, _, key = link.partition("/#key=")
            host = address.removeprefix("http://")
            session = _session(host, key)
            with contextlib.closing(Page(host, session)) as page:
                page.first()
                cold = time.monotonic() - begun
            progress.note(f"first page {cold:.2f} s after the start of the console, which lists all objects for it")
            yield Measurement("console.first-page-from-start", cold, "s", None, None)
            opened = []
            for _ in range(SAMPLES):
                since = time.monotonic()
                with contextlib.closing(Page(host, session)) as page:
                    page.first()
                    opened.append(time.monotonic() - since)
            yield Measurement("console.first-table", median(opened), "s", None, FIRST_TABLE, least=min(opened))
            updates = _updates(api, host, session)
            yield Measurement("console.update-after-the-watch-event", median(updates), "s", None, UPDATE, least=min(updates))
            status = Path(f"/proc/{console.pid}/status").read_text()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024
            yield Measurement("console.RSS", resident, "MiB", None, MEMORY)
        finally:
            console.kill()


def _session(host: str, key: str) -> str:
    with contextlib.closing(http.client.HTTPConnection(host, timeout=IDLE_TIMEOUT)) as connection:
        return str(send(connection, "POST", "/api/session", {"key": key})["session"])


def _updates(api: Api, host: str, session: str) -> list[float]:
    """Return the seconds from the watch event of a node's new zone until the page shows it, for each of several changes."""
    name, found = node(0), []
    with api.watching(f"/api/v1/nodes?fieldSelector=metadata.name%3D{name}") as watch, contextlib.closing(Page(host, session)) as page:
        page.first()
        for turn in range(2 * SAMPLES):
            zone, mark = f"zone-{turn}", watch.mark()
            api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": {ZONE: zone}}})
            at, _ = watch.until(lambda kind, found, zone=zone: found["metadata"]["labels"].get(ZONE) == zone, mark)
            found.append(max(0.0, page.until_row(name, zone) - at))
    return found


class Page:
    """The console's page of nodes, read as a browser reads it."""

    def __init__(self, host: str, session: str) -> None:
        self._connection = http.client.HTTPConnection(host, timeout=IDLE_TIMEOUT)
        self._connection.request("GET", "/api/live?path=/nodes", headers={"X-Drydock-Session": session})
        self._lines = self._connection.getresponse()

    def first(self) -> None:
        """Read the first update, which must contain the whole page."""
        if not self._update().get("parts"):
            raise Failure("the first update of the console does not contain the whole page")

    def _update(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise Failure("the console has ended the connection")
        update: dict[str, Any] = json.loads(line)
        return update

    def until_row(self, name: str, text: str) -> float:
        """Read updates until the row of a node contains a text; return the time on the monotonic clock."""
        while True:
            for part in self._update().get("parts", []):
                if part["id"] == f"node/{name}" and f">{text}<" in part["html"]:
                    return time.monotonic()

    def close(self) -> None:
        """Close the connection, as a browser does when its tab is closed."""
        self._connection.close()
