"""Migration slots: which migration held one and when, from the API server's audit log, and how well they were used.

A migration holds a slot from the instant at which the API server receives the controller's write of `PreparingTarget`,
which names both sides, until its response to the write of a final phase. These intervals are longer than those that the
controller counts. A limit that holds for them therefore holds for the controller, too.

The lower bound of the total time of migrations with known durations is the maximum of

    sum of all durations / slots of the cluster
    for each source: sum of its durations / slots of a source, and its longest duration
    for each target: sum of its durations / slots of a target

No schedule is shorter: each slot serves one migration at a time, and each migration takes one slot of its source, one of
its target and one of the cluster. The bound adds nothing for the start of pods, requests and hand-overs.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .moving_guests import FINAL


@dataclass(frozen=True)
class Limits:
    """Numbers of slots: of the cluster, of each source and of each target."""

    cluster: int
    source: int
    target: int


@dataclass(frozen=True)
class Held:
    """The interval in which a migration held a slot, in seconds since the epoch."""

    migration: str
    source: str
    target: str
    taken: float
    freed: float

    @property
    def seconds(self) -> float:
        """Return the length of the interval in seconds."""
        return self.freed - self.taken


def held(lines: Iterable[str]) -> list[Held]:
    """Return the slots that were taken and freed according to the lines of an audit log, in the order they were taken."""
    open_slots: dict[str, tuple[str, str, float]] = {}
    over: list[Held] = []
    for event in _writes(lines):
        name = event["objectRef"]["name"]
        status = event["requestObject"].get("status", {})
        phase = status.get("phase")
        sides = [status.get(side, {}).get("node", "") for side in ("source", "target")]
        if phase in FINAL and name in open_slots:
            source, target, taken = open_slots.pop(name)
            over.append(Held(name, source, target, taken, instant(event["stageTimestamp"])))
        elif phase not in FINAL and all(sides) and name not in open_slots:
            open_slots[name] = (sides[0], sides[1], instant(event["requestReceivedTimestamp"]))
    return sorted(over, key=lambda slot: slot.taken)


def _writes(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        # Skip most lines without parsing their JSON.
        if "virtualmachineinstancemigrations" not in line:
            continue
        event = json.loads(line)
        about = event.get("objectRef", {})
        if (
            event["stage"] == "ResponseComplete"
            and event["responseStatus"].get("code") == 200
            and about.get("resource") == "virtualmachineinstancemigrations"
            and about.get("subresource") == "status"
            and "requestObject" in event
        ):
            yield event


def instant(text: str) -> float:
    """Return a timestamp of the log in seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def read(log: Path, since: float) -> list[Held]:
    """Return the slots that were taken at or after an instant and freed."""
    with log.open() as lines:
        return [slot for slot in held(lines) if slot.taken >= since]


def most_at_once(slots: Sequence[Held], of: Callable[[Held], str]) -> int:
    """Return the maximum number of slots held at the same time by migrations for which `of` returns the same value."""
    # If a slot is freed at the same instant at which another one is taken, both count.
    changes = sorted([(slot.taken, 0, slot) for slot in slots] + [(slot.freed, 1, slot) for slot in slots], key=lambda c: c[:2])
    now: dict[str, int] = defaultdict(int)
    most = 0
    for _, ends, slot in changes:
        now[of(slot)] += -1 if ends else 1
        most = max(most, now[of(slot)])
    return most


def lower_bound(moves: Sequence[tuple[str, str, float]], limits: Limits) -> float:
    """Return the minimum time, in seconds, of migrations given as (source, target, seconds); see the module's docstring."""
    sources: dict[str, list[float]] = defaultdict(list)
    targets: dict[str, list[float]] = defaultdict(list)
    for source, target, seconds in moves:
        sources[source].append(seconds)
        targets[target].append(seconds)
    bounds = [sum(seconds for _, _, seconds in moves) / limits.cluster]
    bounds += [max(sum(of_one) / limits.source, *of_one) for of_one in sources.values()]
    bounds += [sum(of_one) / limits.target for of_one in targets.values()]
    return max(bounds)


def without_delay(moves: Sequence[tuple[str, str, float]], limits: Limits) -> float:
    """Return the time, in seconds, of migrations (source, target, seconds) if each free slot is reassigned without delay.

    A free slot goes to the first waiting migration that is within all limits. Unlike the lower bound, this schedule does not
    use the durations in advance, which a real scheduler does not know.
    """
    waiting = list(moves)
    moving: list[tuple[float, str, str]] = []
    now = 0.0
    while waiting:
        later = []
        for source, target, seconds in waiting:
            free = (
                len(moving) < limits.cluster
                and sum(one[1] == source for one in moving) < limits.source
                and sum(one[2] == target for one in moving) < limits.target
            )
            if free:
                moving.append((now + seconds, source, target))
            else:
                later.append((source, target, seconds))
        waiting = later
        if waiting:
            now = min(moving)[0]
            moving = [one for one in moving if one[0] > now]
    return max((one[0] for one in moving), default=now)


def until_next(slots: Sequence[Held], began: dict[str, float], limits: Limits) -> list[float]:
    """Return the seconds from each release of a source's slot until the next guest of that source started to move.

    `began` maps each migration to the time at which its guest started to move. The n-th release of a source's slot is paired
    with start number n + `limits.source`, because `limits.source` migrations start before the first release.
    """
    by_source: dict[str, list[Held]] = defaultdict(list)
    for slot in slots:
        by_source[slot.source].append(slot)
    waits = []
    for of_one in by_source.values():
        freed = sorted(slot.freed for slot in of_one)
        starts = sorted(began[slot.migration] for slot in of_one if slot.migration in began)
        waits += [start - free for start, free in zip(starts[limits.source :], freed)]
    return waits


def percentile(samples: Sequence[float], part: float) -> float:
    """Return a percentile by the nearest-rank method; `part` is between 0 and 1."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
