"""Slots of migrations: who held one when, by the API server's audit log, and how well they were used.

A migration holds a slot from the instant at which the controller's write of `PreparingTarget`, which names both
sides, is received, until the response to its write of a final phase. That is longer than the controller itself counts,
so a limit that is kept by these intervals is kept.

The lower bound of the time in which migrations of known durations can be carried out is the largest of

    sum of all durations / slots of the cluster
    for each source: sum of its durations / slots of a source, and its longest
    for each target: sum of its durations / slots of a target

No schedule is shorter: each slot carries one migration at a time, and each migration takes one of its source, one of its
target and one of the cluster. It counts no pod that starts, no request and no hand-over.
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
    """How many slots there are."""

    cluster: int
    source: int
    target: int


@dataclass(frozen=True)
class Held:
    """A slot that a migration held; times in seconds since the epoch."""

    migration: str
    source: str
    target: str
    taken: float
    freed: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.freed - self.taken


def held(lines: Iterable[str]) -> list[Held]:
    """The slots that were taken and freed, in the order in which they were taken, by the lines of an audit log."""
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
        # Most lines are about something else.
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
    """Seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def read(log: Path, since: float) -> list[Held]:
    """The slots that were taken after an instant."""
    with log.open() as lines:
        return [slot for slot in held(lines) if slot.taken >= since]


def most_at_once(slots: Sequence[Held], of: Callable[[Held], str]) -> int:
    """Return the most slots that were held at one instant by migrations for which `of` returns the same."""
    # Where one is freed at the very instant at which another is taken, both count.
    changes = sorted([(slot.taken, 0, slot) for slot in slots] + [(slot.freed, 1, slot) for slot in slots], key=lambda c: c[:2])
    now: dict[str, int] = defaultdict(int)
    most = 0
    for _, ends, slot in changes:
        now[of(slot)] += -1 if ends else 1
        most = max(most, now[of(slot)])
    return most


def lower_bound(moves: Sequence[tuple[str, str, float]], limits: Limits) -> float:
    """Seconds that migrations (source, target, seconds) take at least; see above."""
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
    """Seconds that migrations (source, target, seconds) take if each slot, once free, carries the next that may have it.

    In their order, and at once. Lower bounds know how long each will take and share them out accordingly; a scheduler that has to
    begin them does not.
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
    """Seconds from each instant at which a slot of a source was freed until the next guest of that source moved.

    `began` holds the time at which the guest of each migration began to move. A source's n-th slot to be freed is for the
    migration that begins n + slots of a source: as many begin before any is freed.
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
    """The least sample that so large a part of all is not above (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
