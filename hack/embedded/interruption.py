"""A command that is terminated, or loses its terminal, takes away what it made, as one that is interrupted does."""

from __future__ import annotations

import signal
from types import FrameType

# The exit code that shells report for a command that ended by SIGINT.
EXIT_CODE = 130


def heed_termination() -> None:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, as SIGINT does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Under `nohup` it is ignored, and stays so.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def _hang_up(number: int, frame: FrameType | None) -> None:
    # The kernel and the shell both send it: the second one must not end the clean-up.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt
