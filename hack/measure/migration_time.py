"""Duration of a migration beyond libvirt's own job, and its requests to the API server, compared with virsh.

    created ─▶ pod of the target starts ─▶ job of libvirt ─▶ Succeeded
               └ Kubernetes               └ libvirt, QEMU      the rest is Drydock's

All migrations run alternately on one machine, so that other load disturbs them equally. virsh's data is relayed both without
encryption and, in further migrations, through socat with TLS.
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

# Requests of KubeVirt v1.9's components, from the audit log of the same kind of cluster.
KUBEVIRT_REQUESTS = 61
REQUESTS = 20
CONTROL_PLANE = 0.3
WALL = 1.05
DOWNTIME = 0.03
MEMORY = 12

# Seconds within which delayed writes occur.
SETTLE = 3


@dataclass
class Series:
    """All migrations of one guest by Drydock and of an equal guest by virsh; times in seconds."""

    moved: list[Moved] = field(default_factory=list)
    requested: list[list[Request]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)
    by_hand_encrypted: list[float] = field(default_factory=list)
    by_hand_outside: list[float] = field(default_factory=list)
    by_hand_gaps: list[float] = field(default_factory=list)


def measure(made: Cluster, api: Api, progress: Progress, samples: int = SAMPLES) -> Iterator[Measurement]:
    """Measure migrations of a guest of each kind, one kind after the other."""
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
    # The inactive definition has no runtime state, so libvirt has to do the same work again.
    domain = in_pod(made, source["metadata"]["name"], f"{VIRSH} dumpxml --inactive $({VIRSH} list --name)")
    # The first migration causes the other node to pull the images, and its target pod is the template for virsh's pods.
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
            # Alternate the order, so that both kinds of migrations start from each node: the nodes have different CPU shares.
            ways = (False, True) if turn % 2 == 0 else (True, False)
            moves = {way: by_hand.move(encrypted=way) for way in ways}
            virsh, encrypted = moves[False], moves[True].job
            job = virsh.job
            if min(moved.job.processed, job.processed, encrypted.processed) < kind.filled:
                raise Failure(f"a job transferred less than the {kind.filled} MiB in memory: {moved.job}, virsh: {job}, with TLS: {encrypted}")
            series.by_hand.append(job.elapsed)
            series.by_hand_encrypted.append(encrypted.elapsed)
            series.by_hand_outside.append(virsh.ended - virsh.began - job.elapsed)
            series.by_hand_gaps.append(longest_gap(virsh.ticks))
            progress.note(
                f"{kind.name} {turn + 1} of {samples}: {moved.total:.2f} s = pod {moved.pod:.2f} + job {moved.job.elapsed:.2f} "
                f"+ {moved.outside:.2f}; downtime {series.gaps[-1] * 1000:.0f} ms (libvirt: {moved.job.downtime * 1000:.0f}); "
                f"virsh: job {job.elapsed:.2f} s of {virsh.ended - virsh.began:.2f}, "
                f"downtime {series.by_hand_gaps[-1] * 1000:.0f} ms (libvirt: {job.downtime * 1000:.0f}); "
                f"encrypted: job {encrypted.elapsed:.2f} s"
            )
    finally:
        by_hand.end()
    guest.delete()
    return series


def requested(made: Cluster, since: datetime) -> Iterator[Request]:
    """Yield Drydock's requests to the API server since an instant, without those for Leases and without watches."""
    for request in requests(made, since, datetime.now(timezone.utc)):
        if request.resource != "leases" and request.verb != "watch":
            yield request


def _times(series: Series, samples: int, progress: Progress) -> Iterator[Measurement]:
    def figure(name: str, values: list[float], unit: str, reference: float | None, budget: float | None) -> Measurement:
        return Measurement(f"migration.{name}", median(values, samples), unit, reference, budget, least=min(values))

    progress.note(f"requests of the last migration: {split(series.requested[-1])}")
    progress.note(f"median seconds from the creation of a migration: {milestones([moved.stages for moved in series.moved])}")
    yield figure("created-to-Succeeded", [moved.total for moved in series.moved], "s", None, None)
    yield figure("target-pod-start", [moved.pod for moved in series.moved], "s", None, None)
    outside = [moved.outside for moved in series.moved]
    yield figure("outside the job", outside, "s", None, None)
    # virsh's call is longer than its job, too: the target starts before the job is timed, and the source ends after it.
    raw = median(series.by_hand_outside, samples)
    over = median(outside, samples) - raw
    least = min(outside) - min(series.by_hand_outside)
    yield Measurement("migration.control-plane, outside the job over virsh's", over, "s", raw, CONTROL_PLANE, least=least)
    counts = [float(len(each)) for each in series.requested]
    yield figure("requests vs kubevirt", counts, "requests", KUBEVIRT_REQUESTS, REQUESTS)


def milestones(found: list[dict[str, float]]) -> str:
    """Return a text with the median time of each stage that all migrations reached, in order of time."""
    names = [name for name in found[0] if all(name in each for each in found)]
    middle = {name: statistics.median(each[name] for each in found) for name in names}
    return ", ".join(f"{name} {at:.2f}" for name, at in sorted(middle.items(), key=lambda item: item[1]))


def to_and_fro(values: list[float]) -> list[float]:
    """Return the mean of each two consecutive moves, one from each node; a single move is returned as it is.

    Moves from one node take much longer than from the other. A median of all moves would be between the slowest of the fast ones
    and the fastest of the slow ones.
    """
    return [statistics.mean(pair) for pair in zip(values[::2], values[1::2], strict=False)] or values


def _against_virsh(kind: Kind, series: Series, samples: int) -> Iterator[Measurement]:
    def middle(values: list[float]) -> float:
        return median(to_and_fro(values), max(samples // 2, 1))

    jobs = [moved.job.elapsed for moved in series.moved]
    least = min(to_and_fro(jobs))
    yield Measurement(f"migration.{kind.name}.job vs virsh", middle(jobs), "s", middle(series.by_hand), WALL, True, least)
    # The tunnel encrypts, and virsh's plain relay does not: this figure compares with an encrypted relay.
    encrypted = middle(series.by_hand_encrypted)
    yield Measurement(f"migration.{kind.name}.job vs virsh by TLS", middle(jobs), "s", encrypted, WALL, True, least)
    still, raw_still = middle(series.gaps), middle(series.by_hand_gaps)
    more = min(series.gaps) - min(series.by_hand_gaps)
    yield Measurement(f"migration.{kind.name}.standstill over virsh's", still - raw_still, "s", raw_still, DOWNTIME, least=more)
