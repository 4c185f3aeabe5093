"""Waits until a condition holds, and fails early if a process that it depends on dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from .errors import Failure
from .processes import Process

_PERIOD = 0.1


def until(
    condition: Callable[[], bool],
    what: str,
    patience: float,
    alive: Iterable[Process] = (),
) -> None:
    """Wait until the condition holds. Raise Failure after `patience` seconds, or at once if one of the processes dies."""
    needed = list(alive)
    deadline = time.monotonic() + patience
    while not condition():
        for process in needed:
            if not process.is_running():
                raise process.death()
        if time.monotonic() > deadline:
            printed = "\n".join(
                f"--- {process.part} ({process.log})\n{process.last_lines(8)}" for process in needed
            )
            raise Failure(f"timeout after waiting {patience:.0f} s for {what}", printed)
        time.sleep(_PERIOD)
