"""Requests of agents and controller to the API server, from its audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from embedded.cluster import Cluster

WRITES = ("create", "update", "patch", "delete", "deletecollection")


@dataclass(frozen=True)
class Request:
    """A request to the API server."""

    pod: str
    account: str
    verb: str
    resource: str
    name: str

    @property
    def writes(self) -> bool:
        """Return whether the request is a write, except to a Lease, which is renewed anyway."""
        return self.verb in WRITES and self.resource != "leases"


def requests(made: Cluster, since: datetime, until: datetime) -> Iterator[Request]:
    """Yield all requests of Drydock's accounts that were received between two instants."""
    for line in Path(str(made.description["audit_log"])).read_text().splitlines():
        found = request(json.loads(line), since, until)
        if found is not None:
            yield found


def request(event: dict, since: datetime, until: datetime) -> Request | None:
    """Return the request of an event of the log, or None if it was received outside of the interval.

    The event `ResponseStarted` of a watch yields None, too, because the log has another event at the end of the watch.
    """
    at = datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00"))
    if not since <= at <= until or event["stage"] == "ResponseStarted":
        return None
    about = event.get("objectRef", {})
    part = f"/{about['subresource']}" if about.get("subresource") else ""
    return Request(
        pod=(event["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name") or [""])[0],
        account=event["user"]["username"].rpartition(":")[2],
        verb=event["verb"],
        resource=about.get("resource", "") + part,
        name=about.get("name", ""),
    )


def split(found: Iterable[Request]) -> str:
    """Return a text with the number of requests per account, verb and resource, the most frequent first."""
    kinds = Counter(f"{request.account.removeprefix('drydock-')} {request.verb} {request.resource}" for request in found)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common()) or "none"
