"""Number of writes by agents and controller to the API server during the life of one virtual machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

from embedded.cluster import Cluster
from embedded.progress import Progress

from .api import Api
from .audit import Request, requests, split
from .measurement import Measurement
from .guests import Guest, instance, instances
from .pods import wait_until

IDLE = 60
# Seconds within which delayed writes occur: events and conditions are held back only briefly.
SETTLE = 10

# Each write has a reader that waits for it.
# Controller, 10: create and delete the pod; on the instance, add the finalizer, set the node's name and remove the finalizer;
# in the instance's status, Scheduling, Scheduled on a node, the other nodes that could run it, and its final phase; on the pod,
# the probe of its image's digest.
# Agent, 6: Running with the guest's CPU, the ID of its image, its end, the pod's readiness gate set and cleared, and the Node's
# label by which the kubelet admits the pod again.
# Both, 6: events for users.
# One more for a status that is written in two parts.
LIFE = 23


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Create a guest, let it boot and stay idle for a minute, delete it, and count the writes."""
    node = made.nodes[0].name
    with instances(api) as watch:
        since = _now()
        guest = Guest(api, watch, instance("life", node))
        guest.ready()
        guest.line("drydock-guest ready")
        wait_until(time.monotonic() + SETTLE)
        idle_since = _now()
        progress.note(f"the guest is idle for {IDLE} s")
        wait_until(time.monotonic() + IDLE)
        idle_until = _now()
        guest.delete()
        wait_until(time.monotonic() + SETTLE)
        until = _now()
    life = [request for request in requests(made, since, until) if request.writes]
    idle = [request for request in requests(made, idle_since, idle_until) if request.writes]
    progress.note(f"writes during the guest's life: {split(life)}")
    progress.note(f"writes while it was idle: {split(idle)}")
    yield Measurement("vm.life.writes", len(life), "requests", None, LIFE)
    yield Measurement("vm.idle.status-writes", sum(_status(request) for request in idle), "requests", None, 0)


def _status(request: Request) -> bool:
    return request.resource.startswith("virtualmachineinstances")


def _now() -> datetime:
    return datetime.now(timezone.utc)
