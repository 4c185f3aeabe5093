"""How long a migration takes beside libvirt's own work, and its requests to the API server; the same by virsh.

    created ─▶ pod of the target starts ─▶ job of libvirt ─▶ Succeeded
               └ Kubernetes               └ libvirt, QEMU      the rest is Drydock's

All run on one machine and take turns, so that what else happens there disturbs them alike. virsh's bytes are relayed as they
are, and a second time by socat with TLS.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .api import Api, Watch
from .audit import Request, requests, split
from .measurement import SAMPLES, Measurement, median
from .guest_start import VIRSH
from .guests import Guest, in_pod, instances
from .moving_guests import Kind, Moved, move
from .pods import memory, the_process, wait_until
from .virsh_baseline import ByHand
from .downtime import longest_gap

KINDS = (
    Kind("256Mi", 256, 128),
    Kind("1Gi", 1024, 768),
    Kind("256Mi-dirtying", 256, 96, dirties=True),
)

# KubeVirt v1.9's components, by the audit log of the same kind of cluster.
KUBEVIRT_REQUESTS = 61
REQUESTS = 20
CONTROL_PLANE = 0.3
WALL = 1.05
DOWNTIME = 0.03
MEMORY = 12

# What is written late comes within this.
SETTLE = 3


@dataclass
class Series:
    """All migrations of one guest and of one like it, in seconds."""

    moved: list[Moved] = field(default_factory=list)
    requested: list[list[Request]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)
    by_hand_encrypted: list[float] = field(default_factory=list)
    by_hand_outside: list[float] = field(default_factory=list)
    by_hand_gaps: list[float] = field(default_factory=list)


def measure(made: Cluster, api: Api, progress: Progress, samples: int = SAMPLES) -> Iterator[Measurement]:
    """Guests of each kind, one after the other."""
    with instances(api) as watch:
        for kind in KINDS:
            series = _series(made, api, watch, kind, samples, progress)
            if kind is KINDS[0]:
                yield from _times(series, samples, progress)
            yield from _against_virsh(kind, series, samples)
    node = made.nodes[0].name
    both = [memory(made, node, the_process(made, node, "drydock-agent", task)).anonymous for task in ("run", "tunnel")]
    yield Measurement("agent-and-tunnel.RssAnon after migrations", sum(both), "MiB", None, MEMORY)


def _series(made: Cluster, api: Api, watch: Watch, kind: Kind, samples: int, progress: Progress) -> Series:
    guest = Guest(api, watch, kind.manifest())
    guest.ready()
    guest.line("drydock-guest ready")
    source = guest.pod()
    # As it was defined, not as it runs: libvirt is to do the same work again.
    domain = in_pod(made, source["metadata"]["name"], f"{VIRSH} dumpxml --inactive $({VIRSH} list --name)")
    # The first brings the images, and lends its target's pod.
    by_hand = ByHand(made, api, kind.name.lower(), move(made, api, guest.name))
    series = Series()
    try:
        by_hand.start(source, domain)
        by_hand.wait_for("drydock-guest ready")
        by_hand.move()
        for turn in range(samples):
            since = datetime.now(timezone.utc)
            moved = move(made, api, guest.name)
            wait_until(time.monotonic() + SETTLE)
            series.requested.append(list(requested(made, since)))
            series.moved.append(moved)
            series.gaps.append(longest_gap(moved.ticks))
            # In turns, so that each goes from either node to the other: the two have different shares of the processors.
            ways = (False, True) if turn % 2 == 0 else (True, False)
            moves = {way: by_hand.move(encrypted=way) for way in ways}
            virsh, encrypted = moves[False], moves[True].job
            job = virsh.job
            if min(moved.job.processed, job.processed, encrypted.processed) < kind.filled:
                raise Failure(f"a guest with {kind.filled} MiB in memory moved as {moved.job} and by hand as {job} and {encrypted}")
            series.by_hand.append(job.elapsed)
            series.by_hand_encrypted.append(encrypted.elapsed)
            series.by_hand_outside.append(virsh.ended - virsh.began - job.elapsed)
            series.by_hand_gaps.append(longest_gap(virsh.ticks))
            progress.note(
                f"{kind.name} {turn + 1} of {samples}: {moved.total:.2f} s = pod {moved.pod:.2f} + job {moved.job.elapsed:.2f} "
                f"+ {moved.outside:.2f}; stood still {series.gaps[-1] * 1000:.0f} ms (libvirt: {moved.job.downtime * 1000:.0f}); "
                f"virsh: job {job.elapsed:.2f} s of {virsh.ended - virsh.began:.2f}, stood still {series.by_hand_gaps[-1] * 1000:.0f} ms "
                f"(libvirt: {job.downtime * 1000:.0f}); encrypted: job {encrypted.elapsed:.2f} s"
            )
    finally:
        by_hand.end()
    guest.delete()
    return series


def requested(made: Cluster, since: datetime) -> Iterator[Request]:
    """Yield Drydock's requests to the API server for a migration: all but leases and the renewal of watches."""
    for request in requests(made, since, datetime.now(timezone.utc)):
        if request.resource != "leases" and request.verb != "watch":
            yield request


def _times(series: Series, samples: int, progress: Progress) -> Iterator[Measurement]:
    def figure(name: str, values: list[float], unit: str, reference: float | None, budget: float | None) -> Measurement:
        return Measurement(f"migration.{name}", median(values, samples), unit, reference, budget, least=min(values))

    progress.note(f"requests of the last migration: {split(series.requested[-1])}")
    progress.note(f"seconds from its creation, in the middle: {milestones([moved.stages for moved in series.moved])}")
    yield figure("created-to-Succeeded", [moved.total for moved in series.moved], "s", None, None)
    yield figure("target-pod-start", [moved.pod for moved in series.moved], "s", None, None)
    outside = [moved.outside for moved in series.moved]
    yield figure("outside the job", outside, "s", None, None)
    # virsh's call is longer than the job, too: the target begins before it is counted, and the source ends after.
    raw = median(series.by_hand_outside, samples)
    over = median(outside, samples) - raw
    least = min(outside) - min(series.by_hand_outside)
    yield Measurement("migration.control-plane, outside the job over virsh's", over, "s", raw, CONTROL_PLANE, least=least)
    counts = [float(len(each)) for each in series.requested]
    yield figure("requests vs kubevirt", counts, "requests", KUBEVIRT_REQUESTS, REQUESTS)


def milestones(found: list[dict[str, float]]) -> str:
    """For people: when each stage was reached that all went through, in order."""
    names = [name for name in found[0] if all(name in each for each in found)]
    middle = {name: statistics.median(each[name] for each in found) for name in names}
    return ", ".join(f"{name} {at:.2f}" for name, at in sorted(middle.items(), key=lambda item: item[1]))


def to_and_fro(values: list[float]) -> list[float]:
    """The means of two moves in turn, one from each node: a move from one takes much longer than from the other, so that a median
    of all would be between the slowest of the fast ones and the fastest of the slow ones."""
    return [statistics.mean(pair) for pair in zip(values[::2], values[1::2], strict=False)] or values


def _against_virsh(kind: Kind, series: Series, samples: int) -> Iterator[Measurement]:
    def middle(values: list[float]) -> float:
        return median(to_and_fro(values), max(samples // 2, 1))

    jobs = [moved.job.elapsed for moved in series.moved]
    least = min(to_and_fro(jobs))
    yield Measurement(f"migration.{kind.name}.job vs virsh", middle(jobs), "s", middle(series.by_hand), WALL, True, least)
    # The tunnel encrypts, and virsh's plain relay does not: the figures of both carriers show what that saves.
    encrypted = middle(series.by_hand_encrypted)
    yield Measurement(f"migration.{kind.name}.job vs virsh by TLS", middle(jobs), "s", encrypted, WALL, True, least)
    still, raw_still = middle(series.gaps), middle(series.by_hand_gaps)
    more = min(series.gaps) - min(series.by_hand_gaps)
    yield Measurement(f"migration.{kind.name}.standstill over virsh's", still - raw_still, "s", raw_still, DOWNTIME, least=more)
