"""A measured figure, printed as one line of JSON."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

# An even number, so that equally many moves start from each of the two nodes. A move uses the memory that the previous one
# freed, and a hypervisor that reclaims free memory returns some of it much more slowly than the rest: on a machine with
# virtio-balloon's page reporting, the kernel cleared 900 MiB in 0.9 to 2.2 s, and a guest of 1 GiB moved in 4.2 s from one node
# and in 3.6 s from the other.
SAMPLES = 8


@dataclass
class Measurement:
    """A value with its reference and its budget.

    `budget` is the maximum of `value` or, if `relative`, of `value / reference`. A figure without a budget is only reported.
    `least` is the smallest sample, which a busy machine disturbs less than the median. `load` is the machine's load average
    over the last minute.
    """

    name: str
    value: float
    unit: str
    reference: float | None
    budget: float | None
    relative: bool = False
    least: float | None = None
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def ratio(self) -> float | None:
        """Return `value / reference`; None without a reference."""
        return self.value / self.reference if self.reference else None

    @property
    def ok(self) -> bool:
        """Return whether the figure is within its budget; true without a budget."""
        if self.budget is None:
            return True
        if not self.relative:
            return self.value <= self.budget
        return self.ratio is not None and self.ratio <= self.budget

    def line(self) -> str:
        """Return the figure as one line of JSON."""
        ratio = self.ratio
        return json.dumps(
            {
                "name": self.name,
                "value": _rounded(self.value),
                "unit": self.unit,
                "reference": None if self.reference is None else _rounded(self.reference),
                "ratio": None if ratio is None else round(ratio, 3),
                "budget": self.budget,
                "ok": self.ok,
                "least": None if self.least is None else _rounded(self.least),
                "load": round(self.load, 1),
            }
        )


def median(samples: Sequence[float], wanted: int = SAMPLES) -> float:
    """Return the median; assert that there are at least `wanted` samples."""
    assert len(samples) >= wanted, f"{len(samples)} samples; at least {wanted} are needed"
    return statistics.median(samples)


def _rounded(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(value, 3 if abs(value) < 100 else 1)
