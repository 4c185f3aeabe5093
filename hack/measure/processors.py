"""How busy the machine's processors are, and with whose work, by /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Beginning of the names of Drydock's programs.
OWN = "drydock-"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """Processor time since the machine was started, in seconds, of all its processors together."""

    busy: float
    own: dict[str, float]

    @classmethod
    def so_far(cls) -> Spent:
        """What has been spent until now: by all, and by each process of Drydock."""
        own = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, begun, seconds = process(path.read_text())
            except (FileNotFoundError, ProcessLookupError):
                # It has ended meanwhile.
                continue
            if name.startswith(OWN):
                own[f"{path.parent.name} {begun}"] = seconds
        return cls(busy(Path("/proc/stat").read_text()), own)

    def others_since(self, before: Spent) -> float:
        """What all but Drydock have spent since, in seconds of each processor: less time than that, it cannot have taken.

        A process of Drydock that has ended since counts with the others, some hundredths of a second for each launcher.
        """
        own = sum(seconds - before.own.get(process, 0) for process, seconds in self.own.items())
        return (self.busy - before.busy - own) / (os.cpu_count() or 1)


def process(stat: str) -> tuple[str, str, float]:
    """Name, time of the start, and seconds of a process, by its `stat`."""
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], fields[19], (int(fields[11]) + int(fields[12])) / TICKS


def busy(stat: str) -> float:
    """Seconds of all processors that were not idle, by `/proc/stat`. Time as a guest is in that of its host's process."""
    user, nice, system, _idle, _waiting, *interrupts = (int(word) for word in stat.splitlines()[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS
