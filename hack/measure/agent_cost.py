"""Memory, CPU time and requests of agent and controller when idle."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .api import Api
from .audit import requests
from .measurement import SAMPLES, Measurement, median
from .pods import memory, pod_of, processes, processor_seconds, resident_together, the_process, wait_until

SETTLE = 300
WINDOW = 600

# KubeVirt v1.9's virt-handler, on the same kind of machine.
KUBEVIRT_RESIDENT = 79.0
KUBEVIRT_ANONYMOUS = 28.0
KUBEVIRT_PROCESSOR = 1.1

LEASE_EVERY = 10
# Seconds: kube ends and renews each watch after about five minutes.
WATCH_RENEWED_EVERY = 290
# Watches of an agent: two of the configuration, its node, its Hypervisor, pods, instances, migrations from and to the node.
WATCHES = 8


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Wait for five idle minutes, then take all samples in one window of ten minutes."""
    node = made.nodes[0].name
    progress.note(f"idle for {SETTLE} s")
    wait_until(time.monotonic() + SETTLE)
    agent, tunnel = (the_process(made, node, "drydock-agent", task) for task in ("run", "tunnel"))
    controllers = [(other.name, pid) for other in made.nodes for pid in processes(made, other.name, "drydock-controller")]
    if not controllers:
        raise Failure("no controller runs on the cluster")
    begun, since = time.monotonic(), datetime.now(timezone.utc)
    progress.note(f"samples during {WINDOW} s")
    agents, tunnels, together, controller_resident, spent = [], [], [], [], []
    before = processor_seconds(made, node, agent)
    for sample in range(SAMPLES):
        wait_until(begun + WINDOW * (sample + 1) / SAMPLES)
        agents.append(memory(made, node, agent))
        tunnels.append(memory(made, node, tunnel))
        together.append(resident_together(made, node, [agent, tunnel]))
        controller_resident.append(max(memory(made, place, pid).resident for place, pid in controllers))
        now = processor_seconds(made, node, agent)
        spent.append((now - before) * 1000 / (WINDOW / SAMPLES))
        before = now
    until = datetime.now(timezone.utc)
    anonymous = median([sample.anonymous for sample in agents])
    resident = median([sample.resident for sample in agents])
    yield Measurement("agent.idle.RssAnon vs kubevirt", anonymous, "MiB", KUBEVIRT_ANONYMOUS, 10)
    yield Measurement("agent.idle.RSS vs kubevirt", resident, "MiB", KUBEVIRT_RESIDENT, 30)
    both = [one.anonymous + other.anonymous for one, other in zip(agents, tunnels)]
    yield Measurement("agent-and-tunnel.idle.RssAnon vs kubevirt", median(both), "MiB", KUBEVIRT_ANONYMOUS, 12)
    yield Measurement("agent-and-tunnel.idle.RSS vs kubevirt", median(together), "MiB", KUBEVIRT_RESIDENT, 36)
    yield Measurement("agent.idle.cpu vs kubevirt", statistics.mean(spent), "ms/s", KUBEVIRT_PROCESSOR, 0.5)
    yield Measurement("controller.idle.RSS", median(controller_resident), "MiB", None, 30)
    yield from _requests(made, node, since, until, progress)


def _requests(made: Cluster, node: str, since: datetime, until: datetime, progress: Progress) -> Iterator[Measurement]:
    """Count the API requests of one node's agent in the window, from the API server's audit log."""
    pod = pod_of(made, "drydock-agent", node)
    lease, watch, other = 0, 0, Counter[str]()
    for request in requests(made, since, until):
        if request.pod != pod:
            continue
        if request.resource == "leases":
            lease += 1
        elif request.verb == "watch":
            watch += 1
        else:
            other[f"{request.verb} {request.resource}"] += 1
    for what, count in other.items():
        progress.note(f"unexpected requests: {count} × {what}")
    yield Measurement("agent.idle.lease-renewals", lease, "requests", WINDOW / LEASE_EVERY, 1.05, relative=True)
    yield Measurement(
        "agent.idle.watch-renewals", watch, "requests", None, WATCHES * (WINDOW // WATCH_RENEWED_EVERY + 1)
    )
    yield Measurement("agent.idle.other-requests", sum(other.values()), "requests", None, 0)
