"""Response time of the webhook to repeated evictions of one pod, and the controller's requests that they cause.

The webhook is called as the API server calls it, 200 times a second, over persistent connections. The baseline is requests
for a path without a handler, at the same rate: these take the time that is not the webhook's own work. (These requests have no
body: the server would not read it and would close the connection.)
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from . import replicas
from .api import Api
from .audit import split
from .drain_time import manifest
from .measurement import SAMPLES, Measurement
from .guests import NAMESPACE, PODS, Guest, instances
from .migration_time import requested
from .pods import wait_until

PER_SECOND = 200
CLIENTS = 4
SECONDS = 2
# Seconds to wait before the measurement. The count of a repeated event is written once a minute; the writes for events of
# earlier drains must not count as requests of this measurement.
SERIES = 65
P99 = 0.005
PORT = 8443
SERVICE = "drydock-webhooks.drydock.svc"
PATH = "/validate/pods/eviction"
NOBODYS = "/nobody-serves-this"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/drydock"
CONTROLLERS = "/api/v1/namespaces/drydock/pods?labelSelector=app.kubernetes.io%2Fname%3Ddrydock-controller"

Expected = Callable[[int, bytes], bool]


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure the evictions of a guest that fits on no other node, so that each eviction is refused."""
    # Earlier drains may have left both replicas on one node, from which one of them is moved.
    replicas.apart(made)
    here, there = (node.name for node in made.nodes)
    made.kubectl("cordon", there)
    try:
        with instances(api) as watch:
            described = manifest("refused").manifest()
            described["spec"]["evictionStrategy"] = "LiveMigrate"
            guest = Guest(api, watch, described)
            guest.ready()
            pod = guest.pod()["metadata"]["name"]
            refused(api, pod)
            yield from _measurements(made, api, pod, progress)
    finally:
        made.kubectl("uncordon", there)


def refused(api: Api, pod: str) -> None:
    """Request the first eviction, which marks the guest; fail unless it is refused with 429."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    try:
        api.request("POST", f"{PODS}/{pod}/eviction", eviction)
    except Failure as failure:
        if ": 429" in str(failure):
            return
        raise
    raise Failure(f"the eviction of {pod} was not refused")


def _measurements(made: Cluster, api: Api, pod: str, progress: Progress) -> Iterator[Measurement]:
    responded, bare = [], []
    with progress.step("waiting until repeated events of earlier drains are written"):
        wait_until(time.monotonic() + SERIES)
    webhook = Webhook(api)
    since = datetime.now(timezone.utc)
    for _ in range(SAMPLES):
        bare.append(percentile(webhook.send_request(NOBODYS, b"", lambda status, _: status == 404)))
        responded.append(percentile(webhook.send_request(PATH, json.dumps(review(pod)).encode(), is_refused)))
    wait_until(time.monotonic() + 1)
    requests = list(requested(made, since))
    progress.note(f"requests during the measurement: {split(requests)}")
    middle = sorted(responded)[SAMPLES // 2] * 1000
    reference = sorted(bare)[SAMPLES // 2] * 1000
    yield Measurement(f"eviction.p99 at {PER_SECOND}/s", middle, "ms", reference, P99 * 1000, least=min(responded) * 1000)
    yield Measurement("eviction.requests per repeat", len(requests), "requests", None, 0)


def review(pod: str) -> dict[str, Any]:
    """Return the review that the API server sends for a dry-run eviction, which the webhook never holds."""
    eviction = {"group": "policy", "version": "v1", "kind": "Eviction"}
    pods = {"group": "", "version": "v1", "resource": "pods"}
    metadata = {"name": pod, "namespace": NAMESPACE}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-4000-8000-000000000000",
            "kind": eviction,
            "resource": pods,
            "subResource": "eviction",
            "requestKind": eviction,
            "requestResource": pods,
            "requestSubResource": "eviction",
            **metadata,
            "operation": "CREATE",
            "userInfo": {"username": "bench"},
            "object": {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": metadata,
                "deleteOptions": {"dryRun": ["All"]},
            },
            "dryRun": True,
        },
    }


def is_refused(status: int, body: bytes) -> bool:
    """Return whether the webhook's response refuses the eviction temporarily (429)."""
    if status != 200:
        return False
    response = json.loads(body)["response"]
    return not response["allowed"] and response["status"]["code"] == 429


def percentile(samples: list[float], wanted: float = 0.99) -> float:
    """Return a percentile by the nearest-rank method; `wanted` is between 0 and 1."""
    return sorted(samples)[math.ceil(len(samples) * wanted) - 1]


class Webhook:
    """The webhook server of one of the controller's replicas."""

    def __init__(self, api: Api) -> None:
        bundle = api.get(WEBHOOKS)["webhooks"][0]["clientConfig"]["caBundle"]
        self._context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        running = [pod for pod in api.get(CONTROLLERS)["items"] if pod["status"].get("phase") == "Running"]
        if not running:
            raise Failure("no controller runs")
        self._address = (running[0]["status"]["podIP"], PORT)

    def send_request(self, path: str, body: bytes, expected: Expected) -> list[float]:
        """Send requests at the fixed rate; return the response time of each in seconds. Fail at an unexpected response."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            rounds = pool.map(lambda client: self._client(client, path, body, expected), range(CLIENTS))
            return [took for of_client in rounds for took in of_client]

    def _client(self, number: int, path: str, body: bytes, expected: Expected) -> list[float]:
        connection = http.client.HTTPConnection(SERVICE)
        plain = socket.create_connection(self._address)
        # Like the API server, send the body without delay after the headers.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = self._context.wrap_socket(plain, server_hostname=SERVICE)
        pause = CLIENTS / PER_SECOND
        begun = time.monotonic() + pause * number / CLIENTS
        took = []
        try:
            for turn in range(PER_SECOND * SECONDS // CLIENTS):
                wait_until(begun + turn * pause)
                requested_at = time.monotonic()
                connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                text = reply.read()
                took.append(time.monotonic() - requested_at)
                if not expected(reply.status, text):
                    raise Failure(f"{path}: {reply.status}", text.decode(errors="replace")[:500])
        finally:
            connection.close()
        return took
