"""Builds the programs of the embedded cluster while other work leaves a processor idle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from .runner import REPOSITORY, interrupt, run


@contextmanager
def built_meanwhile(*also: str) -> Iterator[Future[tuple[str, int]]]:
    """Build Kubernetes, and these other programs of `embedded.build`, until this is left; the value is as that of `run`.

    A second user of a program waits for this build of it, by a lock. An error inside ends the build.
    """
    argv = [sys.executable, "-m", "embedded.build", *(word for name in also for word in ("--also", name))]
    environment = {"PYTHONPATH": str(REPOSITORY / "hack"), "PYTHONDONTWRITEBYTECODE": "1"}
    with ThreadPoolExecutor(1) as lane:
        running = lane.submit(run, argv, environment, prefix="kubernetes: ")
        try:
            yield running
        except BaseException:
            interrupt()
            raise
