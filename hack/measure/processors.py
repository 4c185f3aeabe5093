"""Processor time of the machine, in total and of Drydock's processes, read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Prefix of the names of Drydock's programs.
OWN = "drydock-"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """Processor time since boot, in seconds, summed over all processors: in total and for each process of Drydock."""

    busy: float
    own: dict[str, float]

    @classmethod
    def so_far(cls) -> Spent:
        """Read the processor time that has been spent so far."""
        own = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, begun, seconds = process(path.read_text())
            except (FileNotFoundError, ProcessLookupError):
                # The process has ended in the meantime.
                continue
            if name.startswith(OWN):
                own[f"{path.parent.name} {begun}"] = seconds
        return cls(busy(Path("/proc/stat").read_text()), own)

    def others_since(self, before: Spent) -> float:
        """Return the time that all processes other than Drydock's have spent since `before`, in seconds per processor.

        This is a lower bound of the wall-clock time of their work. A process of Drydock that has ended since `before`
        counts as one of the others: a few hundredths of a second for each launcher.
        """
        own = sum(seconds - before.own.get(process, 0) for process, seconds in self.own.items())
        return (self.busy - before.busy - own) / (os.cpu_count() or 1)


def process(stat: str) -> tuple[str, str, float]:
    """Return the name, the start time and the processor seconds of a process from the text of its `/proc/PID/stat`."""
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], fields[19], (int(fields[11]) + int(fields[12])) / TICKS


def busy(stat: str) -> float:
    """Return the non-idle seconds of all processors from the text of `/proc/stat`.

    The kernel includes the time of guests in that of their host processes.
    """
    user, nice, system, _idle, _waiting, *interrupts = (int(word) for word in stat.splitlines()[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS
