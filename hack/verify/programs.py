"""Builds programs from Go modules while other work leaves a processor idle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from .runner import REPOSITORY, interrupt, run


@contextmanager
def built_meanwhile(*what: str) -> Iterator[Future[tuple[str, int]]]:
    """Build what `embedded.build` knows by these names, until this is left; the value is as that of `run`.

    A second user of a program waits for this build of it, by a lock. An error inside ends the build.
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
