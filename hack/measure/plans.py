"""Predictions of `kubectl drydock plan` compared with the following maintenance, in random clusters.

    random nodes and guests ──▶ plan of a node ──▶ its maintenance, three clusters at once ──▶ where each guest is
                                    └── fates, end ─────────── compared ──────────────────────────┘

The clusters share a control plane: each is a zone that all of its guests require. Scheduler, controller manager and Drydock's
controller are real; nodes and guests are simulated (see tests/scale). The move of a guest takes a fixed time plus a time that
depends on its memory. The plans of the first clusters predict no end, because the duration of moves is only known from past
migrations.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress
from oci.binaries import target_folder
from verify.runner import REPOSITORY, run

from .api import MERGE_PATCH, Api, send
from .measurement import Measurement, median
from .scale import MAINTENANCES
from .simulation import Simulation, Size
from .slots import Limits

CLUSTERS = 30
# Number of clusters that are drained at once: one machine simulates all nodes and runs the control plane. With six, the machine
# was the limit: guests of 2 GiB took 9 to 13 s, and migrations started 1 to 3 s after their maintenance.
AT_ONCE = 3
NODES = 5
ZONE = "topology.kubernetes.io/zone"
INSTANCES = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
PLUGIN = "kubectl-drydock"
BUILD_SECONDS = 1800
# PATIENCE: maximum seconds of a drain. QUIET: seconds without a change after which guests on the node are assumed to stay.
PATIENCE, QUIET = 600, 20
# Limits of concurrent migrations; that of the cluster is never reached.
LIMITS = Limits(cluster=100, source=2, target=2)
SIZE = Size(nodes=CLUSTERS * NODES, machines=0, seconds=2, rate=256)
# Budget for the difference between the planned and the actual end of a drain, as a share of the planned duration.
WITHIN = 0.25
GIB = 1 << 30
FINAL = ("Succeeded", "Failed")


@dataclass
class Played:
    """A random cluster, its node that is drained, and the node's plan."""

    number: int
    nodes: list[str]
    drained: str = ""
    fates: dict[str, str] = field(default_factory=dict)
    # The entry of each guest in the plan.
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    planned: float | None = None
    begun: float = 0.0

    @property
    def zone(self) -> str:
        """Return the zone of the cluster's nodes."""
        return f"z{self.number}"


def measure(made: Cluster, api: Api, progress: Progress, seed: int | None = None) -> Iterator[Measurement]:
    """Measure the number of guests whose fate differs from the plan, and by how much the ends of drains differ from it."""
    seed = random.randrange(1 << 32) if seed is None else seed
    progress.note(f"random clusters with seed {seed}")
    program = _plugin(progress)
    generator = random.Random(seed)
    with Simulation(made, SIZE, LIMITS, progress) as simulation:
        names = simulation.names(SIZE.nodes)
        clusters = [Played(number, names[number * NODES : (number + 1) * NODES]) for number in range(CLUSTERS)]
        with progress.step(f"creating {CLUSTERS} random clusters"):
            with contextlib.closing(api.connect()) as connection:
                for cluster in clusters:
                    _make(connection, cluster, generator)
            _settle(api)
        wrong: list[str] = []
        ends: list[float] = []
        for some in (clusters[first : first + AT_ONCE] for first in range(0, CLUSTERS, AT_ONCE)):
            for cluster in some:
                _plan(made, api, program, cluster)
            with progress.step(f"maintenance of {len(some)} nodes"):
                _maintain(api, some)
                finished = _until_settled(api, some, progress)
            wrong += _compare(api, some)
            ends += _ends(some, finished)
            for cluster in some:
                if cluster.planned and cluster.drained in finished:
                    taken = finished[cluster.drained] - cluster.begun
                    moves = sum(fate == "moves" for fate in cluster.fates.values())
                    progress.note(f"{cluster.drained}: {moves} guests, {cluster.planned:.0f} s planned, {taken:.1f} s taken")
        for line in wrong:
            progress.note(line)
        fates = Counter(fate for cluster in clusters for fate in cluster.fates.values())
    for fate in ("moves", "stops", "blocks"):
        yield Measurement(f"plans.{fate}", fates[fate], "guests", None, None)
    yield Measurement("plans.other-fate-than-planned", len(wrong), "guests", None, 0)
    if not ends:
        raise Failure("no plan predicted an end")
    yield Measurement("plans.ends", len(ends), "plans", None, None)
    yield Measurement("plans.end-differs.median", 100 * median([abs(end) for end in ends]), "%", None, 100 * WITHIN)
    yield Measurement("plans.end-differs.most", 100 * max(abs(end) for end in ends), "%", None, None)
    outside = sum(abs(end) > WITHIN for end in ends)
    yield Measurement("plans.end-differs.outside-25-percent", outside, "plans", None, 0)


def _plugin(progress: Progress) -> str:
    with progress.step(f"cargo build {PLUGIN}", announce=True):
        output, code = run(
            ["cargo", "build", "--locked", "--release", "--bin", PLUGIN], quiet=True, most_seconds=BUILD_SECONDS
        )
    if code != 0:
        raise Failure(f"{PLUGIN} cannot be built", output)
    return str(target_folder(REPOSITORY) / "release" / PLUGIN)


def _make(connection: HTTPConnection, cluster: Played, generator: random.Random) -> None:
    """Give the nodes of a cluster random capacity, labels and taints, and create its guests."""
    total = 0
    for name in cluster.nodes:
        memory = generator.choice((4, 6, 8, 12))
        total += memory
        labels = {ZONE: cluster.zone, "disk": generator.choice(("ssd", "hdd"))}
        taints = [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}] if generator.random() < 0.15 else []
        send(connection, "PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}, "spec": {"taints": taints}}, MERGE_PATCH)
        room = {"cpu": str(generator.choice((4, 8, 16))), "memory": f"{memory}Gi", "pods": str(generator.choice((5, 8, 110, 110)))}
        send(connection, "PATCH", f"/api/v1/nodes/{name}/status", {"status": {"capacity": room, "allocatable": room}}, MERGE_PATCH)
    # The guests take from a small share to most of the memory. In every other cluster all guests can move, so that its plan has
    # an end.
    free = cluster.number % 2 == 1
    wanted, number = total * GIB * (generator.uniform(0.2, 0.4) if free else generator.uniform(0.4, 0.75)), 0
    while wanted > 0 and number < 16:
        memory = generator.choice((256, 512, 1024, 2048, 3072)) << 20
        wanted -= memory
        send(connection, "POST", INSTANCES, _guest(cluster, number, memory, free, generator))
        number += 1


def _guest(cluster: Played, number: int, memory: int, free: bool, generator: random.Random) -> dict[str, Any]:
    """Return a guest with random node selectors, anti-affinity and eviction strategy; with `free`, it can run on any node."""
    group = generator.choice("abc")
    spec: dict[str, Any] = {
        "evictionStrategy": generator.choice(["LiveMigrate"] * 6 + ["LiveMigrateIfPossible", "None"]),
        "nodeSelector": {ZONE: cluster.zone},
        "terminationGracePeriodSeconds": 0,
        "domain": {
            "resources": {"requests": {"memory": str(memory), "cpu": generator.choice(("100m", "500m", "2"))}},
            "devices": {},
        },
    }
    if free:
        spec["evictionStrategy"] = "LiveMigrate"
        return _manifest(cluster, number, group, spec)
    if generator.random() < 0.2:
        spec["nodeSelector"]["disk"] = generator.choice(("ssd", "hdd"))
    if generator.random() < 0.1:
        spec["nodeSelector"]["kubernetes.io/hostname"] = generator.choice(cluster.nodes)
    if generator.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    chance = generator.random()
    same = {"labelSelector": {"matchLabels": {"group": f"{cluster.zone}-{group}"}}, "topologyKey": "kubernetes.io/hostname"}
    if chance < 0.2:
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [same]}}
    elif chance < 0.3:
        spec["topologySpreadConstraints"] = [same | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    return _manifest(cluster, number, group, spec)


def _manifest(cluster: Played, number: int, group: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": f"{cluster.zone}-{number}", "labels": {"group": f"{cluster.zone}-{group}"}},
        "spec": spec,
    }


def _instances(api: Api) -> dict[str, dict[str, Any]]:
    """Return the instances that are not in a final phase, by name."""
    found = api.get(INSTANCES)["items"]
    return {one["metadata"]["name"]: one for one in found if one.get("status", {}).get("phase") not in FINAL}


def _node(instance: dict[str, Any]) -> str:
    return str(instance.get("status", {}).get("nodeName", ""))


def _settle(api: Api) -> None:
    """Wait until all guests that can run do so, and delete the others, which could start during the drains."""
    running, since = -1, time.monotonic()
    while True:
        found = _instances(api)
        now = sum(one.get("status", {}).get("phase") == "Running" for one in found.values())
        if now != running:
            running, since = now, time.monotonic()
        if now == len(found) or time.monotonic() - since > QUIET:
            break
        time.sleep(1)
    for name, one in found.items():
        if one.get("status", {}).get("phase") != "Running":
            api.request("DELETE", f"{INSTANCES}/{name}")
    end = time.monotonic() + PATIENCE
    while any(one.get("status", {}).get("phase") != "Running" for one in _instances(api).values()):
        if time.monotonic() > end:
            raise Failure("guests that never ran still exist")
        time.sleep(1)
    # Agents report some facts, such as whether a guest can move, only after the guest's start.
    time.sleep(QUIET)


def _plan(made: Cluster, api: Api, program: str, cluster: Played) -> None:
    """Choose the node with the most guests, and read its plan."""
    here = Counter(_node(one) for one in _instances(api).values())
    cluster.drained = max(cluster.nodes, key=lambda name: here[name])
    argv = [program, "plan", cluster.drained, "-o", "json", "--kubeconfig", str(made.kubeconfig)]
    # The exit code contains nothing that is not in the plan.
    result = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    try:
        plan = json.loads(result.stdout)
    except ValueError:
        raise Failure(f"plan of {cluster.drained}", result.stdout + result.stderr) from None
    node = plan["nodes"][0]
    for fate in ("moves", "stops", "blocks"):
        for guest in node[fate]:
            cluster.fates[guest["name"]] = fate
            cluster.entries[guest["name"]] = guest
    if node.get("end"):
        cluster.planned = _seconds(node["end"]) - _seconds(plan["at"])


def _seconds(time_: str) -> float:
    return datetime.fromisoformat(time_.replace("Z", "+00:00")).timestamp()


def _maintain(api: Api, clusters: Sequence[Played]) -> None:
    for cluster in clusters:
        body = {"metadata": {"name": f"of-{cluster.drained}"}, "spec": {"nodeName": cluster.drained, "reason": "measured"}}
        cluster.begun = time.time()
        api.request("POST", MAINTENANCES, {"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "kind": "NodeMaintenance"} | body)


def _until_settled(api: Api, clusters: Sequence[Played], progress: Progress) -> dict[str, float]:
    """Wait until no guest has left for a while; return when the last guest that was planned to move left each node."""
    last: dict[str, float] = {}
    remaining: dict[str, frozenset[str]] = {}
    moving: dict[str, int] = {}
    changed, end = time.monotonic(), time.monotonic() + PATIENCE
    while True:
        found = _instances(api)
        for cluster in clusters:
            here = frozenset(name for name, one in found.items() if _node(one) == cluster.drained)
            # The end of a plan is the end of its moves: how long a guest takes to shut down depends on the guest.
            left = sum(cluster.fates.get(name) == "moves" for name in here)
            if moving.get(cluster.drained, left) != left:
                last[cluster.drained] = time.time()
            moving[cluster.drained] = left
            if remaining.get(cluster.drained) != here:
                remaining[cluster.drained] = here
                changed = time.monotonic()
        expected = all(
            here == {name for name, fate in cluster.fates.items() if fate == "blocks"}
            for cluster in clusters
            for here in (remaining[cluster.drained],)
        )
        # Migrations that do not complete are retried, so wait longer if the remaining guests are not the expected ones.
        if time.monotonic() - changed > (QUIET if expected else 6 * QUIET):
            return last
        if time.monotonic() > end:
            progress.note(f"guests were still leaving after {PATIENCE} s")
            return last
        time.sleep(0.5)


def _compare(api: Api, clusters: Sequence[Played]) -> list[str]:
    """Return a line for each guest whose fate differs from the plan."""
    wrong = []
    found = _instances(api)
    for cluster in clusters:
        for name, planned in cluster.fates.items():
            instance = found.get(name)
            if instance is None:
                actual = "stops"
            else:
                actual = "blocks" if _node(instance) == cluster.drained else "moves"
            if actual != planned:
                wrong.append(
                    f"{name} on {cluster.drained}: planned {planned}, actual {actual}: {json.dumps(cluster.entries[name])}"
                )
    return wrong


def _ends(clusters: Sequence[Played], finished: dict[str, float]) -> list[float]:
    """Return by which share of the planned time each drain took longer; negative if it took less time."""
    return [
        (finished[cluster.drained] - cluster.begun - cluster.planned) / cluster.planned
        for cluster in clusters
        if cluster.planned and cluster.drained in finished
    ]
