"""Makes SIGTERM and SIGHUP end a command like SIGINT does, so that the command removes everything that it has created."""

from __future__ import annotations

import signal
from types import FrameType

# The exit code that shells report for a command that SIGINT ended.
EXIT_CODE = 130


def heed_termination() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, as SIGINT does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # `nohup` ignores SIGHUP. Keep ignoring it.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def _hang_up(number: int, frame: FrameType | None) -> None:
    # The kernel and the shell both send SIGHUP. The second signal must not interrupt the clean-up.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt
