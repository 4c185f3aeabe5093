"""Builds programs from Go modules in the background."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from .runner import REPOSITORY, interrupt, run


@contextmanager
def built_meanwhile(*what: str) -> Iterator[Future[tuple[str, int]]]:
    """Build the programs that `embedded.build` knows by these names in the background; yield a future of the result of `run`.

    The end of the context waits for the build; an error in the context terminates it. Other processes that need a
    program wait for this build, because the build holds a lock.
    """
    argv = [sys.executable, "-m", "embedded.build", *what]
    environment = {"PYTHONPATH": str(REPOSITORY / "hack"), "PYTHONDONTWRITEBYTECODE": "1"}
    with ThreadPoolExecutor(1) as lane:
        running = lane.submit(run, argv, environment, prefix="programs: ")
        try:
            yield running
        except BaseException:
            interrupt()
            raise
