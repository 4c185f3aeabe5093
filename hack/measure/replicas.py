"""The controller's replicas: their nodes, and which one leads."""

from __future__ import annotations

import json
import time

from embedded.cluster import Cluster
from embedded.errors import Failure

NAMESPACE = "drydock"
LEASE = "drydock-controller"
# Maximum seconds until the replicas are on different nodes: the replacement of an evicted replica may start on the other one's
# node, and is moved only when another node can take it and both have been ready for a while.
APART_SECONDS = 180.0


def nodes(made: Cluster) -> dict[str, str]:
    """Return the node of each replica that is ready and not being deleted, by the pod's name."""
    selector = "app.kubernetes.io/name=drydock-controller"
    pods = json.loads(made.kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and _is_ready(pod)
    }


def _is_ready(pod: dict) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def leader(made: Cluster) -> str:
    """Return the name of the leading replica's pod."""
    holder = "jsonpath={.spec.holderIdentity}"
    return made.kubectl("-n", NAMESPACE, "get", "lease", LEASE, "-o", holder).rpartition("_")[0]


def lead_on(made: Cluster, node: str) -> None:
    """Wait until the replicas are on different nodes, and make the one on this node the leader."""
    leading = apart(made)
    if nodes(made).get(leading) == node:
        return
    made.kubectl("-n", NAMESPACE, "delete", "pod", leading)
    leading = apart(made)
    if nodes(made).get(leading) != node:
        raise Failure(f"the leader {leading} is not on {node}")


def apart(made: Cluster) -> str:
    """Wait until the replicas are on different nodes and one of them leads; return the name of the leader's pod."""
    until = time.monotonic() + APART_SECONDS
    while time.monotonic() < until:
        found, leading = nodes(made), leader(made)
        if len(found) == 2 and len(set(found.values())) == 2 and leading in found:
            return leading
        time.sleep(0.5)
    raise Failure(f"the controller's replicas are not on two nodes after {APART_SECONDS:.0f} s: {nodes(made)}")
