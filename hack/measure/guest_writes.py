"""How much agents and controller write to the API server for one virtual machine."""

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
# What is written late comes within this: events and conditions are held back for a moment, not longer.
SETTLE = 10

# Each has a reader that waits for it. The controller, 10: the pod is made and deleted; the instance gets its finalizer
# and its node's name, and loses the finalizer; its status reports Scheduling, Scheduled on a node, what other nodes could
# take it, and how it ended; and the pod gets the probe of its image's digest. The agent, 6: Running with the guest's CPU, the
# ID of its image, its end, the pod's readiness gate open and shut, and the Node's label by which the kubelet admits the
# pod again. Both, 6: events that people read. And one for a status that came in two parts.
LIFE = 23


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """One guest is made, boots, does nothing for a minute, and shuts down because it is deleted."""
    node = made.nodes[0].name
    with instances(api) as watch:
        since = _now()
        guest = Guest(api, watch, instance("life", node))
        guest.ready()
        guest.line("drydock-guest ready")
        wait_until(time.monotonic() + SETTLE)
        idle_since = _now()
        progress.note(f"a guest that does nothing for {IDLE} s")
        wait_until(time.monotonic() + IDLE)
        idle_until = _now()
        guest.delete()
        wait_until(time.monotonic() + SETTLE)
        until = _now()
    life = [request for request in requests(made, since, until) if request.writes]
    idle = [request for request in requests(made, idle_since, idle_until) if request.writes]
    progress.note(f"writes of a life: {split(life)}")
    progress.note(f"writes while it did nothing: {split(idle)}")
    yield Measurement("vm.life.writes", len(life), "requests", None, LIFE)
    yield Measurement("vm.idle.status-writes", sum(_status(request) for request in idle), "requests", None, 0)


def _status(request: Request) -> bool:
    return request.resource.startswith("virtualmachineinstances")


def _now() -> datetime:
    return datetime.now(timezone.utc)
