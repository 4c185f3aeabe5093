"""How long a guest stood still, by the numbered signs of life that it prints, and whether one is missing.

A guest that stands still has a clock that stands still too, so the time of each line is that at which the node's
container runtime took it from the launcher.
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
    """One sign of life."""

    at: datetime
    number: int
    boot: str


def ticks(source: Iterable[str], target: Iterable[str]) -> list[Tick]:
    """The ticks in the logs of the pod that a guest left and of the one that it went to, in order.

    A line may be cut in two by the move; it came when its second half did.
    """
    before = [output for output in map(printed, source) if output and output[1]]
    after = [output for output in map(printed, target) if output and output[1]]
    if before and after and not _tick(*before[-1]) and not _tick(*after[0]):
        _, head = before.pop()
        at, tail = after.pop(0)
        after.insert(0, (at, f"{head}{tail}"))
    return [tick for output in (*before, *after) if (tick := _tick(*output))]


def longest_gap(found: list[Tick]) -> float:
    """Seconds between the two neighbours that are furthest apart.

    Fails if a number is missing, comes twice, or the guest has booted anew.
    """
    if len(found) < 2:
        raise Failure(f"{len(found)} ticks are too few to measure a standstill")
    longest = 0.0
    for one, other in zip(found, found[1:]):
        if (other.number, other.boot) != (one.number + 1, one.boot):
            raise Failure(f"after tick {one.number} of boot {one.boot} came {other.number} of {other.boot}")
        longest = max(longest, (other.at - one.at).total_seconds())
    return longest


def _tick(at: datetime, output: str) -> Tick | None:
    found = TICK.search(output)
    return Tick(at, int(found[1]), found[2]) if found else None
