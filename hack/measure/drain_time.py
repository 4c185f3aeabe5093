"""Duration of `kubectl drain`, compared with the ideal duration, and its requests to the API server.

    ideal = start of a target pod + the same migrations by virsh, with the same number in parallel

kubectl requests the eviction of one pod after the other, and retries five seconds after each refusal. A drain can therefore
take much longer than the migrations. Drains and migrations by virsh alternate; virsh's guests are paused during the drains.

Four guests keep two processors busy. The processor time of other programs (QEMU, libvirt, kubelets, containerd, the API
server) is a lower bound for the duration of a drain on that machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone

from embedded.cluster import Cluster
from embedded.progress import Progress

from . import replicas
from .api import Api, Watch
from .audit import Request, split
from .measurement import SAMPLES, Measurement, median
from .guest_start import VIRSH
from .guests import Guest, in_pod, instances
from .migration_time import SETTLE, requested
from .moving_guests import Kind, move
from .pods import wait_until
from .processors import Spent
from .virsh_baseline import ByHand

COUNTS = (1, 4)
# Drydock's default limit of concurrent migrations from one node.
AT_ONCE = 2
# KubeVirt v1.9 on a machine like this: seconds of a drain, and requests of its components.
KUBEVIRT_WALL = {1: 10.2, 4: 15.3}
KUBEVIRT_REQUESTS = {1: 76, 4: 330}
REQUESTS_PER_GUEST = 25
# Budget: a drain takes at most TIMES × ideal + MORE seconds.
TIMES, MORE = 1.1, 1.0
# The usual command, which also evicts the controller's replica.
PLAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
DRAIN = (*PLAIN, "--pod-selector=kubevirt.io=virt-launcher")


@dataclass
class Drains:
    """All drains with one number of guests; times in seconds."""

    walls: list[float] = field(default_factory=list)
    ideals: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    requested: list[list[Request]] = field(default_factory=list)


def measure(made: Cluster, api: Api, progress: Progress, samples: int = SAMPLES) -> Iterator[Measurement]:
    """Measure drains of one guest, then of four, then of one guest and the controller's leading replica."""
    with instances(api) as watch:
        walls = {}
        for count in COUNTS:
            found = _drains(made, api, watch, count, samples, progress)
            walls[count] = median(found.walls, samples)
            yield from _measurements(count, found, samples, progress)
        plain = _leaders_node(made, api, watch, samples, progress)
        name = "drain.1-guest.wall of the plain command on the leader's node vs of guests alone"
        yield Measurement(name, median(plain, samples), "s", walls[1], None, least=min(plain))


def _leaders_node(made: Cluster, api: Api, watch: Watch, samples: int, progress: Progress) -> list[float]:
    """Return the durations, in seconds, of usual drains of a node with a guest and the controller's leading replica."""
    here, there = (node.name for node in made.nodes)
    (guest,) = _started(made, api, watch, ["leader"])
    walls = []
    try:
        # The first drain causes the nodes to pull the images; it is not counted.
        for turn in range(samples + 1):
            replicas.lead_on(made, here)
            begun = time.monotonic()
            made.kubectl("drain", here, *PLAIN, timeout=200)
            walls.append(time.monotonic() - begun)
            made.kubectl("uncordon", here)
            here, there = there, here
            progress.note(f"drain of the leader's node, {turn} of {samples}: {walls[-1]:.2f} s")
    finally:
        for node in made.nodes:
            made.kubectl("uncordon", node.name)
    guest.delete()
    return walls[1:]


def _started(made: Cluster, api: Api, watch: Watch, names: list[str]) -> list[Guest]:
    """Create guests on the first node, and wait until they have booted."""
    _, there = (node.name for node in made.nodes)
    made.kubectl("cordon", there)
    guests = []
    for name in names:
        described = manifest(name).manifest()
        described["spec"]["evictionStrategy"] = "LiveMigrate"
        guests.append(Guest(api, watch, described))
    for guest in guests:
        guest.ready()
        guest.line("drydock-guest ready")
    made.kubectl("uncordon", there)
    return guests


def manifest(name: str) -> Kind:
    """Return a small guest with little output, as in a first trial of Drydock."""
    return Kind(name, 128, 16, counts="1s")


def _drains(made: Cluster, api: Api, watch: Watch, count: int, samples: int, progress: Progress) -> Drains:
    here, there = (node.name for node in made.nodes)
    guests = _started(made, api, watch, [f"{count}-{number}" for number in range(count)])
    by_hand: list[ByHand] = []
    found = Drains()
    try:
        pods = []
        for guest in guests:
            source = guest.pod()
            domain = in_pod(made, source["metadata"]["name"], f"{VIRSH} dumpxml --inactive $({VIRSH} list --name)")
            # The first migration causes the other node to pull the images, and its target pod is the template for virsh's pods.
            moved = move(made, api, guest.name)
            pods.append(moved.pod)
            hand = ByHand(made, api, guest.name, moved)
            by_hand.append(hand)
            hand.start(source, domain)
        for hand in by_hand:
            hand.wait_for("drydock-guest ready")
            hand.rest()
        pod = median(pods, count)
        here, there = there, here
        for turn in range(samples):
            before = Spent.so_far()
            since, begun = datetime.now(timezone.utc), time.monotonic()
            made.kubectl("drain", here, *DRAIN, timeout=200)
            found.walls.append(time.monotonic() - begun)
            found.others.append(Spent.so_far().others_since(before))
            wait_until(time.monotonic() + SETTLE)
            found.requested.append(list(requested(made, since)))
            made.kubectl("uncordon", here)
            here, there = there, here
            found.ideals.append(pod + _by_hand(by_hand))
            progress.note(
                f"drain of {count}, {turn + 1} of {samples}: {found.walls[-1]:.2f} s; "
                f"ideal {found.ideals[-1]:.2f} s, of which pod {pod:.2f}; {len(found.requested[-1])} requests"
            )
    finally:
        for hand in by_hand:
            hand.end()
        for node in made.nodes:
            made.kubectl("uncordon", node.name)
    for guest in guests:
        guest.delete()
    return found


def _by_hand(guests: list[ByHand]) -> float:
    """Migrate the guests by virsh into existing pods; return the seconds from the first start to the last end."""
    for guest in guests:
        guest.go_on()
        guest.prepare()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        moved = list(pool.map(ByHand.hurry, guests))
    for guest in guests:
        guest.leave()
        guest.rest()
    return max(one.ended for one in moved) - min(one.began for one in moved)


def _measurements(count: int, found: Drains, samples: int, progress: Progress) -> Iterator[Measurement]:
    name = f"drain.{count}-guest{'s' if count > 1 else ''}"
    wall, ideal = median(found.walls, samples), median(found.ideals, samples)
    yield Measurement(f"{name}.wall vs kubevirt", wall, "s", KUBEVIRT_WALL[count], None, least=min(found.walls))
    over = min(one - TIMES * other for one, other in zip(found.walls, found.ideals))
    yield Measurement(f"{name}.wall over {TIMES} × ideal", wall - TIMES * ideal, "s", ideal, MORE, least=over)
    others = median(found.others, samples)
    yield Measurement(f"{name}.processor time besides Drydock's vs wall", others, "s", wall, None, least=min(found.others))
    progress.note(f"requests of the last drain: {split(found.requested[-1])}")
    counts = [len(each) / count for each in found.requested]
    reference = KUBEVIRT_REQUESTS[count] / count
    yield Measurement(
        f"{name}.requests per guest vs kubevirt",
        median(counts, samples),
        "requests",
        reference,
        REQUESTS_PER_GUEST,
        least=min(counts),
    )
