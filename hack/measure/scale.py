"""Drains in a large simulated cluster: use of the slots, resources of the controller, and one stuck node among many.

All components run on one machine: etcd, API server, scheduler and the simulator share its processors with Drydock's
controller. The `load` of each figure shows how busy the processors were.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from . import audit, slots
from .api import Api, Watch
from .measurement import Measurement
from .simulation import Simulation, Size
from .slots import Limits

# parallelMigrationsPerCluster, and the default limits of a source and a target: fifty sources use all slots of the cluster.
LIMITS = Limits(cluster=100, source=2, target=2)
TAINT = {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}
MAINTENANCES = "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances"
SETTLE = 15
# The controller counts as idle below this number of requests per second. When all machines run, it still has to write the
# possible targets and the image of each. PATIENCE: how long to wait, in seconds.
QUIET, PATIENCE = 1.0, 1800
CLIENTS = 8
# Budget of the controller's memory with these numbers of nodes and machines.
LARGE, MOST_MIB = (5_000, 100_000), 1024
UTILISATION, REACTION, STUCK, CORDONED = 0.95, 0.2, 1.2, 1.0


def measure(made: Cluster, api: Api, progress: Progress, size: Size | None = None) -> Iterator[Measurement]:
    """Run all measurements on a cluster without real nodes."""
    size = size or Size()
    with Simulation(made, size, LIMITS, progress) as simulation:
        yield from fill(simulation, progress)
        yield from drain(simulation, api, progress)
        yield from stuck(simulation, api, progress)


def fill(simulation: Simulation, progress: Progress) -> Iterator[Measurement]:
    """Start all machines; measure the rate of starts, and the controller's CPU time and memory."""
    size = simulation.size
    time.sleep(SETTLE)
    empty = simulation.memory()
    begun, spent = time.monotonic(), simulation.processor_seconds()
    with progress.step(f"starting {size.machines} machines"):
        simulation.order("machines", "running", 3600)
    yield Measurement("scale.start.machines", size.machines / (time.monotonic() - begun), "1/s", None, None)
    with progress.step("waiting until the controller is idle"):
        _settle(simulation)
    yield Measurement(
        "scale.start.controller-cpu", (simulation.processor_seconds() - spent) * 1000 / size.machines, "ms/VM", None, None
    )
    full = simulation.memory()
    yield Measurement("scale.controller.RSS", full.resident, "MiB", None, None)
    yield Measurement("scale.controller.RssAnon", full.anonymous, "MiB", None, None)
    bare = simulation.alone.anonymous
    of_node = (empty.anonymous - bare) / size.nodes
    of_machine = (full.anonymous - empty.anonymous) / size.machines
    yield Measurement("scale.controller.RssAnon-per-node", of_node * 1024, "KiB", None, None)
    yield Measurement("scale.controller.RssAnon-per-vmi", of_machine * 1024, "KiB", None, None)
    nodes, machines = LARGE
    yield Measurement(
        f"scale.controller.RssAnon-extrapolated-to-{nodes}-nodes-{machines}-vmis",
        bare + nodes * of_node + machines * of_machine,
        "MiB",
        None,
        MOST_MIB,
    )


def _settle(simulation: Simulation) -> None:
    """Wait until the controller is idle."""
    patience = time.monotonic() + PATIENCE
    while True:
        requested = simulation.requested()
        time.sleep(SETTLE)
        if simulation.requested() - requested < QUIET * SETTLE:
            return
        if time.monotonic() > patience:
            raise Failure(f"the controller still sends more than {QUIET} requests per second after {PATIENCE} s")


def drain(simulation: Simulation, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Drain many nodes at once with the taint."""
    nodes = simulation.names(simulation.size.drained)
    machines = _machines(api)
    expected = len(simulation.moved) + sum(machines[node] for node in nodes)
    before, spent, requested = len(simulation.moved), simulation.processor_seconds(), simulation.requests()
    begun, since = time.time(), datetime.now(timezone.utc)
    with progress.step(f"drain of {len(nodes)} nodes with {expected - before} machines"):
        _each(api, nodes, lambda client, node: client.send_request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [TAINT]}}))
        simulation.until_moved(expected, 1800)
        _until_drained(api, nodes)
    until = datetime.now(timezone.utc)
    moves = simulation.moved[before:]
    held = slots.read(simulation.audit_log, begun)
    yield from _slots(held, moves, begun, simulation.limits)
    wanted = list(audit.requests(simulation.made, since, until))
    controller = [request for request in wanted if request.account == "drydock-controller" and request.resource != "leases"]
    progress.note(audit.split(controller))
    agents = simulation.requests() - requested
    yield Measurement("scale.drain.controller-requests", len(controller) / len(moves), "requests/VM", None, None)
    yield Measurement("scale.drain.agents-requests", agents / len(moves), "requests/VM", None, None)
    yield Measurement("scale.drain.requests", (len(controller) + agents) / len(moves), "requests/VM", None, 25)
    cpu = simulation.processor_seconds() - spent
    yield Measurement("scale.drain.controller-cpu", cpu * 1000 / len(moves), "ms/VM", None, None)
    memory = simulation.memory()
    yield Measurement("scale.drain.controller-RSS", memory.resident, "MiB", None, None)
    yield Measurement("scale.drain.controller-RssAnon", memory.anonymous, "MiB", None, None)
    _each(api, nodes, lambda client, node: client.send_request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}}))


def _slots(
    held: Sequence[slots.Held], moves: Sequence[dict[str, Any]], begun: float, limits: Limits
) -> Iterator[Measurement]:
    took = max(slot.freed for slot in held) - begun
    by_slots = slots.lower_bound([(slot.source, slot.target, slot.seconds) for slot in held], limits)
    by_moves = slots.lower_bound([(move["source"], move["target"], move["ended"] - move["began"]) for move in moves], limits)
    # Utilisation of at least 95 %: the drain takes at most 1 / 0.95 times the bound.
    yield Measurement("scale.drain.time vs bound-by-slots", took, "s", by_slots, 1 / UTILISATION, relative=True)
    yield Measurement("scale.drain.time vs bound-by-moves", took, "s", by_moves, 1 / UTILISATION, relative=True)
    # The time of a schedule without delays that does not know the durations in advance.
    at_once = slots.without_delay([(slot.source, slot.target, slot.seconds) for slot in held], limits)
    yield Measurement("scale.drain.time vs same-order-without-delay", took, "s", at_once, 1 / UTILISATION, relative=True)
    yield Measurement("scale.drain.utilisation", 100 * by_slots / took, "%", None, None)
    for name, limit, of in (
        ("cluster", limits.cluster, lambda slot: ""),
        ("source", limits.source, lambda slot: slot.source),
        ("target", limits.target, lambda slot: slot.target),
    ):
        yield Measurement(f"scale.drain.most-at-once-{name}", slots.most_at_once(held, of), "migrations", None, limit)
    began = {move["migration"]: move["began"] for move in moves}
    for what, starts, budget in (
        ("taken", {slot.migration: slot.taken for slot in held}, None),
        ("moving", began, REACTION),
    ):
        waits = slots.until_next(held, starts, limits)
        # With few nodes and machines, no guest has to wait for a slot.
        if waits:
            yield Measurement(f"scale.drain.slot-freed-to-next-{what}.p50", slots.percentile(waits, 0.5), "s", None, None)
            yield Measurement(f"scale.drain.slot-freed-to-next-{what}.p99", slots.percentile(waits, 0.99), "s", None, budget)


def stuck(simulation: Simulation, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure maintenances of many nodes, one of which is blocked by a pinned machine, against that of a single node.

    The single node has at least as many machines as any of the others, because the time grows with the number of machines.
    """
    count = simulation.size.drained
    never_emptied = simulation.names(simulation.size.nodes - count, count)
    machines = _machines(api)
    alone = max(never_emptied, key=lambda node: machines[node])
    most = machines[alone]
    with progress.step(f"maintenance of one node with {most} machines"):
        reference, _ = _maintain(api, [alone], [alone])
    machines = _machines(api)
    others = [node for node in never_emptied if node != alone and machines[node] <= most]
    nodes = sorted(others, key=lambda node: -machines[node])[:count]
    if len(nodes) < count:
        raise Failure(f"only {len(nodes)} nodes have at most {most} machines, the number of the node that was drained alone")
    _pin(simulation, api, nodes[0])
    with progress.step(f"maintenance of {count} nodes, one of them stuck"):
        took, cordoned = _maintain(api, nodes, nodes[1:])
    yield Measurement("scale.maintenance.others-done vs one-alone", took, "s", reference, STUCK, relative=True)
    yield Measurement("scale.maintenance.cordoned-after-first-created", cordoned[0], "s", None, None)
    yield Measurement("scale.maintenance.cordoned-after-own-creation", cordoned[1], "s", None, CORDONED)


def _maintain(api: Api, nodes: Sequence[str], awaited: Sequence[str]) -> tuple[float, tuple[float, float]]:
    """Put nodes into maintenance, wait until the `awaited` ones are empty, and end the maintenances.

    Return the seconds until the awaited nodes were empty; the seconds from the first request until the last node was cordoned;
    and the maximum, over all nodes, of the seconds from the creation of a node's maintenance until the node was cordoned.
    """
    names = set(nodes)
    created: dict[str, float] = {}
    with api.watching("/api/v1/nodes") as of_nodes, api.watching(MAINTENANCES) as of_maintenances:
        begun = time.monotonic()

        def create(client: Client, node: str) -> None:
            body = {"metadata": {"name": f"of-{node}"}, "spec": {"nodeName": node, "reason": "measured"}}
            client.send_request("POST", MAINTENANCES, {"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "kind": "NodeMaintenance"} | body)
            created[node] = time.monotonic()

        _each(api, nodes, create)
        cordoned = _when(of_nodes, names, lambda found: found["metadata"]["name"], lambda found: found["spec"].get("unschedulable"))
        done = _when(
            of_maintenances,
            set(awaited),
            lambda found: found["spec"]["nodeName"],
            lambda found: found.get("status", {}).get("phase") == "Succeeded",
        )
    _each(api, nodes, lambda client, node: client.send_request("DELETE", f"{MAINTENANCES}/of-{node}"))
    longest = max(cordoned[node] - created[node] for node in nodes)
    return max(done.values()) - begun, (max(cordoned.values()) - begun, longest)


def _when(
    watch: Watch, names: set[str], name: Callable[[dict[str, Any]], str], holds: Callable[[dict[str, Any]], object]
) -> dict[str, float]:
    """Wait until `holds` has been true for each of these names; return when each was first seen so."""
    missing = set(names)

    def all_there(kind: str, found: dict[str, Any]) -> bool:
        if holds(found):
            missing.discard(name(found))
        return not missing

    watch.until(all_there, patience=1800)
    when: dict[str, float] = {}
    for at, found in watch.seen():
        if holds(found) and name(found) in names:
            when.setdefault(name(found), at)
    return when


def _pin(simulation: Simulation, api: Api, node: str) -> None:
    """Create a machine that only this node can run, and wait until it runs."""
    manifest = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "pinned", "namespace": "default"},
        "spec": {
            "evictionStrategy": "LiveMigrate",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "domain": {"resources": {"requests": {"memory": "96Mi"}}, "devices": {}},
        },
    }
    path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
    with api.watching(f"{path}?fieldSelector=metadata.name%3Dpinned") as watch:
        api.request("POST", path, manifest)
        watch.until(lambda kind, found: found.get("status", {}).get("phase") == "Running")


def _machines(api: Api) -> Counter[str]:
    """Return the number of machines on each node, from the machines' labels."""
    found = api.get("/apis/kubevirt.io/v1/virtualmachineinstances")["items"]
    return Counter(machine["metadata"].get("labels", {}).get("kubevirt.io/nodeName", "") for machine in found)


def _until_drained(api: Api, nodes: Sequence[str]) -> None:
    """Wait until each of these nodes has the condition Drained."""
    for node in nodes:
        path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{node}"
        with api.watching(path) as watch:
            found = api.get(path)["items"][0]
            if not _is_drained(found):
                watch.until(lambda kind, found: _is_drained(found))


def _is_drained(node: dict[str, Any]) -> bool:
    conditions = node["status"]["conditions"]
    return any(one["type"] == "Drained" and one["status"] == "True" for one in conditions)


class Client:
    """A connection to the API server for requests without results."""

    def __init__(self, api: Api) -> None:
        self._connection = api.connect()

    def send_request(self, method: str, path: str, body: Any = None) -> None:
        """Send a request and discard the response; raise an exception if it is an error."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 400:
            raise http.client.HTTPException(f"{method} {path}: {response.status} {text[:300]!r}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _each(api: Api, nodes: Sequence[str], do: Any) -> None:
    """Call `do` for each node, with several connections in parallel."""

    def some(first: int) -> None:
        client = Client(api)
        try:
            for node in nodes[first::CLIENTS]:
                do(client, node)
        finally:
            client.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(some, range(CLIENTS)))
