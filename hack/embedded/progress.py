"""Prints progress on standard error, with the time that each step takes."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Error numbers of a write to a terminal or pipe that no process reads any more.
_NOBODY_READS = (errno.EIO, errno.EPIPE)


def show(text: str) -> None:
    """Print a line on standard error. Drop it if the terminal is closed, so that the work or its clean-up continues."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise


class Progress:
    """A printer of progress lines with the elapsed time and the duration of each step."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def elapsed(self) -> float:
        """Return the seconds since this command started."""
        return time.monotonic() - self._start

    def note(self, text: str) -> None:
        """Print one line, prefixed with the elapsed time."""
        with self._lock:
            show(f"[{self.elapsed():6.1f}s] {text}")

    def detail(self, text: str) -> None:
        """Print one line, but only with `-v`."""
        if self.verbose:
            self.note(f"  {text}")

    @contextmanager
    def step(self, text: str, announce: bool = False) -> Iterator[None]:
        """Time a step and print its duration at the end. `announce` also prints a line at the start, for long steps."""
        begun = time.monotonic()
        if announce:
            self.note(f"{text} ...")
        yield
        self.note(f"{text}: done in {time.monotonic() - begun:.1f} s")
