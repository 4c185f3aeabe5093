"""Requests of agents and controller to the API server, by the server's audit log."""

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
    """One request, where it begins: a watch is logged when it begins and when it ends."""

    pod: str
    account: str
    verb: str
    resource: str
    name: str

    @property
    def writes(self) -> bool:
        """Whether it changes something other than the sign of life that goes on anyway."""
        return self.verb in WRITES and self.resource != "leases"


def requests(made: Cluster, since: datetime, until: datetime) -> Iterator[Request]:
    """All requests of Drydock's accounts that were received between two instants."""
    for line in Path(str(made.description["audit_log"])).read_text().splitlines():
        found = request(json.loads(line), since, until)
        if found is not None:
            yield found


def request(event: dict, since: datetime, until: datetime) -> Request | None:
    """The request of an event of the log, if it was received between two instants and the event is its last."""
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
    """For people: how many of which kind, by account, the most frequent first."""
    kinds = Counter(f"{request.account.removeprefix('drydock-')} {request.verb} {request.resource}" for request in found)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common()) or "none"
