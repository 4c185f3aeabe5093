"""What the person at the terminal sees: one line a step, with its time."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# What writing to a terminal or a pipe fails with once there is no reader.
_NOBODY_READS = (errno.EIO, errno.EPIPE)


def show(text: str) -> None:
    """Print a line on standard error. It is lost if the terminal is gone: the work, or its clean-up, goes on."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise


class Progress:
    """Prints steps with the time since the start and the time each one took."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def elapsed(self) -> float:
        """Seconds since this command began."""
        return time.monotonic() - self._start

    def note(self, text: str) -> None:
        """Print one line, stamped with the elapsed time."""
        with self._lock:
            show(f"[{self.elapsed():6.1f}s] {text}")

    def detail(self, text: str) -> None:
        """Print one line that only `-v` shows."""
        if self.verbose:
            self.note(f"  {text}")

    @contextmanager
    def step(self, text: str, announce: bool = False) -> Iterator[None]:
        """Time a step; `announce` prints it beforehand too, for the long ones."""
        begun = time.monotonic()
        if announce:
            self.note(f"{text} ...")
        yield
        self.note(f"{text}: done in {time.monotonic() - begun:.1f} s")
