"""Downtime of a guest during a migration, from the numbered lines ("ticks") that it prints, and whether one is missing.

The guest's clock stops while the guest is paused. The time of each line is therefore that at which the node's container
runtime received it from the launcher.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from embedded.errors import Failure

from .guests import printed

TICK = re.compile(r"tick (\d+) boot=(\w+) .*late=\d+ms$")


@dataclass(frozen=True)
class Tick:
    """A numbered line that a guest printed, and when."""

    at: datetime
    number: int
    boot: str


def ticks(source: Iterable[str], target: Iterable[str]) -> list[Tick]:
    """Return the ticks in the logs of the source pod and of the target pod of a migration, in order.

    The migration may split a line between both logs. Such a tick has the time of its second half.
    """
    before = [output for output in map(printed, source) if output and output[1]]
    after = [output for output in map(printed, target) if output and output[1]]
    if before and after and not _tick(*before[-1]) and not _tick(*after[0]):
        _, head = before.pop()
        at, tail = after.pop(0)
        after.insert(0, (at, f"{head}{tail}"))
    return [tick for output in (*before, *after) if (tick := _tick(*output))]


def longest_gap(found: list[Tick]) -> float:
    """Return the longest time between two consecutive ticks, in seconds.

    Fail if a number is missing or duplicated, or if the guest has rebooted.
    """
    if len(found) < 2:
        raise Failure(f"{len(found)} ticks are too few to measure the downtime")
    longest = 0.0
    for one, other in zip(found, found[1:]):
        if (other.number, other.boot) != (one.number + 1, one.boot):
            raise Failure(f"tick {one.number} of boot {one.boot} is followed by {other.number} of {other.boot}")
        longest = max(longest, (other.at - one.at).total_seconds())
    return longest


def _tick(at: datetime, output: str) -> Tick | None:
    found = TICK.search(output)
    return Tick(at, int(found[1]), found[2]) if found else None
